// The sections about numbers: loss scaling, FP8, guards.

#include "core/schema/sections.hpp"

namespace mh {

const Fields<Recipe::Fp16>& fp16_fields() {
  using Fp16 = Recipe::Fp16;
  static const Fields<Fp16> fields = [] {
    Fields<Fp16> f;
    f.add("loss_scale", &Fp16::loss_scale, "constant factor of the loss; dynamic if absent")
        .above(0);
    f.add("initial_scale", &Fp16::initial_scale, "dynamic: the factor at the start").above(0);
    f.add("min_scale", &Fp16::min_scale, "dynamic: the least factor").above(0);
    f.add("window", &Fp16::window, "dynamic: steps without overflow after which the factor doubles")
        .at_least(1)
        .unit("steps");
    f.add(
         "hysteresis",
         &Fp16::hysteresis,
         "dynamic: overflows that it takes until the factor is halved"
    )
        .at_least(1);
    f.check("initial_scale", [](const Fp16& s) -> std::string {
      return s.initial_scale >= s.min_scale ? ""
                                            : "is below fp16.min_scale, expected at least that";
    });
    return f;
  }();
  return fields;
}

const Fields<Recipe::Fp8>& fp8_fields() {
  using Fp8 = Recipe::Fp8;
  static const Fields<Fp8> fields = [] {
    Fields<Fp8> f;
    f.add(
         "recipe",
         &Fp8::recipe,
         "where scales come from: delayed, the largest values of the steps before; current, the "
         "tensor itself"
    )
        .one_of({"delayed", "current"});
    f.add("history", &Fp8::history, "delayed: steps whose largest values are remembered")
        .at_least(1)
        .unit("steps");
    f.add("amax", &Fp8::amax, "delayed: the history's largest value, or the last step's")
        .one_of({"max", "most_recent"});
    f.add("margin", &Fp8::margin, "scales are smaller by 2^margin: room for values that grow")
        .range(0, 16);
    return f;
  }();
  return fields;
}

const Fields<Recipe::Guards>& guards_fields() {
  using Guards = Recipe::Guards;
  static const Fields<Guards> fields = [] {
    Fields<Guards> f;
    f.add(
         "nan",
         &Guards::nan,
         "when loss or gradients hold NaN or Inf: stop the run, skip the step, or rewind to the "
         "newest checkpoint and leave out the data since then"
    )
        .one_of({"stop", "skip", "rewind"});
    f.add("spike", &Guards::spike, "likewise when the loss is far above those before it")
        .one_of({"off", "stop", "skip", "rewind"});
    f.add("spike_z", &Guards::spike_z, "how far: robust standard deviations from the median")
        .above(0);
    f.add("window", &Guards::window, "losses before it that a loss is compared with")
        .at_least(16)
        .unit("steps");
    f.add("skips", &Guards::skips, "steps skipped in a row after which the run stops")
        .at_least(1)
        .unit("steps");
    f.add("rewinds", &Guards::rewinds, "rewinds of a run after which it stops").at_least(1);
    f.add(
         "skip_batches",
         &Guards::skip_batches,
         "global batches left out after a rewind, beyond those up to the bad one"
    )
        .at_least(0);
    f.add(
         "compare_copies",
         &Guards::compare_copies,
         "steps after which weights that several ranks hold are compared bit by bit, and the run "
         "stops with the name of a rank that differs; 0: never"
    )
        .at_least(0)
        .unit("steps");
    return f;
  }();
  return fields;
}

} // namespace mh
