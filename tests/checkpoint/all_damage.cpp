// Every bit of small checkpoints flipped, and every length that their files can be cut to. One of our
// own of 1 MB: all are refused with the file's name. Other programs' have checksums of tensors; of the
// names and numbers in their index a changed one is refused, or makes other tensors.

#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/hf_export.hpp"
#include "core/foreign/dcp.hpp"
#include "core/foreign/megatron.hpp"
#include "core/foreign/xser.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/dcp_samples.hpp"

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace all_damage_tests {

using namespace mh::test;
using mh::Path;

namespace {

/// Objects of which each read sees the bytes as they are at that moment.
class Changing final : public mh::Storage {
public:
  mh::MemoryStorage all;

  class File final : public mh::ReadFile {
  public:
    explicit File(const std::string& bytes)
        : bytes_(bytes) {}

    [[nodiscard]] uint64_t size() const override { return bytes_.size(); }

    [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
      const size_t begin = std::min<uint64_t>(offset, bytes_.size());
      const size_t count = std::min(into.size(), bytes_.size() - begin);
      std::copy_n(std::as_bytes(std::span(bytes_)).data() + begin, count, into.data());
      return count;
    }

  private:
    const std::string& bytes_;
  };

  [[nodiscard]] std::unique_ptr<mh::Upload> put(const Path& path, Existing existing) override {
    return all.put(path, existing);
  }

  [[nodiscard]] std::unique_ptr<mh::ReadFile> get(const Path& path) override {
    return all.contains(path) ? std::make_unique<File>(all.contents(path)) : all.get(path);
  }

  [[nodiscard]] bool contains(const Path& path) override { return all.contains(path); }

  [[nodiscard]] std::vector<Item> list(const Path& prefix) override { return all.list(prefix); }

  void remove(const Path& path) override { all.remove(path); }

  void remove_all(const Path& prefix) override { all.remove_all(prefix); }

  void remove_unfinished(const Path& prefix) override { all.remove_unfinished(prefix); }
};

using Values = std::map<std::string, at::Tensor>;
using ReadAll = std::function<Values()>;

/// The number of damages by what reading does.
struct Outcomes {
  size_t refused = 0;
  size_t unnamed = 0; ///< refused without the file's name
  size_t same = 0;    ///< all is read as it was: the bit lies in what no one reads
  size_t others = 0;  ///< tensors of other names, shapes or dtypes, which no model takes
  size_t changed = 0; ///< other values under their names
};

bool same_outlines(const Values& a, const Values& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.sizes() == other.second.sizes() &&
           one.second.scalar_type() == other.second.scalar_type();
  });
}

void look(const ReadAll& read, const Values& good, const std::string& file, Outcomes& ret_found) {
  try {
    const Values values = read();
    const bool fits = same_outlines(values, good);
    const bool is_same = fits && std::ranges::equal(values, good, [](const auto& a, const auto& b) {
                           return a.second.equal(b.second);
                         });
    ++(is_same ? ret_found.same : fits ? ret_found.changed : ret_found.others);
  } catch (const mh::Error& error) {
    const bool is_named = std::string_view(error.what()).find(file) != std::string_view::npos;
    ++(is_named ? ret_found.refused : ret_found.unnamed);
  }
}

/// Flips each bit from `begin` to `end` of a file.
Outcomes flip_all(
    Changing& store,
    const Path& file,
    const Values& good,
    const ReadAll& read,
    const std::string& named,
    size_t begin = 0,
    size_t end = std::string::npos
) {
  Outcomes found;
  std::string& bytes = store.all.contents(file);
  for (size_t at = begin; at < std::min(end, bytes.size()); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      look(read, good, named, found);
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    }
  }
  return found;
}

/// Cuts a file to each length below its own.
Outcomes cut_all(
    Changing& store,
    const Path& file,
    const Values& good,
    const ReadAll& read,
    const std::string& named
) {
  Outcomes found;
  std::string& bytes = store.all.contents(file);
  const std::string whole = bytes;
  while (!bytes.empty()) {
    bytes.pop_back();
    look(read, good, named, found);
  }
  bytes = whole;
  return found;
}

Values values_of(mh::CheckpointReader& saved) {
  Values values;
  for (const mh::CheckpointTensor& tensor : saved.tensors()) {
    values[tensor.name] = whole_tensor(saved, tensor.name);
  }
  return values;
}

void say(const std::string& file, const std::string& how, const Outcomes& found) {
  MESSAGE(
      file,
      ", ",
      how,
      ": ",
      found.refused,
      " refused, ",
      found.same,
      " read as it was, ",
      found.others,
      " with other tensors, ",
      found.changed,
      " with other values"
  );
}

