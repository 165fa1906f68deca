#include "core/model/outline.hpp"

#include "core/memory/counting_allocator.hpp"
#include "core/model/deferred_values.hpp"
#include "core/model/plugin_call.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace mh {

std::string block_name(const Architecture& architecture, int64_t block) {
  return block == 0                               ? "embedding"
         : block == block_count(architecture) - 1 ? "head"
                                                  : "layers." + std::to_string(block - 1);
}

std::unique_ptr<Block>
make_block(const Architecture& architecture, int64_t block, Builder& builder) {
  const std::string name = block_name(architecture, block);
  const auto scope = builder.scope(name);
  const auto make = [&] {
    try {
      auto made = block == 0                               ? architecture.embedding(builder)
                  : block == block_count(architecture) - 1 ? architecture.head(builder)
                                                           : architecture.layer(block - 1, builder);
      builder.refuse_written_values();
      return made;
    } catch (const c10::Error& error) { // LibTorch's own refusals
      const std::string_view text = error.what();
      if (text.find("a leaf Variable that requires grad") != std::string_view::npos ||
          text.find("more than one element of the written-to tensor") != std::string_view::npos) {
        refuse_written("a parameter of " + name);
      }
      throw;
    }
  };
  // Values are made after the block under every layout, so that a constructor that writes into them
  // or reads them is told so on one rank, too.
  DeferredValues own;
  const bool owns = DeferredValues::current() == nullptr && !builder.options().device().is_meta();
  return in_plugin(place_of(architecture, "making", name.c_str()), [&] {
    auto made = owns ? own.during(make) : make();
    if (owns) {
      builder.make_values(own);
    }
    return made;
  });
}

Outline::Outline(const Architecture& architecture, const Builder::Args& args)
    : place_(place_of(architecture, "forward"))
    , store_(std::make_unique<ParameterStore>()) {
  const UncountedMemory uncounted; // a plan's step on the Meta device may be running
  Builder::Args whole = args;
  whole.mesh = &mesh_;
  whole.rules = &rules_;
  whole.device = at::kMeta;
  whole.initialise = false;
  whole.fp8.reset(); // blocks hand on the same states whatever their GEMMs are rounded to
  whole.chunks.clear();
  whole.sequences = architecture.sequences();
  size_t known = 0; // leaves of earlier blocks
  for (int64_t block = 0; block < block_count(architecture); ++block) {
    Builder builder(*store_, whole);
    blocks_.push_back(make_block(architecture, block, builder));
    names_.push_back(block_name(architecture, block));
    Part part{.flops = builder.flops, .shares = builder.shared_names()};
    for (; known < store_->all().size(); ++known) {
      for (const auto& piece : store_->all()[known].pieces) {
        part.makes.push_back(piece.name);
        part.elements += c10::multiply_integers(piece.global_shape);
      }
    }
    parts_.push_back(std::move(part));
  }
}

int64_t Outline::maker(const std::string& name) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) {
    return std::find(part.makes.begin(), part.makes.end(), name) != part.makes.end();
  });
  MH_ASSERT(found != parts_.end(), "no block makes the shared parameter `" + name + "`");
  return found - parts_.begin();
}

Flops Outline::flops() const {
  Flops sum;
  for (const auto& part : parts_) {
    sum.gemms += part.flops.gemms;
    sum.attention += part.flops.attention;
  }
  return sum;
}

int64_t Outline::elements() const {
  int64_t sum = 0;
  for (const auto& part : parts_) {
    sum += part.elements;
  }
  return sum;
}

std::vector<State>
Outline::states_before(const std::vector<int64_t>& first, const Batch& batch) const {
  const UncountedMemory uncounted;
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  const at::AutoGradMode gradients(true);
  Batch meta = batch;
  for (auto& [name, array] : meta.arrays) {
    array = at::empty_like(array, array.options().device(at::kMeta));
  }
  StepContext context(mesh_, rules_, meta);
  std::vector<State> states;
  State state;
  for (int64_t block = 0; states.size() < first.size(); ++block) {
    while (states.size() < first.size() && first[states.size()] == block) {
      states.push_back(state);
    }
    if (states.size() < first.size()) {
      PluginPlace place = place_;
      place.block = names_.at(static_cast<size_t>(block)).c_str();
      state = in_plugin(place, [&] {
        return blocks_.at(static_cast<size_t>(block))->forward(state, context);
      });
    }
  }
  return states;
}

} // namespace mh
