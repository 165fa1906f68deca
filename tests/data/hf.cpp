#include "plugins/data/hf/hf.hpp"

#include "core/text/byte_alphabet.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace hf_tests {

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
  // The reference does the same: an added token whose characters are all of the byte alphabet is
  // bytes.
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
  // Only what matches is kept.
  Json& cut = json["pre_tokenizer"]["pretokenizers"][0];
  cut["pattern"] = {{"Regex", "\\p{L}+"}};
  cut["behavior"] = "Removed";
  cut["invert"] = true;
  CHECK(folder.tokenizer(json.dump())->encode("hell 12 he") == Ids{256, 257, 256});
}

TEST_CASE("components that are not known are named") {
  const Folder folder;
  const auto says = [&](const Json& patch, const char* sentence) {
    Json json = tokenizer_json();
    json.merge_patch(patch);
    CHECK_MESSAGE(
        folder.why(json.dump()).find(sentence) != std::string::npos,
        folder.why(json.dump()),
        sentence
    );
  };
  says({{"model", {{"type", "Lattice"}}}}, "model: the component \"Lattice\" is not known here");
  says({{"model", {{"type", "Unigram"}}}}, "`vocab` is no list");
  says({{"model", {{"dropout", 0.1}}}}, "BPE with dropout is not known");
  says({{"normalizer", {{"type", "Upper"}}}}, "normalizer: the component \"Upper\" is not known");
  says({{"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}}}}, "no base64");
  says({{"normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}}}}, "an empty pattern");
  says({{"pre_tokenizer", {{"type", "UnicodeScripts"}}}}, "the component \"UnicodeScripts\"");
  says(
      {{"pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Glued"}}}},
      "the behavior \"Glued\" is not known"
  );
  says({{"pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}}}, "`length` is 0");
  says({{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}}}, "no single character");
  says({{"decoder", {{"type", "CTC"}}}}, "decoder: the component \"CTC\" is not known");
  says({{"post_processor", {{"type", "Stamp"}}}}, "post_processor: the component \"Stamp\"");
  const Json again{{"id", 300}, {"content", "he"}};
  says({{"added_tokens", Json::array({again})}}, "the token \"he\" has the ids 256 and 300");
  says({{"model", {{"vocab", {{"he", 0}}}}}}, "the id 0 is given twice");
  says({{"model", {{"vocab", {{"h", nullptr}}}}}}, "there is no token for the byte 104");
  says({{"model", {{"merges", {"h q"}}}}}, "needs the token \"hq\", which the vocabulary lacks");
  says({{"model", {{"merges", {"hq"}}}}}, "merges[0]: no pair of tokens");
  says({{"model", {{"merges", {7}}}}}, "merges[0]: no pair of tokens");
  CHECK(folder.why("{").find("no valid JSON") != std::string::npos);
  CHECK(folder.why("[]").find("expected an object") != std::string::npos);
}

namespace {

/// The ids that a tokenizer of words makes of a text: "a" to "z" are 0 to 25, all else is 26.
Ids letters(const Folder& folder, const Json& patch, const std::string& text) {
  Json vocab{{"?", 26}};
  for (int letter = 0; letter < 26; ++letter) {
    vocab[std::string(1, static_cast<char>('a' + letter))] = letter;
  }
  Json json{{"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "?"}}}};
  json.merge_patch(patch);
  const auto tokenizer = folder.tokenizer(json.dump());
  CHECK(tokenizer->lossy());
  CHECK(tokenizer->special_ids().unk == 26);
  return tokenizer->encode(text);
}

} // namespace

TEST_CASE("what the vocabulary lacks is refused where it lacks the unknown token, too") {
  const Folder folder;
  const auto says = [&](Json model, const char* sentence) {
    model["unk_token"] = "[UNK]";
    const auto tokenizer = folder.tokenizer(Json{{"model", std::move(model)}}.dump());
    CHECK(tokenizer->encode("ab").size() == 1);
    CHECK_THROWS_WITH_AS((void)tokenizer->encode("xy"), doctest::Contains(sentence), mh::Error);
  };
  const Json vocab{{"ab", 0}, {"a", 1}, {"b", 2}};
  says({{"type", "WordLevel"}, {"vocab", vocab}}, "\"xy\" has no token, and the vocabulary lacks");
  says({{"type", "WordPiece"}, {"vocab", vocab}}, "lacks \"[UNK]\", which would stand for it");
  says({{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b"}}}, "\"x\" has no token");
  const auto unigram = folder.tokenizer(R"({"model": {"type": "Unigram", "vocab": [["a", -1]]}})");
  CHECK_THROWS_WITH_AS(
      (void)unigram->encode("x"), doctest::Contains("names none for what is unknown"), mh::Error
  );
}

TEST_CASE("pre-tokenizers, by hand") {
  const Folder folder;
  const auto pre = [&](const Json& component, const std::string& text) {
    return letters(folder, {{"pre_tokenizer", component}}, text);
  };
  CHECK(pre(nullptr, "ab") == Ids{26});
  CHECK(pre({{"type", "WhitespaceSplit"}}, "a b\u3000 c.") == Ids{0, 1, 26});
  CHECK(pre({{"type", "Whitespace"}}, "a b c..") == Ids{0, 1, 2, 26});
  CHECK(pre({{"type", "BertPreTokenizer"}}, "a,b $ c") == Ids{0, 26, 1, 26, 2});
  CHECK(pre({{"type", "CharDelimiterSplit"}, {"delimiter", "-"}}, "a-b--c") == Ids{0, 1, 2});
  CHECK(pre({{"type", "FixedLength"}, {"length", 1}}, "abé") == Ids{0, 1, 26});
  CHECK(pre({{"type", "Digits"}, {"individual_digits", true}}, "a12b") == Ids{0, 26, 26, 1});
  CHECK(pre({{"type", "Digits"}}, "a12b") == Ids{0, 26, 1});
  const auto split = [&](const char* behavior) {
    return pre({{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}}, "a--b");
  };
  CHECK(split("Removed") == Ids{0, 1});
  CHECK(split("Isolated") == Ids{0, 26, 26, 1});
  CHECK(split("Contiguous") == Ids{0, 26, 1});
  CHECK(split("MergedWithPrevious") == Ids{26, 26, 1});
  CHECK(split("MergedWithNext") == Ids{0, 26, 26});
}

TEST_CASE("WordPiece as BERT has it, with its post-processor and decoder") {
  const Folder folder;
  const Json vocab{{"[UNK]", 0}, {"[CLS]", 1}, {"[SEP]", 2}, {"do", 3}, {"##ing", 4}, {"!", 5}};
  HfTokenizer::Config config;
  config.add_special_tokens = true;
  const auto tokenizer = folder.tokenizer(
      Json{
          {"model",
           {{"type", "WordPiece"},
            {"vocab", vocab},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 5}}},
          {"normalizer", {{"type", "BertNormalizer"}, {"strip_accents", nullptr}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor",
           {{"type", "BertProcessing"}, {"cls", {"[CLS]", 1}}, {"sep", {"[SEP]", 2}}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}}
          .dump(),
      config
  );
  CHECK(tokenizer->encode("D\u00d6ing! does doinging") == Ids{1, 3, 4, 5, 0, 0, 2});
  CHECK(tokenizer->decode(Ids{3, 4, 5, 3}) == "doing! do");
}

TEST_CASE("pieces with byte fallback, as Llama 2 has them, and Unigram") {
  const Folder folder;
  Json vocab{{"<unk>", 0}, {"\u2581", 1}, {"a", 2}, {"\u2581a", 3}};
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    vocab[std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">"] = 4 + byte;
  }
  const Json space{{"String", " "}}, mark{{"String", "\u2581"}};
  Json json{
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"\u2581 a"}},
        {"unk_token", "<unk>"},
        {"byte_fallback", true}}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "\u2581"}},
          {{"type", "Replace"}, {"pattern", space}, {"content", "\u2581"}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
  const auto pairs = folder.tokenizer(json.dump());
  CHECK(pairs->encode("a aé") == Ids{3, 3, 4 + 0xC3, 4 + 0xA9});
  CHECK(pairs->decode(pairs->encode("a aé")) == "a aé");
  CHECK(pairs->encode("\xFF") == Ids{1, 4 + 0xEF, 4 + 0xBF, 4 + 0xBD});
  json["model"] = {
      {"type", "Unigram"},
      {"unk_id", 0},
      {"vocab",
       Json::parse(R"([["<unk>", 0.0], ["\u2581", -1.0], ["a", -1.5], ["\u2581a", -2.0]])")}};
  CHECK(folder.tokenizer(json.dump())->encode("a axy") == Ids{3, 3, 0});
  json.erase("pre_tokenizer");
  json.erase("normalizer");
  json["model"]["vocab"] = Json::parse(
      R"([["<unk>", 0.0], ["a", -1.0], ["b", -8.123015805877863], ["ab", -9.123015805877863]])"
  ); // which tokenizers reads as -9.123015805877865: two pieces are better
  CHECK(folder.tokenizer(json.dump())->encode("ab") == Ids{1, 2});
  json["model"]["vocab"][3] = "a";
  CHECK(folder.why(json.dump()).find("vocab[3]: no piece and its score") != std::string::npos);
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

} // namespace hf_tests
