// NeuronX Distributed's checkpoints: what is written for ranks is read again, and their other forms
// are, too. That torch.load reads them is in tests/parity/dcp.py.

#include "core/foreign/xser.hpp"

#include "core/foreign/torch_tensors.hpp"
#include "core/foreign/xser_names.hpp"
#include "core/formats/pickle.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/ops/cat.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

namespace xser_tests {

using mh::MemoryStorage;
using namespace mh::test;

namespace {

using LlamaTensors = std::map<std::string, at::Tensor>;

/// A Llama by Hugging Face's names.
LlamaTensors small_llama(int64_t layers = 3) {
  LlamaTensors all{
      {"model.embed_tokens.weight", counting({8, 4}, 1)},
      {"lm_head.weight", counting({8, 4}, 40)},
      {"model.norm.weight", counting({4}, 80, at::kBFloat16)}};
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    const auto start = static_cast<double>(1000 * (i + 1));
    all[layer + ".input_layernorm.weight"] = counting({4}, start);
    all[layer + ".post_attention_layernorm.weight"] = counting({4}, start + 4);
    all[layer + ".self_attn.q_proj.weight"] = counting({8, 4}, start + 10);
    all[layer + ".self_attn.k_proj.weight"] = counting({4, 4}, start + 50);
    all[layer + ".self_attn.v_proj.weight"] = counting({4, 4}, start + 70);
    all[layer + ".self_attn.o_proj.weight"] = counting({4, 8}, start + 100);
    all[layer + ".mlp.gate_proj.weight"] = counting({6, 4}, start + 200);
    all[layer + ".mlp.up_proj.weight"] = counting({6, 4}, start + 300);
    all[layer + ".mlp.down_proj.weight"] = counting({4, 6}, start + 400);
  }
  return all;
}

struct Written {
  MemoryStorage store;
  LlamaTensors model = small_llama();
  std::string config = "{}";

  uint64_t write(mh::XserLayout layout = {2, 2}) {
    mh::OutlinedTensors tensors;
    for (const auto& [name, value] : model) {
      tensors.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
    }
    tensors.value = [this](const std::string& name) { return model.at(name); };
    return mh::write_xser(store, "out", 7, tensors, layout, config);
  }

  std::unique_ptr<mh::CheckpointReader> open() { return mh::open_xser(store, "out/step_7"); }

  void check() {
    const auto saved = open();
    REQUIRE(saved->tensors().size() == model.size());
    for (const auto& [name, value] : model) {
      CAPTURE(name);
      CHECK(whole_tensor(*saved, name).equal(value));
    }
    CHECK(saved->names() == mh::TensorNames::hugging_face);
    CHECK(saved->verify([](uint64_t) {}).damages.empty());
  }

  std::string refused() {
    return refusal([this] { (void)open(); });
  }

  std::string not_written(mh::XserLayout layout = {2, 2}) {
    return refusal([&] { (void)write(layout); });
  }

  /// One rank's file of torch_xla's references to these tensors.
  void put(const LlamaTensors& tensors, int64_t rank = 0) {
    mh::PickleWriter out;
    out.mark();
    int64_t id = 0;
    const std::string file = "out/step_7/" + mh::xser_file(rank, 0);
    for (const auto& [name, value] : tensors) {
      out.text(name).global("torch_xla.utils.serialization", "TensorReference").mark().tuple();
      out.make().mark().text("tid").integer(id).dict().build();
      mh::put_torch_tensor(store, file + ".tensors/tensor_" + std::to_string(id++) + ".pt", value);
    }
    mh::put_text(store, file, mh::torch_file_of(out.dict().finish()));
  }
};

} // namespace

TEST_CASE_FIXTURE(Written, "an export that is killed at any write is refused by name") {
  write();
  CHECK(store.history().size() > 20);
  for (size_t i = 1; i < store.history().size(); ++i) {
    CAPTURE(i);
    MemoryStorage killed(store.history()[i]);
    const mh::XserFormat format({}, {.storage = killed});
    CHECK(format.detect("out"));
    const bool is_whole = killed.contains("out/step_7/done");
    CHECK(format.is_half("out/step_7") == !is_whole);
    if (is_whole) {
      CHECK(format.steps("out") == std::vector<int64_t>{7});
      continue;
    }
    for (const char* folder : {"out", "out/step_7"}) {
      CHECK(contains(
          refusal([&] { (void)format.steps(folder); }),
          "out/step_7 was begun and is not whole: done, which is written last"
      ));
    }
  }
}

