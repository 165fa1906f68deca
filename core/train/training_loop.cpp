#include "megahost/training_loop.hpp"

#include "core/checkpoint/native.hpp"
#include "core/mesh/agree.hpp"
#include "core/step/batches.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"

#include <string>
#include <utility>
#include <vector>

namespace mh {

Batch load_batch(
    const Corpus& corpus, Split split, int64_t first, int64_t count, int64_t seq_length
) {
  return std::move(load_batches(corpus, split, first, {.seq = seq_length, .micro = count}).front());
}

struct TrainedWeights::Held {
  Gradients& gradients;
  const Optimizer& optimizer;
  Weights weights;

  [[nodiscard]] Ranks ranks() const { return ranks_of(gradients.mesh().all()); }
};

TrainedWeights::TrainedWeights(
    Gradients& gradients, const Optimizer& optimizer, double weight_decay
)
    : held_(new Held{
          gradients, optimizer, Weights(gradients, optimizer, {.weight_decay = weight_decay})}) {}

TrainedWeights::~TrainedWeights() = default;
TrainedWeights::TrainedWeights(TrainedWeights&&) noexcept = default;

void TrainedWeights::update(const Update& update) {
  held_->gradients.finish();
  held_->weights.update(held_->optimizer, update);
  held_->gradients.share_parameters();
  held_->gradients.begin(/*microbatches=*/1);
}

// An error of the disk although the checkpoint is whole (an old one that cannot be removed) is no
// failure of the save, and there is no run log here to keep it.
void TrainedWeights::save(const std::filesystem::path& run, int64_t step, Storage& storage) const {
  std::vector<std::string> notes;
  Progress progress;
  progress.step = step;
  const NativeFormat format({}, {.storage = storage});
  save_checkpoint(format, run, progress, held_->weights, /*retention=*/{}, notes, held_->ranks());
}

std::optional<int64_t> TrainedWeights::load(const std::filesystem::path& run, Storage& storage) {
  std::vector<std::string> notes;
  const auto progress = load_checkpoint(
      NativeFormat({}, {.storage = storage}), run, held_->weights, notes, held_->ranks()
  );
  if (progress) {
    held_->gradients.share_parameters();
    held_->gradients.wait_for_all();
  }
  return progress ? std::optional(progress->step) : std::nullopt;
}

} // namespace mh
