#pragma once
/// Instances of what a plugin offers, made for tests, and what can be seen of them.

#include "core/conformance/check.hpp"
#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/corpus.hpp"
#include "megahost/device.hpp"
#include "megahost/launcher.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/recompute.hpp"
#include "megahost/storage.hpp"
#include "megahost/strategy.hpp"
#include "megahost/tokenizer.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mh::check {

/// Sizes of everything that tests make.
inline constexpr int64_t kSeq = 16, kBatch = 2, kVocab = 256, kIters = 100;

/// Calls `run` with a null pointer to the interface of a kind.
template <class Run>
decltype(auto) with_interface(Kind kind, Run&& run) {
  switch (kind) {
  case Kind::architecture:
    return run(static_cast<Architecture*>(nullptr));
  case Kind::strategy:
    return run(static_cast<Strategy*>(nullptr));
  case Kind::recompute:
    return run(static_cast<RecomputePolicy*>(nullptr));
  case Kind::optimizer:
    return run(static_cast<Optimizer*>(nullptr));
  case Kind::lr_schedule:
    return run(static_cast<LrSchedule*>(nullptr));
  case Kind::pipeline_schedule:
    return run(static_cast<PipelineSchedule*>(nullptr));
  case Kind::corpus:
    return run(static_cast<Corpus*>(nullptr));
  case Kind::tokenizer:
    return run(static_cast<Tokenizer*>(nullptr));
  case Kind::launcher:
    return run(static_cast<Launcher*>(nullptr));
  case Kind::device:
    return run(static_cast<Device*>(nullptr));
  case Kind::checkpoint_format:
    return run(static_cast<CheckpointFormat*>(nullptr));
  case Kind::storage:
    break;
  }
  return run(static_cast<Storage*>(nullptr));
}

/// Arguments of small instances; `Base::Args{}` where there is nothing to say.
template <class Base>
[[nodiscard]] typename Base::Args arguments(uint64_t seed = 1234);

/// The path of a kind's options in a recipe: "optimizer", "parallel.schedule".
[[nodiscard]] std::string option_path(Kind kind);

/// Whether --set gives options of the offer.
[[nodiscard]] bool has_given_options(const Case& c);

/// The options of --set, and a word for each other required field.
[[nodiscard]] Table given_options(const Case& c);

/// The options that tests give: those above, and small sizes for models.
[[nodiscard]] Table options_of(const Case& c);

/// The sizes that tests give an architecture: "layers 2, hidden 16".
[[nodiscard]] std::string sizes_of(const Case& c);

/// Whether a field is required and --set does not give it: its value is made up.
[[nodiscard]] bool made_up(const Case& c, const Field& field);

/// Makes one with these options and takes it down again; lets through what the plugin throws.
void make_once(const Registry::Entry& entry, const Table& options);

/// Makes one. Not applicable where a required field was made up and it refuses, or a device that
/// this machine lacks.
template <class Base>
[[nodiscard]] std::unique_ptr<Base> make(const Case& c, const typename Base::Args& args);

template <class Base>
[[nodiscard]] std::unique_ptr<Base> make(const Case& c) {
  return make<Base>(c, arguments<Base>());
}

/// An instance, and all that it does in a fixed order of calls, as text.
[[nodiscard]] std::function<std::string()> tracer(const Case& c, uint64_t seed);

} // namespace mh::check
