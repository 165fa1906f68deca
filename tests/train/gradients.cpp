// Gradients over ranks: buckets, and shards of `zero`, against plain sums of whole
// leaves.

#include "megahost/gradients.hpp"

#include "core/memory/counting_allocator.hpp"
#include "core/mesh/silent.hpp"
#include "core/mesh/threads.hpp"
#include "core/model/deferred_values.hpp"
#include "core/step/owned.hpp"
#include "megahost/model.hpp"
#include "megahost/training_loop.hpp"
#include "tests/dist/whole.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace mh;

namespace {

constexpr int64_t kSeq = 8;
constexpr int64_t kBatch = 4;
constexpr int64_t kMicrobatches = 2;

DecoderConfig config() {
  DecoderConfig c = small_gpt(3);
  c.kv_heads = 2;
  c.ffn_hidden = 40;
  c.dropout = c.attention_dropout = 0;
  c.tied = true;
  return c;
}

/// One backward pass of a microbatch; its gradients are added to the model's.
void pass(const Mesh& mesh, const Rules& rules, Model& model, int64_t microbatch) {
  const Batch batch = batch_of(mesh.group(MeshAxis::dp), kSeq, kBatch, microbatch);
  StepContext context(mesh, rules, batch);
  (void)model.forward(context);
  backward(context.losses().at(0).sum / static_cast<double>(kSeq * kBatch * kMicrobatches));
}

struct Result : Whole {
  std::map<std::string, at::Tensor> written; // how many ranks of dp gave each element
  std::vector<std::string> trace;            // trace of rank 0, in the second step
};

void collect(Result& result, const Piece& piece, const at::Tensor& gradient) {
  auto& whole = result.gradients[piece.name];
  auto& written = result.written[piece.name];
  if (!whole.defined()) {
    whole = at::zeros(piece.global_shape, at::kDouble);
    written = at::zeros(piece.global_shape, at::kDouble);
  }
  slice_of(whole, piece).copy_(gradient);
  slice_of(written, piece).add_(1);
}

Model make_model(
    const Mesh& mesh,
    const Rules& rules,
    at::ScalarType dtype = at::kDouble,
    const DecoderConfig& config = ::config()
) {
  const Decoder decoder(config, {.vocab = kWords, .seq_length = kSeq});
  return Model(
      decoder,
      {.mesh = &mesh,
       .rules = &rules,
       .dtype = dtype,
       .seed = 3,
       .seq = kSeq,
       .microbatch = kBatch,
       .vocab_multiple = 4}
  );
}

/// Two steps; what the second one made, when buckets know their uses.
Result bucketed(const MeshShape& shape, bool sequence, const GradientOptions& options) {
  Result result;
  std::mutex mutex;
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(sequence);
    Model model = make_model(mesh, rules);
    Gradients gradients(model.parameters(), mesh, options);
    std::vector<std::string> trace;
    gradients.trace = [&](const std::string& event) { trace.push_back(event); };
    for (int step = 0; step < 2; ++step) {
      trace.clear();
      gradients.begin(kMicrobatches);
      gradients.clear();
      for (int64_t m = 0; m < kMicrobatches; ++m) {
        pass(mesh, rules, model, m);
        gradients.backward_done();
      }
      gradients.finish();
    }
    const double norm = gradients.squared_norm().item().toDouble();
    const std::scoped_lock lock(mutex);
    result.squared_norm = norm;
    if (mesh.rank() == 0) {
      result.trace = trace;
    }
    for (const auto& owned : gradients.owned()) {
      collect(result, owned.piece, owned.gradient);
    }
  });
  return result;
}

/// One rank, and nothing but its backward passes.
Result plain() {
  Result result;
  const Mesh mesh;
  const Rules rules = rules_of(false);
  Model model = make_model(mesh, rules);
  Gradients gradients(model.parameters(), mesh);
  for (int64_t m = 0; m < kMicrobatches; ++m) {
    pass(mesh, rules, model, m);
  }
  for (const auto& parameter : model.parameters().all()) {
    for (const auto& piece : parameter.pieces) {
      const at::Tensor gradient = parameter.view(parameter.main_grad, piece);
      result.squared_norm += gradient.square().sum().item().toDouble();
      collect(result, piece, gradient);
    }
  }
  return result;
}

void check_each_once(const Result& result, int64_t times) {
  for (const auto& [name, count] : result.written) {
    CAPTURE(name);
    CHECK(count.min().item().toDouble() == static_cast<double>(times));
    CHECK(count.max().item().toDouble() == static_cast<double>(times));
  }
}

} // namespace