TEST_CASE_FIXTURE(Written, "what is written for two by two ranks is read again") {
  CHECK(write() > 0);
  check();
  const mh::XserFormat format({}, {.storage = store});
  CHECK(format.detect("out"));
  CHECK(format.steps("out") == std::vector<int64_t>{7});
  CHECK(format.detect("out/step_7"));
  CHECK(format.config("out") == "{}");
  CHECK(store.contains("out/step_7/model/dp_rank_00_tp_rank_01_pp_rank_01.pt.info.pt"));
  // Layers that stages do not divide are the last stage's: 1 and 2.
  CHECK(store.list("out/step_7/model/dp_rank_00_tp_rank_00_pp_rank_00.pt.tensors").size() == 9);
  CHECK(store.list("out/step_7/model/dp_rank_00_tp_rank_00_pp_rank_01.pt.tensors").size() == 18);
  store.remove("out/step_7/done");
  CHECK(format.is_half("out/step_7"));
}

namespace {

/// Objects in memory, whose first tensors finish when as many are being written as are expected.
class StaggeredStorage final : public mh::Storage {
public:
  explicit StaggeredStorage(int expected)
      : expected_(expected) {}

  std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override {
    auto upload = store.put(path, existing);
    const bool is_tensor = path.string().find(".tensors/") != std::string::npos;
    return is_tensor ? std::make_unique<Counted>(*this, std::move(upload)) : std::move(upload);
  }

  std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override { return store.get(path); }

  bool contains(const mh::Path& path) override { return store.contains(path); }

  std::vector<Item> list(const mh::Path& prefix) override { return store.list(prefix); }

  void remove(const mh::Path& path) override { store.remove(path); }

  void remove_all(const mh::Path& prefix) override { store.remove_all(prefix); }

  void remove_unfinished(const mh::Path& prefix) override { store.remove_unfinished(prefix); }

  MemoryStorage store;
  int most = 0; ///< tensors that were being written at the same time

private:
  class Counted final : public mh::Upload {
  public:
    Counted(StaggeredStorage& storage, std::unique_ptr<mh::Upload> upload)
        : storage_(storage)
        , upload_(std::move(upload)) {
      const std::lock_guard lock(storage_.mutex_);
      storage_.most = std::max(storage_.most, ++storage_.now_);
      storage_.full_ = storage_.full_ || storage_.now_ == storage_.expected_;
      storage_.changed_.notify_all();
    }

    ~Counted() override {
      const std::lock_guard lock(storage_.mutex_);
      --storage_.now_;
    }

    void write(std::span<const std::byte> bytes) override { upload_->write(bytes); }

    void finish() override {
      std::unique_lock lock(storage_.mutex_);
      REQUIRE(storage_.changed_.wait_for(lock, std::chrono::minutes(1), [&] {
        return storage_.full_;
      }));
      lock.unlock();
      upload_->finish();
    }

  private:
    StaggeredStorage& storage_;
    std::unique_ptr<mh::Upload> upload_;
  };

  int expected_, now_ = 0;
  bool full_ = false; ///< there were as many as expected
  std::mutex mutex_;
  std::condition_variable changed_;
};

} // namespace

TEST_CASE("ranks' files are written staggered, so many at a time") {
  LlamaTensors model = small_llama(1);
  for (auto& [name, value] : model) { // so that four ranks split each
    value = counting({8, 4}, 1);
  }
  mh::OutlinedTensors tensors;
  for (const auto& [name, value] : model) {
    tensors.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
  }
  tensors.value = [&](const std::string& name) { return model.at(name); };
  MemoryStorage::Objects first;
  for (const int writers : {1, 2, 4, 9}) {
    CAPTURE(writers);
    const int at_once = std::min(writers, 4);
    StaggeredStorage staggered(at_once);
    (void)mh::write_xser(staggered, "out", 7, tensors, {4, 1, writers}, "{}");
    CHECK(staggered.most == at_once);
    first = first.empty() ? staggered.store.objects() : first;
    CHECK(staggered.store.objects() == first);
  }
}

TEST_CASE_FIXTURE(Written, "one rank has everything") {
  (void)write({});
  check();
}

TEST_CASE_FIXTURE(Written, "a tied embedding is the output layer, too, and no weight of its own") {
  model.erase("lm_head.weight");
  config = R"({"tie_word_embeddings": true})";
  (void)write();
  const auto saved = open();
  CHECK(whole_tensor(*saved, "lm_head.weight").equal(model.at("model.embed_tokens.weight")));
  CHECK_FALSE(saved->find("lm_head.weight")->is_weight);
}

