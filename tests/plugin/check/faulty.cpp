// One of every kind, sound but for one fault: the one that the environment names in MH_FAULT, by
// the test of `plugins check` that must find it, and ":VARIANT" behind it where there are several.
// Faults of the file itself are sources of their own.

#include "../sound_parts.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/conditions.hpp"
#include "megahost/device.hpp"
#include "megahost/error.hpp"
#include "megahost/launcher.hpp"
#include "megahost/layout_search.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/nn/decoder.hpp"
#include "megahost/nn/tokens_before.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/plugin.hpp"
#include "megahost/recompute.hpp"
#include "megahost/storage.hpp"
#include "megahost/strategy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <tuple>

using namespace sound;

namespace {

bool fault(std::string_view name) {
  const char* chosen = std::getenv("MH_FAULT");
  return chosen != nullptr && name == chosen;
}

struct Options {
  double factor = 1;
  int64_t size = 2;
};

class Schedule : public mh::LrSchedule {
public:
  using Config = Options;

  static void fields(mh::Fields<Options>& f) {
    f.add("factor", &Options::factor, fault("descriptor-consistent") ? "" : "of the rate")
        .range(0, 1);
    f.add("size", &Options::size, "of nothing").range(fault("options-roundtrip") ? 3 : 0, 100);
  }

  Schedule(const Options& config, const Args& args)
      : rate_(config.factor * args.lr)
      , end_(args.train_iters) {
    static int instances = 0;
    number_ = fault("build-twice") ? instances++ : 0;
    if (fault("options-fuzz") && config.size > 10) {
      throw std::out_of_range("vector::at");
    }
    if (fault("names-on-errors") && config.size > 10) {
      throw mh::Error("that is too much");
    }
    if (fault("no-stdout")) {
      std::printf("schedule made\n");
    }
  }

  double lr(const mh::Completed& completed) const override {
    if (fault("values-finite:silent") && completed.updates > 250) {
      throw Silent();
    }
    static const double chance = fault("seed-determinism") ? std::random_device()() * 1e-12 : 0;
    if (fault("values-finite") && completed.updates > end_) {
      return rate_ / 0.0;
    }
    return rate_ + number_ + chance + (fault("calls-are-pure") ? calls_++ : 0);
  }

private:
  double rate_;
  int64_t end_;
  int number_;
  mutable int calls_ = 0;
};

class Odd : public mh::Block {
public:
  explicit Odd(std::unique_ptr<mh::Block> inner)
      : inner_(std::move(inner)) {}

  mh::State forward(const mh::State& state, mh::StepContext& context) const override {
    mh::State out = inner_->forward(state, context);
    at::Tensor x = out["hidden"].value;
    if (fault("forward-shape-and-dtype") && x.scalar_type() == at::kBFloat16) {
      x = x.to(at::kFloat);
    }
    if (fault("grad-check")) {
      x = x * 2 - x.detach();
    }
    if (fault("recompute-bit-equal") && at::GradMode::is_enabled()) {
      x = x * 1.5;
    }
    const bool small = context.batch().seq <= 16; // as in all tests but that of layouts
    if (fault("meta-device") && small && x.sum().item().toDouble() > 1e9) {
      x = x * 0.5;
    }
    if (fault("meta-device:operator") && small) {
      x = x + 0 * std::get<0>(x.detach().median(-1, /*keepdim=*/true));
    }
    if (fault("meta-device:values") && small) {
      x = x + 0 * x.detach().nonzero().sum().to(x.scalar_type());
    }
    const bool packed = context.has_array("segments") && context.has_array("positions") &&
                        context.has_array("loss_mask");
    if (fault("meta-device:segments") && small && packed &&
        context.array("segments").max().item<int64_t>() < 0) {
      x = x * 0.5;
    }
    if (fault("layouts-match:host") && !small && x.sum().item().toDouble() > 1e9) {
      x = x * 0.5;
    }
    if (fault("layouts-match") && context.mesh().size(mh::MeshAxis::tp) > 1) {
      x = x * 1.001;
    }
    if (fault("layouts-match:context") && context.mesh().size(mh::MeshAxis::cp) > 1) {
      x = x * 1.001;
    }
    if (fault("layouts-match:mixing") && context.mesh().size(mh::MeshAxis::cp) > 1) {
      x = x + 0.01 * x.mean(0, /*keepdim=*/true);
    }
    if (fault("layouts-match:changing")) {
      static std::atomic<int> calls{0};
      x = x * (1 + 1e-3 * (calls++ % 7));
    }
    if (fault(":shifted")) { // each token's row takes part of the one before it, whoever holds that
      x = x + 0.1 * at::constant_pad_nd(x, {0, 0, 0, 0, 1, 0}).narrow(0, 0, x.size(0));
    }
    if (fault("cached-generation") && context.mode().kv_cache != nullptr &&
        context.batch().seq == 1) {
      x = x * 1.001;
    }
    if (fault("documents-apart") && small && context.has_array("segments")) {
      const mh::AllTokens all(out["hidden"].dims.back()); // says that it mixes, not what
      const at::Tensor whole = all.gather(x, context);
      x = all.own(whole + 0.01 * whole.mean(0, /*keepdim=*/true), context);
    }
    if (fault("documents-apart:later") && small && context.has_array("segments")) {
      const mh::AllTokens all(out["hidden"].dims.back());
      const at::Tensor whole = all.gather(x, context);
      const at::Tensor next =
          at::constant_pad_nd(whole, {0, 0, 0, 0, 0, 1}).narrow(0, 1, whole.size(0));
      x = all.own(whole + 0.1 * next, context);
    }
    if (fault("cached-generation:changing") && small && !at::GradMode::is_enabled() &&
        context.mode().kv_cache == nullptr && !context.has_array("segments")) {
      static std::atomic<int> calls{0};
      x = x * (1 + 1e-3 * (calls++ % 7));
    }
    return out.with("hidden", x);
  }

