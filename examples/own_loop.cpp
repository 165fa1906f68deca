/// A training loop of one's own over the installed SDK: a tiny GPT, five steps, saved and loaded.
///
///   usage: own_loop FOLDER

#include <megahost/host.hpp>
#include <megahost/training_loop.hpp>

#include <ATen/TensorOperators.h>

#include <cstdio>
#include <exception>

namespace {

constexpr int64_t kVocab = 100, kSeq = 64, kBatch = 4, kSteps = 5;

/// Everything that a step needs, made by plugins that are found as a recipe's are.
struct Run {
  mh::Host host;
  mh::Mesh mesh;   // one rank
  mh::Rules rules; // no parallel strategy
  std::unique_ptr<mh::Corpus> corpus =
      host.make<mh::Corpus>("mock", mh::Table{}, {.seq_length = kSeq, .vocab = kVocab});
  std::unique_ptr<mh::Architecture> gpt = host.make<mh::Architecture>(
      "gpt",
      mh::Table{{"layers", 2}, {"hidden", 12}, {"heads", 4}},
      {.vocab = kVocab, .seq_length = kSeq}
  );
  std::unique_ptr<mh::Optimizer> adamw = host.make<mh::Optimizer>("adamw");

  [[nodiscard]] mh::Model model(uint64_t seed) const {
    return mh::Model(
        *gpt, {.mesh = &mesh, .rules = &rules, .seed = seed, .seq = kSeq, .microbatch = kBatch}
    );
  }

  /// The mean loss of batch `number`; its gradients too, if there is to be an update.
  [[nodiscard]] double loss(const mh::Model& model, int64_t number, bool gradients) const {
    const auto batch =
        mh::load_batch(*corpus, mh::Split::train, number * kBatch, kBatch, kSeq); // [S, B] each
    mh::StepContext context(mesh, rules, batch); // lives until the backward pass is over
    (void)model.forward(context);
    const at::Tensor mean = context.losses()[0].sum / context.count(context.losses()[0]);
    if (gradients) {
      mh::backward(mean);
    }
    return mean.item<double>();
  }
};

int train(const char* folder) {
  const Run run;
  mh::Model model = run.model(/*seed=*/1234);
  mh::Gradients gradients(model.parameters(), run.mesh); // summed over ranks, if there are several
  mh::TrainedWeights weights(gradients, *run.adamw, /*weight_decay=*/0.1);
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double loss = run.loss(model, step - 1, /*gradients=*/true);
    weights.update({.step = step, .lr = 1e-2});
    std::printf("step %ld  loss %.4f\n", step, loss);
  }
  weights.save(folder, kSteps);

  mh::Model other = run.model(/*seed=*/4321);
  mh::Gradients others(other.parameters(), run.mesh);
  const auto step = mh::TrainedWeights(others, *run.adamw).load(folder);
  const double before = run.loss(model, 0, false), after = run.loss(other, 0, false);
  std::printf("loaded step %ld  loss %.4f, saved with %.4f\n", step.value_or(-1), after, before);
  return before == after ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
  try {
    return train(count > 1 ? words[1] : "runs/own_loop");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
