// Generation: how tokens are drawn, that a cache changes none, and that text comes in whole
// characters.

#include "core/session/generate.hpp"

#include "core/base/text.hpp"
#include "core/session/devices.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/decoder.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <doctest/doctest.h>

#include <cmath>
#include <map>

using namespace mh;

namespace {

constexpr int64_t kVocab = 40;

/// Ids are bytes; 39 ends a document.
class Bytes : public Tokenizer {
public:
  explicit Bytes(int64_t vocab = kVocab, bool documents = false)
      : vocab_(vocab)
      , documents_(documents) {}

  [[nodiscard]] int64_t vocab() const override { return vocab_; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override {
    return documents_ ? std::optional<int32_t>(39) : std::nullopt;
  }

private:
  int64_t vocab_;
  bool documents_;
};

DecoderConfig gpt() {
  DecoderConfig c;
  c.layers = 2;
  c.hidden = 16;
  c.heads = 4;
  c.init_std = 0.5;
  return c;
}

DecoderConfig llama() {
  DecoderConfig c = gpt();
  c.kv_heads = 2;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  return c;
}

/// A session without plugins, recipe file or corpus.
std::unique_ptr<Session> session_of(
    std::unique_ptr<Architecture> architecture, std::unique_ptr<Tokenizer> tokenizer, int64_t seq
) {
  auto session = std::make_unique<Session>();
  session->recipe.model.seq_length = seq;
  session->device = builtin_devices().make<Device>("cpu");
  session->tokenizer = std::move(tokenizer);
  session->architecture = std::move(architecture);
  session->model = std::make_unique<Model>(
      *session->architecture,
      Builder::Args{
          .mesh = &session->mesh,
          .rules = &session->rules,
          .seq = seq,
          .microbatch = 1,
          .vocab_multiple = 16}
  );
  return session;
}

std::unique_ptr<Session> session_of(const DecoderConfig& config, bool documents = false) {
  constexpr int64_t kSeq = 12;
  return session_of(
      std::make_unique<Decoder>(config, Architecture::Args{.vocab = kVocab, .seq_length = kSeq}),
      std::make_unique<Bytes>(kVocab, documents),
      kSeq
  );
}

Generated run(const Session& session, const GenerateOptions& options) {
  return generate(session, {1, 2, 3}, options, [](int32_t) { return true; });
}

} // namespace

TEST_CASE("a token is drawn by its share") {
  const at::Tensor logits = at::tensor({1.0, 3.0, 2.0, 3.0});
  CHECK(choose_token(logits, {.temperature = 0}, 7) == 1); // the first of two equal ones
  CHECK(choose_token(logits, {.temperature = 1, .top_k = 1}, 7) == 1);
  CHECK(choose_token(logits, {.temperature = 1, .top_p = 0}, 7) == 1);
  const auto count = [&](const Sampling& sampling) {
    std::map<int32_t, int> counts;
    for (uint64_t draw = 0; draw < 4000; ++draw) {
      ++counts[choose_token(logits, sampling, draw)];
    }
    return counts;
  };
  auto all = count({.temperature = 1});
  const double total = std::exp(1) + 2 * std::exp(3) + std::exp(2);
  CHECK(all[0] / 4000.0 == doctest::Approx(std::exp(1) / total).epsilon(0.2));
  CHECK(all[1] / 4000.0 == doctest::Approx(std::exp(3) / total).epsilon(0.05));
  CHECK(all[2] / 4000.0 == doctest::Approx(std::exp(2) / total).epsilon(0.1));
  auto cold = count({.temperature = 0.5});
  CHECK(
      cold[2] / 4000.0 ==
      doctest::Approx(std::exp(4) / (std::exp(2) + 2 * std::exp(6) + std::exp(4))).epsilon(0.2)
  );
  auto three = count({.temperature = 1, .top_k = 3});
  CHECK(three.size() == 3);
  CHECK(three[0] == 0);
  auto share = count({.temperature = 1, .top_p = 0.8}); // the two best have 0.80 of all
  CHECK(share.count(1) + share.count(3) == 2);
  CHECK(share.count(0) == 0);
  CHECK(count({.temperature = 1, .seed = 1}) == count({.temperature = 1, .seed = 1}));
  CHECK(count({.temperature = 1, .seed = 1}) != count({.temperature = 1, .seed = 2}));
}

TEST_CASE("a cache changes no token, and neither does a text longer than the model sees") {
  DecoderConfig c = llama();
  SUBCASE("gpt") {
    c = gpt();
  }
  SUBCASE("llama") {}
  SUBCASE("windows in every other layer, query-key norm") {
    c.window = 4;
    c.window_pattern = {"window", "global"};
    c.qk_norm = true;
  }
  const auto session = session_of(c);
  for (const Sampling& sampling :
       {Sampling{.temperature = 0},
        Sampling{.temperature = 1},
        Sampling{.top_k = 5},
        Sampling{.temperature = 2, .top_p = 0.9, .seed = 5}}) {
    const auto cached = run(*session, {.sampling = sampling, .tokens = 40});
    const auto whole = run(*session, {.sampling = sampling, .tokens = 40, .cache = false});
    CHECK(cached.cached);
    CHECK_FALSE(whole.cached);
    CHECK(cached.ids.size() == 40);
    CHECK(cached.ids == whole.ids);
  }
}

TEST_CASE("generation ends with the document, or when it is told to") {
  const auto session = session_of(gpt(), /*documents=*/true);
  const GenerateOptions options{.sampling = {.temperature = 3}, .tokens = 500};
  const auto made = run(*session, options);
  CHECK(made.ended);
  CHECK(made.ids.size() < 500);
  for (const int32_t id : made.ids) {
    CHECK(id != 39);
  }
  const auto open = run(*session_of(gpt()), options);
  CHECK_FALSE(open.ended);
  CHECK(open.ids.size() == 500);
  int64_t seen = 0;
  const auto stopped =
      generate(*session_of(gpt()), {1}, options, [&](int32_t) { return ++seen < 3; });
  CHECK(stopped.ids.size() == 3);
}

namespace {

/// A decoder whose second layer adds up what it sees by hand.
class Half : public Decoder {
public:
  enum class Sees : uint8_t { before, all };