  bool reads_cache() const override { return inner_->reads_cache(); }

private:
  std::unique_ptr<mh::Block> inner_;
};

class Model : public mh::Decoder {
public:
  struct Config : mh::DecoderConfig {};

  static void fields(mh::Fields<Config>& f) { mh::decoder_fields(f); }

  Model(const Config& config, const Args& args)
      : Decoder(config, args) {
    if (fault(":sizes") && config.hidden % 64 != 0) {
      throw mh::Error("model.hidden is no multiple of 64", "choose one");
    }
  }

  std::vector<std::string> outputs() const override {
    auto names = Decoder::outputs();
    if (fault("forward-shape-and-dtype:outputs")) {
      names.emplace_back("absent");
    }
    return names;
  }

  /// Every parameter by its own name.
  std::vector<mh::HfTensor> hugging_face() const override {
    std::vector<mh::HfTensor> map;
    const auto add = [&map](const std::string& name) {
      const bool wrong = fault("hugging-face-names") && name == "layers.0.mlp.up.weight";
      map.push_back({"theirs." + name, {wrong ? "layers.0.mlp.upp.weight" : name}});
    };
    add("embedding.word.weight");
    add("embedding.position.weight");
    for (int64_t i = 0; i < layers(); ++i) {
      for (const char* part :
           {"attention_norm",
            "attention.q",
            "attention.k",
            "attention.v",
            "attention.out",
            "mlp_norm",
            "mlp.up",
            "mlp.down"}) {
        add("layers." + std::to_string(i) + "." + part + ".weight");
        add("layers." + std::to_string(i) + "." + part + ".bias");
      }
    }
    add("head.norm.weight");
    add("head.norm.bias");
    return map;
  }

  static mh::HfMapping hugging_face_config() {
    const bool faulty = fault("hugging-face-config");
    return {
        .models = {
            {.model_type = "faulty",
             .architecture = "FaultyForCausalLM",
             .keys = {
                 {.key = "n_layer", .field = "layers", .absent = 12},
                 {.key = "act",
                  .field = "activation",
                  .absent = "tanh",
                  .words = {{"tanh", "gelu_tanh"}, {"erf", "gelu"}}},
                 {.key = "eps", .field = faulty ? "epsilon" : "norm_eps", .absent = 1e-5}}}}};
  }

