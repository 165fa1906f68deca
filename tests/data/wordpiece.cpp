#include "plugins/data/wordpiece/wordpiece.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace wordpiece_tests {

using mh::wordpiece::WordPieceTokenizer;
using Ids = std::vector<int32_t>;

namespace {

const std::string kVocab =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\ncafe\n!\n\u4e2d\n";

std::unique_ptr<WordPieceTokenizer>
tokenizer_of(const std::string& text, WordPieceTokenizer::Config config = {}) {
  std::string name = (std::filesystem::temp_directory_path() / "megahost-words-XXXXXX").string();
  const int file = mkstemp(name.data());
  REQUIRE(file >= 0);
  close(file);
  std::ofstream(name, std::ios::binary) << text;
  config.path = name;
  try {
    auto made = std::make_unique<WordPieceTokenizer>(config, mh::Tokenizer::Args{});
    std::filesystem::remove(name);
    return made;
  } catch (...) {
    std::filesystem::remove(name);
    throw;
  }
}

} // namespace

TEST_CASE("words of BERT") {
  const auto tokenizer = tokenizer_of(kVocab);
  CHECK(tokenizer->vocab() == 11);
  CHECK(tokenizer->encode("Unaffable  CAF\u00c9!!") == Ids{5, 6, 7, 8, 9, 9});
  CHECK(tokenizer->encode("un\u4e2dun able") == Ids{5, 10, 5, 1});
  CHECK(tokenizer->encode("un[MASK] [mask]\xFF") == Ids{5, 4, 1, 1, 1});
  CHECK(tokenizer->encode(std::string(101, 'u')) == Ids{1});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->decode(Ids{5, 6, 7, 8, 9}) == "unaffable cafe!");
  CHECK(tokenizer->token(6) == "##aff");
  CHECK(tokenizer->special_ids().cls == 2);
  CHECK(tokenizer->special_ids().mask == 4);
  CHECK(tokenizer->end_of_document() == 3);
  WordPieceTokenizer::Config config;
  config.lower_case = false;
  config.add_special_tokens = true;
  CHECK(tokenizer_of(kVocab, config)->encode("un UN") == Ids{2, 5, 1, 3});
}

TEST_CASE("Megatron-LM's beginning and end of a sequence") {
  WordPieceTokenizer::Config config;
  config.bos_eos = true;
  config.extra_ids = 2;
  const auto added = tokenizer_of(kVocab, config);
  CHECK(added->vocab() == 15);
  CHECK(added->special_ids().bos == 11);
  CHECK(added->special_ids().eos == 12);
  CHECK(added->special_ids().extra == Ids{13, 14});
  CHECK(added->encode("un[EOS]") == Ids{5, 12});
  const auto there = tokenizer_of(kVocab + "[EOS]\n", config);
  CHECK(there->special_ids().eos == 11);
  CHECK(there->special_ids().bos == 12);
}

TEST_CASE("vocabularies that are refused") {
  const auto says = [](const std::string& text, const char* sentence) {
    CHECK_THROWS_WITH_AS((void)tokenizer_of(text), doctest::Contains(sentence), mh::Error);
  };
  says("", "no token [UNK]");
  says("[UNK]\n\na\n", "line 2: a token that is empty");
  says("[UNK]\n\xFF\n", "line 2: a token that is empty or no UTF-8");
  says("[UNK]\na\na\n", "line 3: the token \"a\" is given twice");
  WordPieceTokenizer::Config config;
  config.add_special_tokens = true;
  CHECK_THROWS_WITH_AS(
      (void)tokenizer_of("[UNK]\n", config), doctest::Contains("[CLS] and [SEP]"), mh::Error
  );
}

} // namespace wordpiece_tests
