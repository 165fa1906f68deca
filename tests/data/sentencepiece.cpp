#include "plugins/data/sentencepiece/sentencepiece.hpp"

#include "core/text/pieces.hpp"
#include "tests/data/temporary_file.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <random>

namespace sentencepiece_tests {

using mh::sentencepiece::SentencePieceTokenizer;
using Ids = std::vector<int32_t>;

namespace {

std::string number(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) {
    bytes += static_cast<char>(value | 0x80);
  }
  return bytes + static_cast<char>(value);
}

std::string integer(uint32_t field, uint64_t value) {
  return number(field << 3) + number(value);
}

std::string bytes(uint32_t field, const std::string& value) {
  return number(field << 3 | 2) + number(value.size()) + value;
}

std::string four(uint32_t value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string piece(const std::string& text, float score, int type = 1) {
  return bytes(
      1,
      bytes(1, text) + number(2 << 3 | 5) + four(std::bit_cast<uint32_t>(score)) +
          integer(3, static_cast<uint64_t>(type))
  );
}

/// Ids 0 to 2 are <unk>, <s>, </s>; then come the pieces.
std::string model(int type, const std::string& pieces, const std::string& normalizer = "") {
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + pieces +
         bytes(2, integer(3, static_cast<uint64_t>(type))) + bytes(3, normalizer);
}

std::string pairs_model() {
  return model(
      2,
      piece("▁", -9) + piece("a", -9) + piece("b", -9) + piece("ab", -1) + piece("▁a", -1) +
          piece("ba", 0) + piece("[X]", 0, 4)
  );
}

std::string unigram_model(const std::string& charsmap = "") {
  return model(
      1,
      piece("▁", -2) + piece("a", -2) + piece("b", -2) + piece("ab", -3) + piece("▁ab", -8) +
          piece("aba", -4, 5),
      bytes(2, charsmap)
  );
}

class File : public TemporaryFile {
public:
  using TemporaryFile::TemporaryFile;

  [[nodiscard]] std::unique_ptr<SentencePieceTokenizer>
  tokenizer(SentencePieceTokenizer::Config config = {}) const {
    config.path = path();
    return std::make_unique<SentencePieceTokenizer>(config, mh::Tokenizer::Args{});
  }

  [[nodiscard]] std::string why() const {
    try {
      const auto made = tokenizer();
      for (const char* text : {"a b", "abab \xFF", "x[X]aba"}) {
        const Ids ids = made->encode(text);
        for (const int32_t id : ids) {
          CHECK(id < made->vocab());
        }
        (void)made->decode(ids);
      }
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
      return error.what();
    }
    return "";
  }
};

} // namespace

TEST_CASE("pairs by score") {
  const File file(pairs_model());
  const auto tokenizer = file.tokenizer();
  CHECK(tokenizer->vocab() == 10);
  CHECK(tokenizer->encode("ab") == Ids{7, 5});  // "▁a" and "ab" tie, the left one is merged
  CHECK(tokenizer->encode("aba") == Ids{7, 8}); // "ba" comes first
  CHECK(tokenizer->encode(" a   a ") == Ids{7, 7});
  CHECK(tokenizer->encode("xyz") == Ids{3, 0}); // a run of unknown characters is one id
  CHECK(tokenizer->encode("b[X]b") == Ids{3, 5, 9, 5});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->decode(Ids{1, 7, 7, 0, 5, 2}) == "a a \u2047 b");
  CHECK(tokenizer->token(7) == "▁a");
  CHECK(tokenizer->special_ids().bos == 1);
  CHECK(tokenizer->special_ids().unk == 0);
  CHECK(tokenizer->end_of_document() == 2);
  CHECK_THROWS_WITH_AS((void)tokenizer->decode(Ids{10}), doctest::Contains("no piece"), mh::Error);
}

TEST_CASE("begins, ends and extra ids") {
  SentencePieceTokenizer::Config config;
  config.add_bos = config.add_eos = true;
  config.extra_ids = 2;
  const File file(pairs_model());
  const auto tokenizer = file.tokenizer(config);
  CHECK(tokenizer->vocab() == 12);
  CHECK(tokenizer->encode("a<extra_id_1>a") == Ids{1, 7, 11, 7, 2});
  CHECK(tokenizer->special_ids().extra == Ids{10, 11});
  CHECK(tokenizer->decode(Ids{7, 11}) == "a<extra_id_1>");
}

TEST_CASE("pieces by Viterbi") {
  const File file(unigram_model());
  const auto tokenizer = file.tokenizer();
  CHECK(tokenizer->encode("ab") == Ids{3, 6});     // -5, where ▁ab has -8
  CHECK(tokenizer->encode("aba") == Ids{3, 6, 4}); // the unused piece is no way
  CHECK(tokenizer->encode("axyb") == Ids{3, 4, 0, 5});
}