  std::unique_ptr<mh::Block> layer(int64_t index, mh::Builder& builder) const override {
    auto made = std::make_unique<Odd>(Decoder::layer(index, builder));
    if (fault("initial-values") && builder.args().seq <= 16) { // not in the test of layouts
      const at::Tensor& value = builder.shared("layers.0.mlp.up.weight").value;
      if (value.is_cpu()) { // past LibTorch, which counts writes, and not where the builder looks
        auto* end = static_cast<char*>(value.mutable_data_ptr()) + value.nbytes();
        std::memset(end - value.element_size(), 0, static_cast<size_t>(value.element_size()));
      }
    }
    return made;
  }
};

class Descent : public Plain<mh::Optimizer> {
public:
  Descent(const None&, const Args&) {}

  std::vector<mh::StateSpec> state() const override { return {}; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    const double count = fault("state-reproducible") ? 1.0 / (1 + calls_++) : 1.0;
    const double sign = fault("lowers-a-quadratic") ? -1 : 1;
    for (mh::UpdateItem& item : items) {
      at::Tensor step = item.gradient;
      if (fault("shards-update-alike")) { // as LAMB would, had ranks no part of a tensor
        step = step * (item.weight.norm() / (step.norm() + 1e-6));
      }
      if (fault("meta-device:update") && step.sum().item().toDouble() > 1e9) {
        step = step * 0.5;
      }
      // LibTorch has no Meta forms of these: they are ours.
      const at::Tensor sound = step.isfinite().logical_and(item.weight.isfinite());
      item.weight.sub_(at::where(sound, step, 0), sign * count * update.lr);
    }
  }

private:
  mutable int calls_ = 0;
};

class Bytes : public ByteIds {
public:
  Bytes(const None&, const Args&) {}

  std::optional<int32_t> end_of_document() const override {
    return fault("ids-in-vocabulary") ? 256 : 255;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    const std::string text = ByteIds::decode(ids);
    return fault("decode-encode") || fault(":lossy") ? text.substr(0, 3) : text;
  }

  bool lossy() const override { return fault(":lossy"); }
};

class Zeros : public OneDocument {
public:
  using OneDocument::OneDocument;

  static std::vector<mh::ArraySpec> arrays(const None&, const Args& args) {
    auto arrays = mh::decoder_arrays(args.seq_length);
    if (fault("arrays-as-declared")) {
      arrays.push_back({"segments", mh::ArraySpec::Type::int64, mh::axis::seq, args.seq_length});
    }
    return arrays;
  }
};

class Keeps : public Plain<mh::RecomputePolicy> {
public:
  static bool recomputes_blocks() { return !fault("recompute-bit-equal:blocks"); }

  Keeps(const None&, const Args&) {}

  mh::Keep keep(int64_t layer) const override {
    return layer % 2 == 0 ? mh::Keep{.redo = {"attention", "mlp"}} : mh::Keep{.everything = false};
  }
};

class Placed : public mh::Strategy {
public:
  struct Config {
    bool mark = false;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("mark", &Config::mark, "is about no axis of ranks");
  }

  static std::vector<mh::Table> searched(const mh::SearchFacts&) {
    if (fault("conditions-known:thrown")) {
      (void)std::string("short").at(99);
    }
    const char* key = fault("conditions-known:searched") ? "colour" : "mark";
    const mh::Value yes = fault("conditions-known:value") ? mh::Value("yes") : mh::Value(true);
    return {{{key, false}}, {{key, yes}}};
  }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value&) {
    return fault("conditions-known:changes") ? std::vector<mh::Table>{{{"colour", true}}}
                                             : std::vector<mh::Table>{};
  }

  static void conditions(mh::Conditions& c) {
    const char* degree = fault("conditions-known") ? "parallel.tensr" : "parallel.tensor";
    c.divides("model.heads", degree, "heads are split");
  }

  Placed(const Config&, const Args&) {}

  void rules(mh::Rules& rules) const override {
    rules.features.push_back({mh::axis::mlp, mh::MeshAxis::tp});
    if (fault("one-rank-unchanged")) {
      rules.features.push_back({mh::axis::mlp, mh::MeshAxis::tp});
    }
  }
};

class AllForward : public Plain<mh::PipelineSchedule> {
public:
  AllForward(const None&, const Args& args)
      : args_(args) {
    if (args.virtual_stages > 1) {
      throw mh::Error("parallel.virtual_stages is not 1", "set it to 1");
    }
  }

