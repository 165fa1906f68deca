// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/corpus.hpp>
#include <megahost/host.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto corpus = host.make<mh::Corpus>(
      "@name@",
      mh::Table{{"samples", 10}},
      {.seq_length = 8, .vocab = 50, .split = {0.75, 0.25, 0}}
  );
  expect(corpus->size(mh::Split::train) == 8, "three quarters are for training");
  expect(corpus->size(mh::Split::test) == 0, "and none for the test");

  const mh::Sample sample = corpus->sample(mh::Split::train, 3);
  const auto& tokens = std::get<std::vector<int64_t>>(sample.at("tokens"));
  const auto& labels = std::get<std::vector<int64_t>>(sample.at("labels"));
  expect(tokens.size() == 8 && labels[0] == tokens[1], "labels are the next tokens");
  expect(tokens[0] == tokens[4] && tokens[3] == tokens[7], "the second half repeats the first");
  expect(sample == corpus->sample(mh::Split::train, 11), "the next epoch has the same samples");
  return failures;
}