/// A Llama of one layer by Hugging Face's names: 4 kB.
mh::OutlinedTensors small_llama(std::shared_ptr<Values> values = std::make_shared<Values>()) {
  Values& all = *values;
  all["model.embed_tokens.weight"] = counting({8, 8}, 1);
  all["lm_head.weight"] = counting({8, 8}, 100);
  all["model.norm.weight"] = counting({8}, 200, at::kBFloat16);
  const std::string layer = "model.layers.0.";
  all[layer + "input_layernorm.weight"] = counting({8}, 300);
  all[layer + "post_attention_layernorm.weight"] = counting({8}, 310);
  all[layer + "self_attn.q_proj.weight"] = counting({8, 8}, 400);
  all[layer + "self_attn.k_proj.weight"] = counting({8, 8}, 500);
  all[layer + "self_attn.v_proj.weight"] = counting({8, 8}, 600);
  all[layer + "self_attn.o_proj.weight"] = counting({8, 8}, 700);
  all[layer + "mlp.gate_proj.weight"] = counting({8, 8}, 800);
  all[layer + "mlp.up_proj.weight"] = counting({8, 8}, 900);
  all[layer + "mlp.down_proj.weight"] = counting({8, 8}, 1000);
  mh::OutlinedTensors tensors;
  for (const auto& [name, value] : all) {
    tensors.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
  }
  tensors.value = [values](const std::string& name) { return values->at(name); };
  return tensors;
}

/// A Megatron GPT's tensors of two layers, which are stacked.
mh::OutlinedTensors small_gpt() {
  auto values = std::make_shared<Values>();
  for (const char* layer : {"decoder.layers.0.", "decoder.layers.1."}) {
    const double start = layer[15] == '0' ? 1 : 1000;
    (*values)[std::string(layer) + "self_attention.linear_proj.weight"] = counting({8, 8}, start);
    (*values)[std::string(layer) + "mlp.linear_fc2.weight"] = counting({8, 8}, start + 100);
  }
  (*values)["embedding.word_embeddings.weight"] = counting({8, 8}, 5000);
  mh::OutlinedTensors tensors;
  for (const auto& [name, value] : *values) {
    tensors.outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
  }
  tensors.value = [values](const std::string& name) { return values->at(name); };
  return tensors;
}

/// The name that a refusal has: of an index without a checksum that of the folder, in which the file that
/// it then leads to may be named.
std::string named_by(const Path& file) {
  return file.filename() == mh::kDcpMetadataName ? file.parent_path() : file;
}

/// Flips and cuts all files below a prefix; `judge` gets each one's name and outcomes.
void damage_all(
    Changing& store,
    const Path& prefix,
    const ReadAll& read,
    const std::function<void(const std::string& file, const Outcomes& flips, const Outcomes& cuts)>&
        judge
) {
  const Values good = read();
  REQUIRE_FALSE(good.empty());
  std::vector<std::string> files;
  for (const auto& [name, bytes] : store.all.objects()) {
    if (name.starts_with(prefix.string())) {
      files.push_back(name);
    }
  }
  for (const std::string& file : files) {
    CAPTURE(file);
    const Outcomes flips = flip_all(store, file, good, read, named_by(file));
    const Outcomes cuts = cut_all(store, file, good, read, named_by(file));
    say(file, "flipped", flips);
    say(file, "cut", cuts);
    judge(file, flips, cuts);
  }
  CHECK(same_outlines(read(), good));
}

/// 64 tensors of 16 KiB.
struct Native {
  static constexpr int64_t kTensors = 64, kNumbers = 4096;

  Changing store;
  std::vector<mh::Slice> slices;
  Path step, shard, manifest;
  uint64_t header = 0;

  Native() {
    for (int64_t i = 0; i < kTensors; ++i) {
      const std::string name = "t" + std::to_string(100 + i);
      slices.push_back(whole(name, counting({kNumbers}, static_cast<double>(i * kNumbers))));
    }
    mh::StepFolder folder(store, "run", mh::kManifestName, [](const std::string&) {});
    mh::write_checkpoint(store, folder, 1, {{"samples", 8}}, slices);
    step = folder.path(1);
    manifest = step / mh::kManifestName;
    for (const auto& item : store.list(step)) {
      shard = item.name.ends_with(".safetensors") ? step / item.name : shard;
    }
    header = mh::TensorFile(store.get(shard), shard).header().header.size();
  }

  [[nodiscard]] Values verified() {
    mh::Checkpoint(store, step).require_whole();
    return {{"all", slices.front().local}};
  }
};

void check_all_refused(const Outcomes& found, size_t count) {
  CHECK(found.refused == count);
  CHECK(found.unnamed + found.same + found.others + found.changed == 0);
}

} // namespace