  std::vector<mh::Instruction> instructions(int64_t stage) const override {
    using Op = mh::Instruction::Op;
    std::vector<mh::Instruction> list;
    const auto add = [&](bool wanted, Op op, int64_t m) {
      if (wanted) {
        list.push_back({op, 0, static_cast<int32_t>(m)});
      }
    };
    for (int64_t m = 0; m < args_.microbatches; ++m) {
      add(stage > 0, Op::receive_forward, m);
      add(true, Op::forward, m);
      add(stage + 1 < args_.stages, Op::send_forward, m);
    }
    for (int64_t m = 0; m < args_.microbatches; ++m) {
      add(stage + 1 < args_.stages, Op::receive_backward, m);
      add(true, Op::backward, m);
      add(stage > (fault("instructions-complete") ? 1 : 0), Op::send_backward, m);
    }
    return list;
  }

private:
  Args args_;
};

class Somewhere : public Plain<mh::Launcher> {
public:
  Somewhere(const None&, const Args&) {}

  std::optional<mh::World> detect() const override {
    if (std::getenv("MH_ALONE") != nullptr) { // where a test runs the program
      return std::nullopt;
    }
    mh::World world{.rank = 1, .size = 4, .local_rank = 1, .local_size = 4, .master_port = 29500};
    world.rank = fault("world-consistent") ? 4 : 1;
    world.master_port = fault("world-consistent:port") ? 0 : 29500;
    return world;
  }
};

class Nowhere : public Plain<mh::Device> {
public:
  Nowhere(const None&, const Args&) {}

  at::Device device() const override { return fault("holds-tensors") ? at::kMeta : at::kCPU; }

  std::string summary() const override { return "a processor"; }

  double peak_flops(at::ScalarType) const override { return 0; }

  int64_t memory() const override { return 0; }
};

/// A checkpoint is one object of text, so that it is there whole or not at all.
class OneObject : public Plain<mh::CheckpointFormat> {
public:
  OneObject(const None&, const Args& args)
      : storage_(args.storage) {}

  std::string about() const override { return "folder of texts"; }

  std::string mark() const override { return "step-N"; }

  bool detect(const mh::Path& folder) const override {
    return fault("checkpoint-round-trip") || !all(folder).empty();
  }

  std::optional<std::vector<int64_t>> steps(const mh::Path& folder) const override {
    return all(folder);
  }

  std::unique_ptr<mh::CheckpointReader>
  open(const mh::Path& folder, std::optional<int64_t> step) const override {
    return std::make_unique<Reader>(storage_, object(folder, step.value()));
  }

  void write(const mh::Path& folder, const mh::CheckpointContents& contents, const mh::Ranks&)
      const override {
    std::ostringstream text;
    text.precision(17);
    for (const mh::Slice& slice : contents.slices) {
      const at::Tensor values = slice.local.to(at::kDouble).contiguous();
      text << slice.name << ' ' << static_cast<int>(slice.local.scalar_type()) << ' '
           << slice.offset.size();
      for (const auto& sizes : {slice.global_shape, slice.offset, slice.local.sizes().vec()}) {
        for (const int64_t size : sizes) {
          text << ' ' << size;
        }
      }
      for (int64_t i = 0; i < values.numel(); ++i) {
        text << ' ' << values.data_ptr<double>()[i];
      }
      text << '\n';
    }
    if (fault("checkpoint-crash")) { // what was there goes before the new one is there
      storage_.remove_all(folder);
    }
    mh::put_text(storage_, object(folder, contents.step), text.str());
  }

private:
  class Reader : public mh::CheckpointReader {
  public:
    Reader(mh::Storage& storage, mh::Path path)
        : path_(std::move(path)) {
      std::istringstream text(mh::get_text(storage, path_, 1 << 20));
      for (std::string line; std::getline(text, line);) {
        add(line);
      }
      for (const auto& [name, whole] : wholes_) {
        tensors_.push_back({name, whole.scalar_type(), whole.sizes().vec()});
      }
    }

    mh::Path path() const override { return path_; }

    const std::vector<mh::CheckpointTensor>& tensors() const override { return tensors_; }

    void read(std::span<const mh::Slice> slices) override {
      for (const mh::Slice& slice : slices) {
        slice.local.copy_(box(slice.name, slice.offset, slice.local.sizes()));
      }
    }

  private:
    at::Tensor box(const std::string& name, at::IntArrayRef offset, at::IntArrayRef sizes) const {
      at::Tensor part = wholes_.at(name);
      for (size_t d = 0; d < sizes.size(); ++d) {
        part = part.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
      }
      return part;
    }