TEST_CASE("buckets give the sums of whole leaves") {
  const Result one = plain();
  compare(one, bucketed({.dp = 2}, false, {.bucket = 1000}));
  compare(one, bucketed({.dp = 2}, false, {.bucket = 1000, .overlap = false}));
  compare(one, bucketed({.dp = 2, .tp = 2}, true, {.bucket = 1000}));
  compare(one, bucketed({.tp = 4}, true, {.bucket = 1000})); // two ranks share a key head
}

TEST_CASE("the sums of a step are taken once, however often they are asked for") {
  std::vector<double> norms;
  std::mutex mutex;
  run_ranks({.dp = 2}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    Model model = make_model(mesh, rules);
    Gradients gradients(model.parameters(), mesh);
    for (int step = 0; step < 2; ++step) {
      gradients.begin(/*microbatches=*/1);
      gradients.clear();
      pass(mesh, rules, model, 0);
      for (int asked = 0; asked < 2; ++asked) {
        gradients.finish();
        const double norm = gradients.squared_norm().item().toDouble();
        const std::scoped_lock lock(mutex);
        norms.push_back(norm);
      }
    }
  });
  REQUIRE(norms.size() == 8);
  CHECK(norms.front() > 0);
  CHECK(std::count(norms.begin(), norms.end(), norms.front()) == 8);
}

namespace {

class OwnDescent : public Optimizer {
public:
  [[nodiscard]] std::vector<StateSpec> state() const override { return {}; }

  void update(std::span<UpdateItem> items, const Update& update) const override {
    for (auto& item : items) {
      item.weight.sub_(item.gradient * (update.lr * update.gradient_scale));
    }
  }
};

/// A model in a loop of one's own.
struct Trained {
  Trained(const Mesh& mesh, const Rules& rules, int64_t zero, const Optimizer& optimizer)
      : mesh(mesh)
      , rules(rules)
      , model(make_model(mesh, rules))
      , gradients(model.parameters(), mesh, {.zero = zero, .bucket = 1000})
      , weights(gradients, optimizer) {}

  void run(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      gradients.begin(kMicrobatches);
      for (int64_t m = 0; m < kMicrobatches; ++m) {
        pass(mesh, rules, model, m);
        gradients.backward_done();
      }
      gradients.finish(); // to clip
      const double norm = std::sqrt(gradients.squared_norm().item().toDouble());
      weights.update({.step = step, .lr = 0.1, .gradient_scale = std::min(1.0, 0.5 / norm)});
    }
    gradients.wait_for_all();
  }

  const Mesh& mesh;
  const Rules& rules;
  Model model;
  Gradients gradients;
  TrainedWeights weights;
};

/// Values after three steps of a loop of one's own, of two microbatches each. With a folder the
/// second step is saved, and the third is made by another model, which loads that.
std::map<std::string, at::Tensor>
own_loop(const MeshShape& shape, int64_t zero, const std::filesystem::path& folder = {}) {
  std::map<std::string, at::Tensor> values;
  std::mutex mutex;
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    const OwnDescent descent;
    Trained trained(mesh, rules, zero, descent);
    trained.run(1, folder.empty() ? 3 : 2);
    std::optional<Trained> resumed;
    if (!folder.empty()) {
      trained.weights.save(folder, 2);
      resumed.emplace(mesh, rules, zero, descent);
      CHECK(resumed->weights.load(folder) == 2);
      resumed->run(3, 3);
    }
    const std::scoped_lock lock(mutex);
    for (const auto& parameter : (resumed ? *resumed : trained).model.parameters().all()) {
      for (const auto& piece : parameter.pieces) {
        auto& whole = values[piece.name];
        whole = whole.defined() ? whole : at::zeros(piece.global_shape, at::kDouble);
        slice_of(whole, piece).copy_(parameter.view(parameter.value.detach(), piece));
      }
    }
  });
  return values;
}

} // namespace

TEST_CASE("a loop of one's own has the values of one rank, with ZeRO too") {
  const auto one = own_loop({}, 0);
  for (const int64_t zero : {0, 1, 2}) {
    CAPTURE(zero);
    const auto two = own_loop({.dp = 2, .tp = zero == 0 ? 2 : 1}, zero);
    REQUIRE(two.size() == one.size());
    for (const auto& [name, value] : one) {
      CAPTURE(name);
      CHECK((two.at(name) - value).abs().max().item().toDouble() < 1e-12);
    }
  }
}