TEST_CASE_FIXTURE(Native, "native: every bit of tensors, headers and manifest") {
  mh::Checkpoint saved(store, step);
  const mh::TensorFile file(store.get(shard), shard);
  size_t seen = 0;
  for (const mh::TensorInfo& info : file.header().tensors) {
    const auto read = [&] { return Values{{info.name, whole_tensor(saved, info.name)}}; };
    const Values good = read();
    check_all_refused(
        flip_all(store, shard, good, read, shard, info.offset, info.offset + info.bytes),
        8 * info.bytes
    );
    seen += info.bytes;
  }
  CHECK(seen == kTensors * kNumbers * 4);
  CHECK(seen + header == store.all.contents(shard).size());
  const auto read = [&] { return verified(); };
  const Values good = read();
  check_all_refused(flip_all(store, shard, good, read, shard, 0, header), 8 * header);
  check_all_refused(
      flip_all(store, manifest, good, read, manifest), 8 * store.all.contents(manifest).size()
  );
  (void)verified();
}

TEST_CASE_FIXTURE(Native, "native: every length") {
  const auto read = [&] { return verified(); };
  const Values good = read();
  for (const Path& file : {shard, manifest}) {
    check_all_refused(cut_all(store, file, good, read, file), store.all.contents(file).size());
  }
}

/// `.metadata` as megahost writes it, and as PyTorch does.
constexpr std::array<bool, 2> kChecksums{true, false};

void set_checksum(Changing& store, const Path& metadata, bool is_there) {
  std::string& text = store.all.contents(metadata);
  text = is_there ? text : without_checksum(text);
}

void check_dcp(
    const std::string& file, const Outcomes& flips, const Outcomes& cuts, bool has_checksum
) {
  CHECK(flips.unnamed + cuts.unnamed == 0);
  CHECK(cuts.same + cuts.changed + cuts.others == 0);
  CHECK(flips.changed == 0);
  if (has_checksum || !file.ends_with(mh::kDcpMetadataName)) {
    CHECK(flips.others == 0);
  }
}

TEST_CASE("torch.distributed.checkpoint: tensors have checksums, .metadata of megahost has one") {
  for (const bool has_checksum : kChecksums) {
    CAPTURE(has_checksum);
    Changing store;
    (void)mh::write_dcp_tensors(store, "saved", small_llama(), R"({"step": 3})");
    set_checksum(store, "saved/.metadata", has_checksum);
    const auto read = [&] {
      mh::DcpFolder saved(store, "saved");
      Values values = values_of(saved);
      values[saved.state()] = at::empty({0});
      return values;
    };
    const Path damaged = has_checksum ? "saved" : "saved/.metadata"; // the rest is the same
    damage_all(store, damaged, read, [&](const auto& file, const auto& flips, const auto& cuts) {
      check_dcp(file, flips, cuts, has_checksum);
    });
  }
}

TEST_CASE("torch_dist: tensors and common.pt have checksums, .metadata of megahost has one") {
  for (const bool has_checksum : kChecksums) {
    CAPTURE(has_checksum);
    Changing store;
    (void)mh::write_torch_dist(store, "saved", 3, small_gpt());
    const Path folder = "saved/iter_0000003";
    set_checksum(store, folder / mh::kDcpMetadataName, has_checksum);
    const auto read = [&] {
      const auto saved = mh::open_torch_dist(store, folder);
      Values values = values_of(*saved);
      values[saved->arguments()] = at::empty({0});
      return values;
    };
    const Path damaged = has_checksum ? folder : folder / mh::kDcpMetadataName;
    damage_all(store, damaged, read, [&](const auto& file, const auto& flips, const auto& cuts) {
      if (!file.ends_with(mh::kTorchDistMark)) { // its name alone is looked at
        check_dcp(file, flips, cuts, has_checksum);
      }
    });
  }
}

TEST_CASE("NeuronX Distributed: all that is read has checksums") {
  Changing store;
  (void)mh::write_xser(store, "saved", 3, small_llama(), {2, 1}, "{}");
  const auto read = [&] {
    const auto saved = mh::open_xser(store, "saved/step_3");
    return values_of(*saved);
  };
  damage_all(
      store,
      "saved/step_3/model/",
      read,
      [](const auto& file, const auto& flips, const auto& cuts) {
        CHECK(flips.changed + flips.others == 0);
        if (file.ends_with(".info.pt")) {
          return; // which is for torch_xla alone
        }
        CHECK(flips.unnamed + cuts.unnamed == 0);
        CHECK(cuts.same + cuts.changed + cuts.others == 0);
      }
  );
}

TEST_CASE("Hugging Face: values have no checksum, lengths are known") {
  Changing store;
  mh::OutlinedTensors tensors = small_llama();
  tensors.file_bytes = 2048;
  mh::write_hf_weights(store, "saved", tensors);
  mh::put_text(store, "saved/config.json", R"({"model_type": "llama"})");
  const auto read = [&] {
    mh::HfFolder saved(store, "saved");
    return values_of(saved);
  };
  damage_all(store, "saved/model", read, [](const auto& file, const auto& flips, const auto& cuts) {
    CHECK(flips.unnamed + cuts.unnamed == 0);
    CHECK(cuts.same + cuts.changed + cuts.others == 0);
    CHECK((flips.changed > 0) == file.ends_with(".safetensors")); // so it is said in the guide
  });
}

} // namespace all_damage_tests