    void add(const std::string& line) {
      std::istringstream text(line);
      std::string name;
      int dtype = 0;
      size_t dims = 0;
      text >> name >> dtype >> dims;
      std::vector<int64_t> shape(dims), offset(dims), sizes(dims);
      for (auto* list : {&shape, &offset, &sizes}) {
        for (int64_t& size : *list) {
          text >> size;
        }
      }
      const auto type = static_cast<at::ScalarType>(dtype);
      wholes_.try_emplace(name, at::zeros(shape, at::TensorOptions(type)));
      const at::Tensor values = at::zeros(sizes, at::TensorOptions(at::kDouble));
      for (int64_t i = 0; i < values.numel(); ++i) {
        text >> values.data_ptr<double>()[i];
      }
      box(name, offset, sizes).copy_(values);
    }

    mh::Path path_;
    std::map<std::string, at::Tensor> wholes_;
    std::vector<mh::CheckpointTensor> tensors_;
  };

  static mh::Path object(const mh::Path& folder, int64_t step) {
    return folder / ("step-" + std::to_string(step));
  }

  /// Newest first.
  std::vector<int64_t> all(const mh::Path& folder) const {
    std::vector<int64_t> steps;
    for (const auto& [name, is_prefix] : storage_.list(folder)) {
      if (!is_prefix && name.starts_with("step-")) {
        steps.push_back(std::atoll(name.c_str() + 5));
      }
    }
    std::sort(steps.rbegin(), steps.rend());
    return steps;
  }

  mh::Storage& storage_;
};

/// Objects are files below a folder.
class Shelf : public Plain<mh::Storage> {
public:
  Shelf(const None&, const Args&) {}

  std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override {
    return files_.put(file(path), fault("objects-kept:refuse") ? Existing::replace : existing);
  }

  std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override {
    return files_.get(file(path));
  }

  bool contains(const mh::Path& path) override { return files_.contains(file(path)); }

  std::vector<Item> list(const mh::Path& prefix) override {
    return fault("objects-kept") ? std::vector<Item>() : files_.list(file(prefix));
  }

  void remove(const mh::Path& path) override { files_.remove(file(path)); }

  void remove_all(const mh::Path& prefix) override { files_.remove_all(file(prefix)); }

  void remove_unfinished(const mh::Path& prefix) override {
    files_.remove_unfinished(file(prefix));
  }

private:
  static mh::Path file(const mh::Path& path) {
    const mh::Path root = "/tmp/megahost-faulty-" + std::to_string(getpid());
    return root / path.native().substr(std::string_view("shelf://").size());
  }

  mh::Storage& files_ = mh::local_storage();
};

/// Reads a file that no recipe has named.
class OfFile : public OneDocument {
public:
  struct Config {
    std::string file;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("file", &Config::file, "ids, a document on each line").path().required();
  }

  OfFile(const Config& config, const Args& args)
      : OneDocument(None{}, args) {
    if (access(config.file.c_str(), R_OK) != 0) {
      throw mh::Error("cannot read the file " + config.file, "name another", mh::exit_code::data);
    }
  }
};

void add_all(mh::Registry& r) {
  static int calls = 0;
  const std::string more = fault("double-register") && calls++ > 0 ? "-again" : "";
  if (fault("scan-under-100ms")) {
    usleep(150'000);
  }
  r.add<Schedule>("schedule" + more, "a rate");
  r.add<Descent>("descent", "gradient descent"); // tested before a model has brought our operators
  r.add<Model>("model", "a decoder");
  r.add<Bytes>("bytes", "bytes");
  r.add<Zeros>("zeros", "zeros");
  r.add<Keeps>("keeps", "every other block");
  r.add<Placed>("placed", "mlp over tp");
  r.add<AllForward>("all-forward", "all forward, then all backward");
  r.add<Somewhere>("somewhere", "rank 1 of 4");
  r.add<Nowhere>("nowhere", "the CPU");
  r.add<OneObject>("one-object", "texts");
  r.add<Shelf>("shelf", "objects below a folder");
  if (fault("offers-tried")) {
    r.add<OfFile>("of-file", "documents of ids");
  }
}

} // namespace

MH_PLUGIN("org.megahost.faulty", "0.1.0", "One of every kind", add_all)
