// Tests that suit one kind each.

#include "core/conformance/instance.hpp"
#include "core/conformance/model.hpp"
#include "core/conformance/tests.hpp"
#include "core/mesh/launchers.hpp"
#include "core/step/pipeline_lists.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <cmath>
#include <tuple>

namespace mh::check {

/// Half the square of the distance to zero, whose gradient is the weight itself.
void lowers_a_quadratic(const Case& c) {
  const auto optimizer = make<Optimizer>(c);
  auto items = small_items(*optimizer, at::kCPU);
  const auto height = [&] {
    double sum = 0;
    for (const UpdateItem& item : items) {
      sum += item.weight.square().sum().item().toDouble() / 2;
    }
    return sum;
  };
  const double before = height();
  for (int64_t step = 1; step <= 50; ++step) {
    for (UpdateItem& item : items) {
      item.gradient = item.weight.clone();
    }
    optimizer->update(items, {.step = step, .lr = 0.01});
  }
  if (!(height() < before)) {
    fail(
        "50 updates at lr 0.01 bring a quadratic from " + std::to_string(before) + " to " +
            std::to_string(height()),
        "look at the sign of the update"
    );
  }
}

namespace {

void finite_rates(const LrSchedule& schedule) {
  for (int64_t n = 0; n <= 3 * kIters; ++n) {
    const double lr = schedule.lr({.updates = n, .samples = 8 * n});
    if (!std::isfinite(lr) || lr < 0) {
      fail(
          "after " + std::to_string(n) + " of " + std::to_string(kIters) + " updates its rate is " +
              std::to_string(lr),
          "a run may go on after its end: return a finite rate of at least 0 forever"
      );
    }
  }
}

void finite_updates(const Optimizer& optimizer) {
  for (const double size : {0.0, 1e-30, 1.0, 1e10}) {
    auto items = small_items(optimizer, at::kCPU);
    for (int64_t step = 1; step <= 3; ++step) {
      for (UpdateItem& item : items) {
        item.gradient = item.weight * size;
      }
      optimizer.update(items, {.step = step, .lr = 0.01});
    }
    for (const UpdateItem& item : items) {
      if (!std::isfinite(item.weight.sum().item().toDouble())) {
        fail(
            "gradients of size " + std::to_string(size) + " make a weight NaN or infinite",
            "add a small number to what it divides by"
        );
      }
    }
  }
}

} // namespace

void values_finite(const Case& c) {
  if (c.entry->kind == Kind::lr_schedule) {
    finite_rates(*make<LrSchedule>(c));
  } else if (c.entry->kind == Kind::optimizer) {
    finite_updates(*make<Optimizer>(c));
  } else {
    const auto device = make<Device>(c);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const double peak = device->peak_flops(dtype);
      if (!std::isfinite(peak) || peak < 0 || device->memory() < 0) {
        fail("its peak or memory is no finite number of at least 0", "0 says that it is unknown");
      }
    }
  }
}

/// Encodes what it decoded, for texts that it takes. A tokenizer of ids in decimal takes only what
/// it decoded itself.
void decode_encode(const Case& c) {
  const auto tokenizer = make<Tokenizer>(c);
  if (tokenizer->lossy()) {
    not_applicable("it says that texts come back changed (Tokenizer::lossy)");
  }
  std::vector<std::string> texts{
      "",
      "a",
      "Two words, a number 1234.",
      "tabs\tand\nlines\n\n",
      "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\xa6"};
  try {
    const std::vector<int32_t> ids{0, static_cast<int32_t>(tokenizer->vocab() / 2)};
    texts.push_back(tokenizer->decode(ids));
  } catch (const Error&) { // those ids may be no text by themselves
  }
  size_t taken = 0;
  for (const std::string& text : texts) {
    std::vector<int32_t> ids;
    try {
      ids = tokenizer->encode(text);
    } catch (const Error&) {
      continue;
    }
    taken += text.empty() ? 0 : 1;
    const std::string back = tokenizer->decode(ids);
    if (back != text) {
      fail(
          "decode(encode(\"" + text + "\")) is \"" + back + "\"",
          "if that is meant (lower case, unknown words), let Tokenizer::lossy say so"
      );
    }
  }
  if (taken == 0) {
    fail("it refuses every text that was tried", "it must take at least what it decodes");
  }
}

void ids_in_vocabulary(const Case& c) {
  const auto check = [](int64_t id, int64_t vocab, const std::string& where) {
    if (id < 0 || id >= vocab) {
      fail(
          where + " has the id " + std::to_string(id) + ", the vocabulary has " +
          std::to_string(vocab)
      );
    }
  };
  if (c.entry->kind == Kind::tokenizer) {
    const auto tokenizer = make<Tokenizer>(c);
    check(tokenizer->end_of_document().value_or(0), tokenizer->vocab(), "its end of document");
    const SpecialIds special = tokenizer->special_ids();
    for (const auto& id :
         {special.bos,
          special.eos,
          special.pad,
          special.unk,
          special.mask,
          special.cls,
          special.sep}) {
      check(id.value_or(0), tokenizer->vocab(), "a special id");
    }
    for (const int32_t id : special.extra) {
      check(id, tokenizer->vocab(), "an extra id");
    }
    for (const char* text : {"Two words, \xff\xfe and more", "1 2 3"}) {
      try {
        for (const int32_t id : tokenizer->encode(text)) {
          check(id, tokenizer->vocab(), std::string("the text `") + text + "`");
        }
      } catch (const Error&) { // a tokenizer may refuse a text
      }
    }
    return;
  }
  const auto corpus = make<Corpus>(c);
  const auto declared = declared_arrays(*c.entry, options_of(c), arguments<Corpus>());
  for (int64_t index = 0; index < std::min<int64_t>(corpus->size(Split::train), 50); ++index) {
    const Sample sample = corpus->sample(Split::train, index);
    for (const ArraySpec& spec : declared) {
      const bool named_ids =
          spec.name == "tokens" || spec.name == "labels" || spec.name.ends_with("_tokens");
      const int64_t below = spec.below > 0 ? spec.below : named_ids ? kVocab : 0;
      const auto array = sample.find(spec.name);
      const auto* ids =
          array == sample.end() ? nullptr : std::get_if<std::vector<int64_t>>(&array->second);
      for (const int64_t id : ids == nullptr || below == 0 ? std::vector<int64_t>() : *ids) {
        check(id, below, "`" + spec.name + "` of sample " + std::to_string(index));
      }
    }
  }
}

