// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/host.hpp>
#include <megahost/model.hpp>

#include <ATen/ops/zeros.h>

#include <cmath>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto architecture = host.make<mh::Architecture>(
      "@name@",
      mh::Table{{"layers", 2}, {"hidden", 16}, {"heads", 2}},
      {.vocab = 32, .seq_length = 8}
  );
  const mh::Mesh mesh; // one rank
  const mh::Rules rules;
  const mh::Model model(*architecture, {.mesh = &mesh, .rules = &rules, .seq = 8, .microbatch = 3});

  mh::Batch batch;
  batch.seq = 8, batch.batch = 3;
  batch.arrays["tokens"] = at::zeros({8, 3}, at::kLong); // [S, B]
  batch.samples = {0, 1, 2};
  mh::StepContext scores(mesh, rules, batch);
  const mh::State state = model.forward(scores);
  expect(state["logits"].value.sizes() == at::IntArrayRef({8, 3, 32}), "a score for each word");

  batch.arrays["labels"] = at::zeros({8, 3}, at::kLong);
  batch.arrays["loss_mask"] = at::zeros({8, 3}).fill_(1);
  mh::StepContext context(mesh, rules, batch);
  (void)model.forward(context);
  expect(context.losses().size() == 1, "one loss where there are labels");
  const double loss = context.losses().front().sum.item<double>() / 24;
  expect(std::abs(loss - std::log(32)) < 1, "that of guessing, before it has learnt");
  return failures;
}
