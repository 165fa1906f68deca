// Each pipeline schedule against one rank, alone and together with the other strategies: the same
// loss, gradients, norm and initial values.

#include "tests/dist/pipelined.hpp"

namespace pipeline_tests {

using namespace mh;
using namespace mh::pipelined;

namespace {

DecoderConfig gpt() {
  return small_gpt(4);
}

DecoderConfig llama() {
  DecoderConfig c = small_llama(4);
  c.dropout = 0.1;
  c.attention_dropout = 0.1;
  return c;
}

constexpr auto k1f1b = pipeline::one_forward_one_backward;
constexpr auto kGPipe = pipeline::gpipe;
constexpr auto kZeroBubble = pipeline::zero_bubble;
constexpr auto kVee = pipeline::zero_bubble_vee;
constexpr auto kTwo = "embed+2|2+head", kFour = "embed+1|1|1|1+head";

void check_layouts(const DecoderConfig& config, const std::vector<Layout>& layouts) {
  const Decoder decoder(config, {.vocab = kWords, .seq_length = kSeq});
  const Whole one = pipelined::run(decoder, {});
  CHECK(one.loss > 3);
  for (const auto& layout : layouts) {
    const std::string chunks = layout.chunks;
    CAPTURE(chunks);
    CAPTURE(layout.shape.pp);
    compare(one, pipelined::run(decoder, layout));
  }
}

const std::vector<Layout> kSchedules = {
    {.shape = {.pp = 2}, .order = kGPipe, .chunks = kTwo},
    {.shape = {.pp = 4}, .order = kGPipe, .chunks = kFour},
    {.shape = {.pp = 2}, .order = kGPipe, .chunks = kFour},
    {.shape = {.pp = 2}, .order = k1f1b, .chunks = kTwo},
    {.shape = {.pp = 4}, .order = k1f1b, .chunks = kFour},
    {.shape = {.pp = 2}, .order = k1f1b, .chunks = kFour}, // virtual 2
    {.shape = {.pp = 4}, .order = k1f1b, .chunks = "embed+1|2|1|head"},
    {.shape = {.pp = 2}, .order = kZeroBubble, .chunks = kTwo},
    {.shape = {.pp = 4}, .order = kZeroBubble, .chunks = kFour},
    {.shape = {.pp = 2}, .order = kVee, .chunks = kFour},
    {.shape = {.pp = 2}, .order = kVee, .chunks = "embed|1|3|head"},
};

} // namespace

TEST_CASE("gpt, tied and with dropout: each schedule at 2 and 4 stages has the numbers of one rank"
) {
  check_layouts(gpt(), kSchedules);
}

TEST_CASE("llama, tied and with dropout: each schedule at 2 and 4 stages") {
  check_layouts(llama(), kSchedules);
}

TEST_CASE("8 layers over 4 stages of 2 virtual ones, untied") {
  DecoderConfig config = llama();
  config.layers = 8;
  config.tied = false;
  check_layouts(
      config,
      {{.shape = {.pp = 4}, .order = k1f1b, .chunks = "embed+1|1|1|1|1|1|1|1+head"},
       {.shape = {.pp = 2}, .order = k1f1b, .chunks = "embed+3|1|3|1+head", .recompute = true},
       {.shape = {.pp = 4}, .order = kVee, .chunks = "embed+1|1|1|1|1|1|1|1+head"}}
  );
}

TEST_CASE("8 layers down and up 4 stages, tied: both uses of the embedding are on the first stage"
) {
  DecoderConfig config = gpt();
  config.layers = 8;
  check_layouts(
      config, {{.shape = {.pp = 4}, .order = kVee, .chunks = "embed+1|1|1|1|1|1|1|1+head"}}
  );
}

TEST_CASE("a pipeline with tensor, sequence and data parallelism and full recompute") {
  const std::vector<Layout> layouts = {
      {.shape = {.pp = 2, .tp = 2}, .order = k1f1b, .chunks = kTwo},
      {.shape = {.pp = 2, .tp = 2}, .order = kZeroBubble, .chunks = kTwo, .sequence = true},
      {.shape = {.pp = 2, .dp = 2}, .order = kZeroBubble, .chunks = kTwo},
      {.shape = {.pp = 2, .dp = 2}, .order = k1f1b, .chunks = kFour, .recompute = true},
      {.shape = {.pp = 2, .dp = 2, .tp = 2},
       .order = kGPipe,
       .chunks = kTwo,
       .sequence = true,
       .recompute = true},
      {.shape = {.pp = 4, .dp = 2}, .order = k1f1b, .chunks = kFour, .recompute = true},
      {.shape = {.pp = 2, .tp = 4}, .order = k1f1b, .chunks = kFour, .sequence = true},
      {.shape = {.pp = 2, .dp = 2, .tp = 2}, .order = kVee, .chunks = kFour, .sequence = true},
  };
  SUBCASE("gpt") {
    check_layouts(gpt(), layouts);
  }
  SUBCASE("llama") {
    check_layouts(llama(), layouts);
  }
}

} // namespace pipeline_tests