TEST_CASE("a text in pieces has the tokens of the whole, and one blank before it") {
  SentencePieceTokenizer::Config around;
  around.add_bos = around.add_eos = true;
  const std::string text = "ab ba\nabab\n\xD0\xB6 aba\n{b}\n\n b \n(a)\nbab\n";
  const size_t end = mh::text::end_of_piece(text), first = text.find("abab"),
               marks = text.find("(a)");
  CHECK(text.substr(end) == "bab\n");
  for (const std::string& model : {pairs_model(), unigram_model()}) {
    const File file(model);
    for (const auto& config : {SentencePieceTokenizer::Config{}, around}) {
      const auto tokenizer = file.tokenizer(config);
      const Ids whole = tokenizer->encode(text);
      for (const size_t middle : {text.find("\xD0"), marks}) {
        Ids ids;
        const std::vector<size_t> cuts{0, first, middle, end, text.size()};
        for (size_t i = 0; i + 1 < cuts.size(); ++i) {
          const Ids piece = mh::text::encode_piece(
              *tokenizer,
              std::string_view(text).substr(cuts[i], cuts[i + 1] - cuts[i]),
              i == 0,
              cuts[i + 1] == text.size()
          );
          ids.insert(ids.end(), piece.begin(), piece.end());
        }
        CHECK(ids == whole);
      }
    }
  }
}

TEST_CASE("parts of a text have its tokens, each on its own") {
  SentencePieceTokenizer::Config around;
  around.add_bos = around.add_eos = true;
  const File file(pairs_model());
  const auto tokenizer = file.tokenizer(around);
  CHECK(tokenizer->encode("aba[X]b[X]ab") == Ids{1, 7, 8, 9, 5, 9, 6, 2});
  const mh::text::PartEncoder first(*tokenizer, "", "[X]", "a"),
      middle(*tokenizer, "b[X]", "[X]", "b"), last(*tokenizer, "[X]", "", "");
  CHECK(first.encode("aba[X]") == Ids{1, 7, 8, 9});
  CHECK(middle.encode("b[X]") == Ids{5, 9});
  CHECK(last.encode("ab") == Ids{6, 2});
  CHECK(last.encode("") == Ids{2});
}

TEST_CASE("a table of replacements, right, wrong and cyclic") {
  // Unit 0 leads to 'A' at 65 (offset 0), whose leaf at 65 ^ 1 says where its text begins.
  std::string units(4 * 256, '\0');
  const auto set = [&](size_t at, uint32_t unit) { units.replace(4 * at, 4, four(unit)); };
  set(0, 128 << 10);
  set(128 ^ 'A', 1 << 10 | 0x100 | 'A');
  set(128 ^ 'A' ^ 1, 0x80000000);
  const std::string table =
      four(static_cast<uint32_t>(units.size())) + units + std::string("b\0", 2);
  CHECK(File(unigram_model(table)).tokenizer()->encode("aA") == Ids{3, 6});
  CHECK(File(unigram_model(table.substr(0, 90))).why().find("claims a trie") != std::string::npos);
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    for (size_t at = 0; at < 256; ++at) {
      set(at, static_cast<uint32_t>(random() % 2 == 0 ? random() : at | 0x100));
    }
    CHECK(File(unigram_model(four(1024) + units + "x")).why() == "");
  }
}

TEST_CASE("models that are refused") {
  const auto says = [](const std::string& bytes, const char* sentence) {
    CAPTURE(sentence);
    CHECK(File(bytes).why().find(sentence) != std::string::npos);
  };
  says("", "expected one");
  says(model(3, ""), "the model type word is not known here");
  says(piece("a", 0), "1 pieces, of which 0 are of the type unknown");
  says(model(1, piece("a", 0) + piece("a", 0)), "\"a\" is given twice");
  says(model(1, piece("\xFF", 0)), "empty or no UTF-8");
  says(model(1, piece("a", 0, 9)), "the type 9");
  says(model(1, piece("a", 0, 6)), "of the type byte");
  says(model(1, piece("a", __builtin_nanf(""))), "no finite number");
  says(model(1, "") + bytes(2, integer(35, 1)), "byte fallback, but no piece <0x00>");
  says(model(1, "") + bytes(5, bytes(2, "x")), "a denormalizer is not known here");
  says(model(1, integer(1, 5)), "field 1 has the wire type 0, expected 2");
  says(model(1, "\x0b"), "the wire type 3");
  says(model(1, "") + "\x0a\x7f", "has 127 bytes, but only 0 follow");
  says(model(1, "") + std::string(12, '\xFF'), "a number of more than 64 bits");
}

TEST_CASE("a model cut anywhere or with flipped bits is refused or works") {
  std::mt19937 random(2);
  for (const std::string& whole : {pairs_model(), unigram_model()}) {
    for (size_t i = 0; i < whole.size(); ++i) {
      (void)File(whole.substr(0, i)).why();
    }
    for (int i = 0; i < 1000; ++i) {
      std::string text = whole;
      const size_t bit = random() % (text.size() * 8);
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      (void)File(text).why();
    }
  }
}

} // namespace sentencepiece_tests