TEST_CASE("a loop of one's own goes on from what all its ranks saved") {
  const auto one = own_loop({}, 0);
  for (const int64_t zero : {0, 1, 2}) {
    for (const MeshShape& shape : {MeshShape{.dp = 2}, MeshShape{.dp = 2, .tp = 2}}) {
      CAPTURE(zero);
      CAPTURE(shape.tp);
      const auto folder =
          std::filesystem::temp_directory_path() / ("mh-own-loop-" + std::to_string(getpid()));
      const auto two = own_loop(shape, zero, folder);
      std::filesystem::remove_all(folder);
      for (const auto& [name, value] : one) {
        CAPTURE(name);
        CHECK((two.at(name) - value).abs().max().item().toDouble() < 1e-12);
      }
    }
  }
}

TEST_CASE("zero shards each element to one data rank") {
  const Result one = plain();
  for (const int64_t zero : {1, 2, 3}) {
    CAPTURE(zero);
    const Result two = bucketed({.dp = 2}, false, {.zero = zero, .bucket = 1000});
    compare(one, two);
    check_each_once(two, 1);
    const Result four = bucketed({.dp = 4}, false, {.zero = zero});
    compare(one, four);
    check_each_once(four, 1);
    compare(one, bucketed({.dp = 2, .tp = 2}, true, {.zero = zero, .bucket = 1000}));
    const Result whole = bucketed({.dp = 2}, false, {.zero = zero, .unit = Unit::matrix});
    compare(one, whole);
    check_each_once(whole, 1);
  }
}

TEST_CASE("a bucket's sum starts before the backward pass of the next bucket's layers") {
  const Result result = bucketed({.dp = 2}, false, {.bucket = 1000});
  const auto at = [&](const std::string& event) {
    // the last microbatch's: sums start there only
    const auto found = std::find(result.trace.rbegin(), result.trace.rend(), event);
    REQUIRE_MESSAGE(found != result.trace.rend(), event);
    return result.trace.rend() - found;
  };
  CHECK(at("start 0") < at("last 1"));
  CHECK(at("start 1") < at("last 2"));
  const auto started = [](const std::string& event) { return event.starts_with("start"); };
  const auto first = std::find_if(result.trace.begin(), result.trace.end(), started);
  const auto second_pass = std::find(result.trace.begin(), result.trace.end(), "last 0");
  CHECK(second_pass < first); // none before the last microbatch
}

TEST_CASE("sums in bfloat16 round once") {
  compare(plain(), bucketed({.dp = 2}, false, {.bucket = 1000}));
  Result result;
  run_ranks({.dp = 2}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    Model model = make_model(mesh, rules, at::kFloat);
    Gradients gradients(model.parameters(), mesh, {.reduce = at::kBFloat16});
    gradients.begin(kMicrobatches);
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      pass(mesh, rules, model, m);
    }
    gradients.finish();
    if (mesh.rank() == 0) {
      for (const auto& owned : gradients.owned()) {
        collect(result, owned.piece, owned.gradient);
      }
    }
    (void)gradients.squared_norm();
  });
  double apart = 0;
  const Result one = plain();
  for (const auto& [name, gradient] : one.gradients) {
    const double distance = (result.gradients.at(name) - gradient).norm().item().toDouble();
    const double least = 1e-3 * std::sqrt(one.squared_norm); // key biases have none
    apart = std::max(apart, distance / std::max(gradient.norm().item().toDouble(), least));
  }
  CHECK(apart < 1e-2);
  CHECK(apart > 1e-5);
}

TEST_CASE("what one rank updates reaches the others") {
  for (const auto& [unit, zero] :
       {std::pair(Unit::element, 1), {Unit::matrix, 1}, {Unit::element, 3}, {Unit::matrix, 3}}) {
    run_ranks({.dp = 4}, [&, unit = unit, zero = zero](const Mesh& mesh) {
      const Rules rules = rules_of(false);
      Model model = make_model(mesh, rules);
      std::map<const Parameter*, at::Tensor> before;
      for (auto& parameter : model.parameters().all()) {
        before[&parameter] = parameter.value.detach().clone();
      }
      Gradients gradients(model.parameters(), mesh, {.zero = zero, .unit = unit, .bucket = 1000});
      for (const auto& owned : gradients.owned()) {
        owned.value.add_(1);
      }
      gradients.share_parameters();
      gradients.wait_for_all();
      for (const auto& [parameter, value] : before) {
        for (const auto& piece : parameter->pieces) {
          const at::Tensor now = parameter->view(parameter->value.detach(), piece);
          CHECK(at::equal(now, parameter->view(value, piece) + 1));
        }
      }
    });
  }
}