TEST_CASE_FIXTURE(Written, "joined queries, keys and values are taken apart") {
  const at::Tensor q = counting({4, 4}, 1), k = counting({4, 4}, 20), v = counting({4, 4}, 40);
  for (int64_t r = 0; r < 2; ++r) {
    put({{"model.layers.0.self_attn.qkv_proj.weight",
          at::cat({q.narrow(0, 2 * r, 2), k.narrow(0, 2 * r, 2), v.narrow(0, 2 * r, 2)})},
         {"model.layers.1.self_attn.qkv_proj.weight_k", k.narrow(0, 2 * r, 2)},
         {"model.layers.0.self_attn.rotary_emb.inv_freq", counting({2}, 0)}},
        r);
  }
  const auto saved = open();
  CHECK(whole_tensor(*saved, "model.layers.0.self_attn.q_proj.weight").equal(q));
  CHECK(whole_tensor(*saved, "model.layers.0.self_attn.k_proj.weight").equal(k));
  CHECK(whole_tensor(*saved, "model.layers.0.self_attn.v_proj.weight").equal(v));
  CHECK(whole_tensor(*saved, "model.layers.1.self_attn.k_proj.weight").equal(k));
  CHECK_FALSE(saved->find("model.layers.0.self_attn.rotary_emb.inv_freq")->is_weight);
}

TEST_CASE_FIXTURE(Written, "files that do not belong together are refused") {
  const std::string file = "out/step_7/model/dp_rank_00_tp_rank_01_pp_rank_01.pt";
  (void)write();
  const std::string names = mh::get_text(store, file, 1 << 20);
  store.remove(file);
  CHECK(refused().starts_with("out/step_7 holds the files of 3 ranks, and their numbers go up to"));
  mh::put_text(store, "out/step_7/model/dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt", names);
  CHECK(refused().find("is not of one tensor- and pipeline-parallel rank") != std::string::npos);
  store.remove("out/step_7/model/dp_rank_00_ep_rank_00_tp_rank_00_pp_rank_00.pt");
  mh::put_text(store, file, names.substr(0, names.size() / 2));
  CHECK(refused().starts_with(file));
  mh::put_text(store, file, names);
  store.remove(file + ".tensors/tensor_3.pt");
  CHECK(refused().find("tensor_3.pt, which is not there") != std::string::npos);
  mh::put_torch_tensor(store, file + ".tensors/tensor_3.pt", counting({3}, 0));
  CHECK(refused().find("on one rank and") != std::string::npos);
}

TEST_CASE_FIXTURE(Written, "tensors that cannot be taken apart or are not everywhere are refused") {
  put({{"model.layers.0.self_attn.qkv_proj.weight", counting({4, 4}, 1)}});
  CHECK(refused().ends_with("qkv_proj.weight\": it has the shape [4, 4]"));
  put({{"model.layers.0.self_attn.qkv_proj.weight_qkv", counting({6, 4}, 1)}});
  CHECK(refused().find("save it without fuse_qkv") != std::string::npos);
  put({{"model.layers.0.mlp.down_proj.weight", counting({4}, 1)}});
  CHECK(refused().ends_with("it has the shape [4]"));
  put(
      {{"model.layers.0.self_attn.q_proj.weight", counting({4, 4}, 1)},
       {"model.layers.0.self_attn.qkv_proj.weight_q", counting({4, 4}, 1)}}
  );
  CHECK(refused().ends_with("there are two of it"));
  put({{"model.norm.weight", counting({4}, 1)}});
  put({}, 1);
  CHECK(refused().ends_with("not every tensor-parallel rank has a part of it"));
}

TEST_CASE_FIXTURE(Written, "models that ranks cannot hold are not written") {
  CHECK(not_written({1, 4}).starts_with("NeuronX Distributed puts a layer or more on each"));
  CHECK(
      not_written({4, 1}).find("down_proj.weight\" of the shape [4, 6] over 4 ranks") !=
      std::string::npos
  );
  model["model.layers.0.self_attn.q_norm.weight"] = counting({4}, 1);
  CHECK(not_written().find("q_norm.weight\" in its Llama") != std::string::npos);
  model = small_llama();
  model.erase("model.layers.1.mlp.up_proj.weight");
  CHECK(not_written().find("joins two tensors in") != std::string::npos);
  CHECK(store.list("out").empty());
}

} // namespace xser_tests