/// Plans go by the declaration, and runs refuse samples that differ from it.
void arrays_as_declared(const Case& c) {
  std::vector<ArraySpec> declared;
  try {
    declared = declared_arrays(*c.entry, options_of(c), arguments<Corpus>());
  } catch (const Error& error) {
    fail(error.what(), error.hint());
  }
  const auto corpus = make<Corpus>(c);
  for (const auto& [split, name] : {std::pair(Split::train, "train"), {Split::valid, "valid"}}) {
    const int64_t size = corpus->size(split);
    for (const int64_t index : {int64_t{0}, int64_t{1}, size / 2, size - 1, size}) {
      const auto difference =
          size < 1 ? ""
                   : array_difference(declared, corpus->sample(split, std::max<int64_t>(0, index)));
      if (!difference.empty()) {
        fail(
            "in sample " + std::to_string(index) + " of " + name + " " + difference,
            "`static std::vector<mh::ArraySpec> arrays(const Config&, const Args&)` declares what "
            "samples hold; without one they hold what decoders read"
        );
      }
    }
  }
}

void instructions_complete(const Case& c) {
  size_t taken = 0;
  for (const auto& [stages, chunks, microbatches] :
       {std::tuple{1, 1, 3}, {2, 1, 4}, {4, 1, 8}, {4, 1, 2}, {2, 2, 4}, {4, 2, 8}}) {
    PipelineSchedule::Args args{
        .stages = stages, .virtual_stages = chunks, .microbatches = microbatches};
    std::unique_ptr<PipelineSchedule> schedule;
    try {
      const Value options = Registry::checked(*c.entry, options_of(c));
      schedule.reset(static_cast<PipelineSchedule*>(c.entry->make(options, &args)));
    } catch (const Error&) { // some schedules are for some layouts
      continue;
    }
    ++taken;
    args.order = schedule->order();
    try {
      check_lists(args, lists_of(*schedule, stages), [&](int64_t stage) {
        return schedule->most_live(stage);
      });
    } catch (const Error& error) {
      fail(
          "with " + std::to_string(stages) + " stages, " + std::to_string(chunks) +
              " chunks each and " + std::to_string(microbatches) + " microbatches " + error.what(),
          "mh::with_transfers puts sends and receives between passes"
      );
    }
  }
  if (taken == 0) {
    fail("it refuses every layout that was tried, from 1 to 4 stages with 1 or 2 chunks");
  }
}

void one_rank_unchanged(const Case& c) {
  Rules rules;
  make<Strategy>(c)->rules(rules);
  for (const auto* tier : {&rules.features, &rules.tokens, &rules.between}) {
    for (const Rule& rule : *tier) {
      const auto same = std::count_if(tier->begin(), tier->end(), [&](const Rule& other) {
        return other.logical == rule.logical && other.mesh == rule.mesh;
      });
      if (rule.logical.name.empty() || same > 1) {
        fail(
            "its rule " + std::string(rule.logical.name) + " -> " +
            std::string(to_string(rule.mesh)) + (same > 1 ? " is there twice" : " names no axis")
        );
      }
    }
  }
  const auto decoder = small_decoder();
  SmallModel plain(*decoder, {}), placed(*decoder, {.rules = rules});
  const double one = plain.train_once(), other = placed.train_once();
  if (one != other) {
    fail(
        "on one rank the loss is " + std::to_string(one) + ", with its rules " +
            std::to_string(other),
        "a mesh axis of one rank must change nothing"
    );
  }
}

void world_consistent(const Case& c) {
  const auto world = make<Launcher>(c)->detect();
  if (!world) {
    return; // it did not start this process
  }
  const std::string fault = world_fault(*world);
  if (!fault.empty()) {
    fail(
        "it says that this is " + fault,
        "ranks begin at 0; return nothing where it did not start the process"
    );
  }
}

void holds_tensors(const Case& c) {
  const auto device = make<Device>(c);
  const at::Tensor there = at::arange(12, at::kFloat).to(device->device());
  device->synchronize();
  const at::Tensor back = (there * 2).to(at::kCPU);
  if (there.device().type() != device->device().type() ||
      !back.equal(at::arange(12, at::kFloat) * 2)) {
    fail("tensors on " + device->device().str() + " do not come back as they should");
  }
  if (device->summary().empty() || device->summary().find('\n') != std::string::npos) {
    fail("its summary is not one line of text");
  }
}

} // namespace mh::check