namespace {

thread_local std::vector<std::string>* scopes_into = nullptr;

/// Writes down which blocks begin on this thread.
class Scopes {
public:
  explicit Scopes(std::vector<std::string>& events) {
    scopes_into = &events;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) {
          scopes_into->emplace_back(function.name());
          return std::unique_ptr<at::ObserverContext>();
        }).scopes({at::RecordScope::USER_SCOPE})
    );
  }

  ~Scopes() { at::removeCallback(handle_); }

  Scopes(const Scopes&) = delete;
  Scopes& operator=(const Scopes&) = delete;

private:
  at::CallbackHandle handle_;
};

int64_t place_of(const std::vector<std::string>& events, const std::string& event) {
  const auto found = std::find(events.begin(), events.end(), event);
  REQUIRE_MESSAGE(found != events.end(), event);
  return found - events.begin();
}

} // namespace

TEST_CASE("after an update each block waits for its own values, just before it runs") {
  std::vector<std::string> events;
  run_ranks({.dp = 2}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    Model model = make_model(mesh, rules);
    Gradients gradients(model.parameters(), mesh, {.zero = 1, .bucket = 1000});
    std::vector<std::string> own;
    gradients.trace = [&](const std::string& event) { own.push_back(event); };
    const Scopes scopes(own);
    gradients.share_parameters();
    CHECK(own.empty());
    pass(mesh, rules, model, 0);
    if (mesh.rank() == 0) {
      events = own;
    }
    gradients.finish();
  });
  CHECK(place_of(events, "values 0") > place_of(events, "layers.1")); // the head's and layer 2's
  CHECK(place_of(events, "values 0") < place_of(events, "layers.2"));
  const auto waits = std::count_if(events.begin(), events.end(), [](const auto& event) {
    return event.starts_with("values");
  });
  CHECK(waits > 5);
  const std::set<std::string> different(events.begin(), events.end());
  CHECK(std::count_if(different.begin(), different.end(), [](const auto& event) {
          return event.starts_with("values");
        }) == waits);
}

TEST_CASE("ZeRO-3 keeps this rank's part, and the values of two blocks at a time") {
  run_ranks({.dp = 2}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    DecoderConfig deep = config();
    deep.layers = 8;
    Model model = make_model(mesh, rules, at::kDouble, deep);
    const auto held = [&] {
      std::map<const void*, size_t> storages;
      for (const auto& parameter : model.parameters().all()) {
        const auto& storage = parameter.value.storage();
        storages[storage.unsafeGetStorageImpl()] = storage.nbytes();
      }
      size_t bytes = 0;
      for (const auto& [storage, size] : storages) {
        bytes += size;
      }
      return static_cast<double>(bytes);
    };
    const double whole = held();
    Gradients gradients(model.parameters(), mesh, {.zero = 3});
    CHECK(held() == 0);
    CHECK(static_cast<double>(gradients.value_bytes()) == doctest::Approx(whole / 2).epsilon(0.05));
    double most = 0;
    std::vector<std::string> events;
    gradients.trace = [&](const std::string& event) {
      most = std::max(most, held());
      events.push_back(event);
    };
    for (int step = 0; step < 2; ++step) {
      events.clear();
      gradients.begin(1);
      gradients.clear();
      pass(mesh, rules, model, step);
      gradients.backward_done();
      gradients.finish();
      gradients.share_parameters();
    }
    CHECK(most > 0);
    CHECK(most < 0.45 * whole); // two layers of eight, and the embedding next to the head
    // Each layer's values come before its forward and before its backward pass; the sum of a
    // bucket's gradients starts between the values of the blocks before it.
    CHECK(std::count(events.begin(), events.end(), "values 5") == 2);
    CHECK(
        place_of(events, "start 3") <
        events.rend() - std::find(events.rbegin(), events.rend(), "values 6")
    );
  });
}

