#include "plugins/data/hf/hf.hpp"

#include "core/text/byte_alphabet.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

using mh::hf::HfTokenizer;
using Json = nlohmann::json;

namespace {

using Ids = std::vector<int32_t>;

/// Byte b has id b; then "he", "ll"; then added tokens.
Json tokenizer_json() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[mh::text::byte_letters(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocab["he"] = 256;
  vocab["ll"] = 257;
  const auto added = [](int id, const char* content, bool normalized) {
    return Json{
        {"id", id}, {"content", content}, {"normalized", normalized}, {"special", !normalized}};
  };
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", Json::array({"l", "l"})}}}},
      {"added_tokens",
       {added(258, "<s>", false), added(259, "</s>", false), added(261, "Zé", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}}}},
          {{"Sequence", {{"id", "A"}}}},
          {{"SpecialToken", {{"id", "</s>"}}}}}},
        {"special_tokens", {{"<s>", {{"ids", {258}}}}, {"</s>", {{"ids", {259}}}}}}}}};
}

class Folder {
public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-hf-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  ~Folder() { std::filesystem::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void write(const char* name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

  [[nodiscard]] std::unique_ptr<HfTokenizer>
  tokenizer(const std::string& text, HfTokenizer::Config config = {}) const {
    write("tokenizer.json", text);
    config.path = path_;
    return std::make_unique<HfTokenizer>(config, mh::Tokenizer::Args{});
  }

  [[nodiscard]] std::string why(const std::string& text) const {
    try {
      (void)tokenizer(text);
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
      return error.what();
    }
    return "";
  }

private:
  std::filesystem::path path_;
};

} // namespace

TEST_CASE("a folder of Hugging Face's") {
  const Folder folder;
  folder.write(
      "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})"
  );
  const auto tokenizer = folder.tokenizer(tokenizer_json().dump());
  CHECK(tokenizer->vocab() == 262);
  CHECK(tokenizer->encode("hell h</s>") == Ids{256, 257, ' ', 'h', 259});
  CHECK(tokenizer->encode("aZé") == Ids{'a', 261});
  // As the reference: an added token whose characters are all of the byte alphabet is bytes.
  CHECK(tokenizer->decode(Ids{258, 256, 257, 261}) == "<s>hellZ\xE9");
  CHECK(tokenizer->token(' ') == "Ġ");
  CHECK(tokenizer->end_of_document() == 259);
  CHECK(tokenizer->special_ids().bos == 258);
  CHECK_FALSE(tokenizer->special_ids().mask);
  CHECK_FALSE(tokenizer->lossy());
  CHECK_THROWS_WITH_AS(
      (void)tokenizer->decode(Ids{260}), doctest::Contains("has no token"), mh::Error
  );
  HfTokenizer::Config config;
  config.add_special_tokens = true;
  config.eod = "ll";
  const auto with_ends = folder.tokenizer(tokenizer_json().dump(), config);
  CHECK(with_ends->encode("he") == Ids{258, 256, 259});
  CHECK(with_ends->end_of_document() == 257);
}

TEST_CASE("normalizers, prefix and splits") {
  const Folder folder;
  Json json = tokenizer_json();
  json["normalizer"] = {
      {"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Lowercase"}}}}};
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const auto lower = folder.tokenizer(json.dump());
  CHECK(lower->encode("HELL") == Ids{' ', 256, 257});
  CHECK(lower->encode("E\u0301") == Ids{' ', 0xC3, 0xA9});
  CHECK(lower->encode("zÉ") == Ids{261}); // the added token is normalized, too
  CHECK(lower->lossy());
  json = tokenizer_json();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"},
         {"pattern", {{"Regex", "h"}}},
         {"behavior", "Isolated"},
         {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  CHECK(folder.tokenizer(json.dump())->encode("hell") == Ids{'h', 'e', 257});
}

TEST_CASE("components that are not known are named") {
  const Folder folder;
  const auto says = [&](const Json& patch, const char* sentence) {
    Json json = tokenizer_json();
    json.merge_patch(patch);
    CAPTURE(sentence);
    CHECK(folder.why(json.dump()).find(sentence) != std::string::npos);
  };
  says({{"model", {{"type", "Unigram"}}}}, "model: the component \"Unigram\" is not known here");
  says({{"model", {{"dropout", 0.1}}}}, "BPE with dropout is not known");
  says({{"model", {{"end_of_word_suffix", "</w>"}}}}, "BPE with end_of_word_suffix");
  says({{"normalizer", {{"type", "Precompiled"}}}}, "normalizer: the component \"Precompiled\"");
  says({{"pre_tokenizer", {{"type", "Metaspace"}}}}, "does not end with ByteLevel");
  says({{"decoder", {{"type", "WordPiece"}}}}, "decoder: the component \"WordPiece\"");
  says({{"model", {{"vocab", {{"he", 0}}}}}}, "the id 0 is given twice");
  says({{"model", {{"vocab", {{"h", nullptr}}}}}}, "there is no token for the byte 104");
  says({{"model", {{"merges", {"h q"}}}}}, "needs the token \"hq\", which the vocabulary lacks");
  says({{"model", {{"merges", {"hq"}}}}}, "merges[0]: no pair of tokens");
  says({{"model", {{"merges", {7}}}}}, "merges[0]: no pair of tokens");
  CHECK(folder.why("{").find("no valid JSON") != std::string::npos);
  CHECK(folder.why("[]").find("expected an object") != std::string::npos);
}

TEST_CASE("a tokenizer.json cut anywhere or with flipped bits is refused or works") {
  const Folder folder;
  const std::string whole = tokenizer_json().dump();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole;
    const size_t bit = random() % (text.size() * 8);
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    (void)folder.why(text);
    CHECK(folder.why(whole.substr(0, random() % whole.size())) != "");
  }
}
