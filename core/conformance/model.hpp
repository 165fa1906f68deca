#pragma once
/// A small model of any architecture with a batch, for tests.

#include "megahost/architecture.hpp"
#include "megahost/model.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/training_loop.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh::check {

struct SmallModelArgs {
  at::ScalarType dtype = at::kFloat;
  uint64_t seed = 1234;
  const RecomputePolicy* policy = nullptr;
  Rules rules{};
  at::Device device = at::kCPU;
  bool packed = true; ///< samples of two documents and padding
};

/// The first tokens of the second document of a packed sample, and of its padding.
inline constexpr int64_t kSecondDocument = 6, kPadding = 14;

/// A model on one rank, without dropout.
struct SmallModel {
  SmallModel(const Architecture& architecture, const SmallModelArgs& args);

  /// The mean of the total loss, differentiable until the next call.
  [[nodiscard]] at::Tensor loss();
  /// Gradients from zero; returns the loss.
  double train_once();
  [[nodiscard]] std::vector<at::Tensor> values() const;

  Mesh mesh;
  Rules rules;
  Batch batch;
  std::unique_ptr<Model> model;
  std::unique_ptr<Gradients> gradients;
  std::unique_ptr<StepContext> context; ///< recomputed layers read it again in backward
};

/// Tokens, labels and a mask, the same at every call; ids below `vocab`. Packed samples have
/// positions and segments, too, and are masked where a document or the sample ends.
[[nodiscard]] Batch
small_batch(const Architecture& architecture, at::Device device = at::kCPU, bool packed = true);

/// Two decoder blocks of megahost's own, for tests of what is no model.
[[nodiscard]] std::unique_ptr<Architecture> small_decoder(int64_t layers = 2);

/// A matrix and a vector with their state.
[[nodiscard]] std::vector<UpdateItem> small_items(const Optimizer& optimizer, at::Device device);

/// A checksum of dtypes, shapes and bits.
[[nodiscard]] std::string bits(const std::vector<at::Tensor>& tensors);

} // namespace mh::check