TEST_CASE("from the first pass on ZeRO-2 and 3 have the gradients of few blocks at a time") {
  for (const int64_t zero : {2, 3}) {
    CAPTURE(zero);
    run_ranks({.dp = 2}, [&](const Mesh& mesh) {
      const Rules rules = rules_of(false);
      DecoderConfig deep = config();
      deep.layers = 8;
      Model model = make_model(mesh, rules, at::kDouble, deep);
      Gradients gradients(model.parameters(), mesh, {.zero = zero, .bucket = 1000});
      std::map<int64_t, size_t> blocks;
      for (const auto& parameter : model.parameters().all()) {
        blocks[parameter.block] += parameter.value.nbytes();
      }
      const size_t layer = blocks.at(1);
      size_t most = 0;
      gradients.trace = [&](const std::string&) {
        std::map<const void*, size_t> buffers;
        for (const auto& parameter : model.parameters().all()) {
          if (parameter.main_grad.defined()) {
            const auto& storage = parameter.main_grad.storage();
            buffers[storage.unsafeGetStorageImpl()] = storage.nbytes();
          }
        }
        size_t bytes = 0;
        for (const auto& [buffer, size] : buffers) {
          bytes += size;
        }
        most = std::max(most, bytes);
      };
      gradients.begin(1);
      pass(mesh, rules, model, 0);
      gradients.backward_done();
      gradients.finish();
      CHECK(most >= layer);
      CHECK(most <= 3 * layer); // one that fills, one whose sum is in flight, the tied embedding
    });
  }
}

TEST_CASE("ZeRO-3 makes each block's values in their shards: never the whole model") {
  const Rules rules = rules_of(false);
  DecoderConfig deep = config();
  deep.layers = 8;
  const Decoder decoder(deep, {.vocab = kWords, .seq_length = 8});
  const Mesh mesh = alone({.dp = 4}, 1);
  const Builder::Args args{
      .mesh = &mesh,
      .rules = &rules,
      .device = at::kMeta,
      .seq = 8,
      .microbatch = 4,
      .initialise = false};
  const auto start = [&](bool deferred) {
    const MetaMemory memory;
    DeferredValues values;
    const auto make = [&] { return Model(decoder, args); };
    Model model = deferred ? values.during(make) : make();
    const Gradients gradients(model.parameters(), mesh, {.zero = 3, .deferred = &values});
    std::map<int64_t, int64_t> blocks;
    for (const auto& parameter : model.parameters().all()) {
      blocks[parameter.block] += static_cast<int64_t>(parameter.value.nbytes());
    }
    int64_t largest = 0;
    for (const auto& [block, bytes] : blocks) {
      largest = std::max(largest, bytes);
    }
    struct Found {
      int64_t peak, kept, largest;
    };
    return Found{memory.peak(), gradients.value_bytes() + gradients.bytes(), largest};
  };
  const auto found = start(true);
  constexpr int64_t kSmall = 8192; // alignment, a value of no size for each leaf, buffers
  CHECK(found.peak < found.kept + found.largest + kSmall);
  CHECK(start(false).peak > found.peak + 4 * found.largest); // all ten blocks are whole at once
}

TEST_CASE("values that are made in their shards are the same to the bit") {
  run_ranks({.dp = 2}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(false);
    const Decoder decoder(config(), {.vocab = kWords, .seq_length = 8});
    const Builder::Args args{
        .mesh = &mesh, .rules = &rules, .dtype = at::kBFloat16, .seq = 8, .microbatch = 2};
    const Model now(decoder, args);
    DeferredValues values;
    Model later = values.during([&] { return Model(decoder, args); });
    auto& frozen = later.parameters().all().front(); // no rank shares it, and it has no gradient
    frozen.value.set_requires_grad(false);
    for (auto& piece : frozen.pieces) {
      piece.frozen = true;
    }
    Gradients gradients(later.parameters(), mesh, {.zero = 3, .deferred = &values});
    gradients.wait_for_all();
    for (size_t i = 0; i < now.parameters().all().size(); ++i) {
      const auto& one = now.parameters().all()[i];
      CAPTURE(one.pieces.front().name);
      CHECK(at::equal(one.value, later.parameters().all()[i].value));
    }
  });
}

TEST_CASE("parts of a piece: a part of a row, whole rows, a part of a row") {
  Parameter parameter;
  parameter.value = at::zeros({6, 4});
  Piece piece;
  piece.global_shape = {12, 4};
  piece.offset = {6, 0};
  piece.shape = {4, 4};
  piece.row = 1; // elements 4 .. 19 of the leaf
  const auto parts = parts_of(parameter, piece, 6, 18);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].offset == std::vector<int64_t>{6, 2});
  CHECK(parts[0].shape == std::vector<int64_t>{1, 2});
  CHECK(parts[1].offset == std::vector<int64_t>{7, 0});
  CHECK(parts[1].shape == std::vector<int64_t>{2, 4});
  CHECK(parts[2].offset == std::vector<int64_t>{9, 0});
  CHECK(parts[2].shape == std::vector<int64_t>{1, 2});
  CHECK(parts_of(parameter, piece, 0, 4).empty());
  CHECK(parts_of(parameter, piece, 0, 100).size() == 1);
  CHECK(parts_of(parameter, piece, 0, 100)[0].shape == piece.shape);
}