  Half(Sees sees, bool says_cached)
      : Decoder(gpt(), Architecture::Args{.vocab = kVocab, .seq_length = 30})
      , sees_(sees)
      , says_cached_(says_cached) {}

  [[nodiscard]] std::unique_ptr<Block> layer(int64_t index, Builder& builder) const override {
    return index == 0 ? Decoder::layer(index, builder) : std::make_unique<Sum>(sees_, says_cached_);
  }

private:
  struct Sum : Block {
    Sum(Sees sees, bool says_cached)
        : sees_(sees)
        , says_cached_(says_cached) {}

    [[nodiscard]] State forward(const State& state, StepContext&) const override {
      const at::Tensor& x = state["hidden"].value;
      return state.with("hidden", x + (sees_ == Sees::all ? x.mean(0, true) : x.cumsum(0)));
    }

    [[nodiscard]] bool reads_cache() const override { return says_cached_; }

    Sees sees_;
    bool says_cached_;
  };

  Sees sees_;
  bool says_cached_;
};

std::unique_ptr<Session> session_of(Half::Sees sees, bool says_cached) {
  return session_of(std::make_unique<Half>(sees, says_cached), std::make_unique<Bytes>(), 30);
}

} // namespace

TEST_CASE("a model of which not every layer fills the cache is read again for each token") {
  const auto session = session_of(Half::Sees::before, /*says_cached=*/false);
  const auto made = run(*session, {.tokens = 20});
  CHECK_FALSE(made.cached);
  CHECK(made.ids == run(*session, {.tokens = 20, .cache = false}).ids);
}

TEST_CASE("a model that is not the same over a cache is refused there") {
  const auto session = session_of(Half::Sees::before, /*says_cached=*/true);
  CHECK_THROWS_WITH_AS(
      (void)run(*session, {.tokens = 20}),
      doctest::Contains("say that they read a cache, but over one its scores are others"),
      Error
  );
  CHECK(run(*session, {.tokens = 20, .cache = false}).ids.size() == 20);
}

TEST_CASE("a model that looks ahead cannot continue a text") {
  constexpr const char* kWhy = "cannot continue a text: its scores of a token change with the";
  CHECK_THROWS_WITH_AS(
      (void)run(*session_of(Half::Sees::all, false), {}), doctest::Contains(kWhy), Error
  );
  DecoderConfig both_ways = gpt();
  both_ways.causal = false;
  CHECK_THROWS_WITH_AS((void)run(*session_of(both_ways), {}), doctest::Contains(kWhy), Error);
  const auto one = [&](int32_t) { return true; };
  CHECK_THROWS_WITH_AS(
      (void)generate(*session_of(both_ways), {1}, {}, one), doctest::Contains(kWhy), Error
  );
}

TEST_CASE("prompts that a model cannot read are refused") {
  const auto session = session_of(gpt());
  const auto go = [&](std::vector<int32_t> prompt) {
    return generate(*session, std::move(prompt), {}, [](int32_t) { return true; });
  };
  CHECK_THROWS_WITH_AS((void)go({}), doctest::Contains("no token"), Error);
  CHECK_THROWS_WITH_AS((void)go({3, 40}), doctest::Contains("token 40"), Error);
  CHECK_THROWS_WITH_AS((void)go({-1}), doctest::Contains("token -1"), Error);
}

TEST_CASE("text comes in whole characters") {
  const Bytes bytes(256);
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z";
  TextStream stream(bytes, {});
  std::vector<std::string> parts;
  for (const int32_t id : bytes.encode(text)) {
    parts.push_back(stream.add(id));
  }
  CHECK(
      parts ==
      std::vector<std::string>{
          "a", "", "\xC3\xA9", "", "", "\xE2\x82\xAC", "", "", "", "\xF0\x9F\x98\x80", "z"}
  );
  CHECK(stream.finish().empty());
  TextStream broken(bytes, bytes.encode("prompt"));
  CHECK(broken.add(0xFF) == "\xEF\xBF\xBD");
  CHECK(broken.add(0xE2).empty());
  CHECK(
      broken.add('b') == "\xEF\xBF\xBD"
                         "b"
  );
  CHECK(broken.add(0xE2).empty());
  CHECK(broken.finish() == "\xEF\xBF\xBD");
}

TEST_CASE("text fit for a terminal") {
  CHECK(whole_characters("") == 0);
  CHECK(whole_characters("ab") == 2);
  CHECK(whole_characters("a\xE2\x82") == 1);
  CHECK(whole_characters("\x82\x82\x82\x82") == 4);
  CHECK(terminal_text("a\tb\x1B[31m\n\x07\x7F\xC2\x9B\xC3\xA9") == "a b?[31m\n???\xC3\xA9");
}
