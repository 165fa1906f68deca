#pragma once
/// The statistics that layers gather over the microbatches of a step and apply at its end: they
/// steer the next step without being trained. A layer passes one to Builder::at_step_end.

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"

namespace mh {

/// Microbatches come in any order, and those that are recomputed come twice: what is gathered
/// must not depend on either.
class MH_API StepState {
public:
  virtual ~StepState();

  /// The weights were updated.
  ///
  /// Ranks:   collective over tp, cp and dp
  virtual void update(const Mesh& mesh) = 0;

  /// The step was skipped.
  virtual void forget() = 0;
};

} // namespace mh
