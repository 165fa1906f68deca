#include "core/base/text.hpp"
#include "core/formats/json.hpp"
#include "core/text/byte_alphabet.hpp"
#include "core/text/pattern.hpp"
#include "core/text/vocabulary_file.hpp"
#include "hf.hpp"

#include <megahost/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

namespace mh::hf {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostIds = 1 << 24;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(where + ": " + why, "get the file anew, or use another tokenizer", exit_code::data);
}

[[noreturn]] void unknown(const std::string& where, const std::string& what) {
  throw Error(
      where + ": " + what + " is not known here",
      "use the tokenizer's own program, and `tokenizer = { use = \"null\", vocab = N }`",
      exit_code::data
  );
}

/// A member that may be missing or null.
const Json* optional_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool flag(const Json& object, const char* key, bool otherwise, const std::string& where) {
  const Json* value = optional_member(object, key);
  if (value != nullptr && !value->is_boolean()) {
    refuse(where, std::string("`") + key + "` is no boolean");
  }
  return value == nullptr ? otherwise : value->get<bool>();
}

int32_t id_of(const Json& value, const std::string& where) {
  if (!is_json_size(value) || value.get<int64_t>() >= kMostIds) {
    refuse(where, "an id that is no whole number from 0 to " + std::to_string(kMostIds - 1));
  }
  return value.get<int32_t>();
}

const Json& list_of(const Json& object, const char* key, const std::string& where) {
  const Json& list = json_member(object, key, where);
  if (!list.is_array()) {
    refuse(where, std::string("`") + key + "` is no list");
  }
  return list;
}

/// The regular expression of a Split that isolates its matches.
std::string split_pattern(const Json& component, const std::string& where) {
  const Json& pattern = json_member(component, "pattern", where);
  const std::string& behavior = json_string(component, "behavior", where);
  const bool invert = flag(component, "invert", false, where);
  if (behavior != "Isolated" && !(behavior == "Removed" && invert)) {
    unknown(where, "Split with the behavior " + string_text(behavior));
  }
  if (!pattern.is_object() || !pattern.contains("Regex")) {
    unknown(where, "Split by something that is no Regex");
  }
  return json_string(pattern, "Regex", where);
}

bool is_deepseek(const std::vector<std::string>& patterns) {
  return patterns.size() == 3 && patterns[0] == R"(\p{N}{1,3})" &&
         patterns[1] == "[一-龥\u3040-ゟ゠-ヿ]+" &&
         patterns[2] ==
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
             "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
}

/// All of a text is one word.
class WholeSplitter final : public text::Splitter {
public:
  [[nodiscard]] size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const override {
    if (begin == text.size()) {
      return 0;
    }
    ret_ends[0] = text.size();
    return 1;
  }
};

} // namespace

HfTokenizer::HfTokenizer(const Config& config, const Args&) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const bool folder = fs::is_directory(config.path, failure);
  const std::string path =
      folder ? (fs::path(config.path) / "tokenizer.json").string() : config.path;
  const Json json = parse_json(text::read_vocabulary_file("tokenizer.path", path), path);
  read_model(json_member(json, "model", path), path + ": model");
  if (const Json* component = optional_member(json, "normalizer")) {
    read_normalizer(*component, path + ": normalizer");
  }
  if (const Json* list = optional_member(json, "added_tokens")) {
    read_added_tokens(*list, path + ": added_tokens");
  }
  read_pre_tokenizer(json_member(json, "pre_tokenizer", path), path + ": pre_tokenizer");
  const std::string decoder = path + ": decoder";
  const std::string& type = json_string(json_member(json, "decoder", path), "type", decoder);
  if (type != "ByteLevel") {
    unknown(decoder, "the component " + string_text(type));
  }
  const Json* post = optional_member(json, "post_processor");
  if (post != nullptr && config.add_special_tokens) {
    read_post_processor(*post, path + ": post_processor");
  }
  const fs::path about = fs::path(path).parent_path() / "tokenizer_config.json";
  if (fs::is_regular_file(about, failure)) {
    const std::string name = about.string();
    read_special_ids(parse_json(text::read_vocabulary_file("tokenizer.path", name), name), name);
  }
  eod_ = special_.eos;
  if (!config.eod.empty()) {
    const auto found = ids_.find(config.eod);
    if (found == ids_.end()) {
      refuse(path, "there is no token " + string_text(config.eod) + ", which tokenizer.eod names");
    }
    eod_ = found->second;
  }
}

void HfTokenizer::set_token(
    int32_t id, const std::string& written, const std::string& where, bool again
) {
  const auto place = static_cast<size_t>(id);
  if (place >= tokens_.size()) {
    tokens_.resize(place + 1);
  }
  if (tokens_[place].known && !(again && tokens_[place].written == written)) {
    refuse(where, "the id " + std::to_string(id) + " is given twice");
  }
  tokens_[place] = {written, text::token_bytes(written), true};
  ids_[written] = id;
}

void HfTokenizer::read_model(const Json& model, const std::string& where) {
  const Json* type = model.is_object() ? optional_member(model, "type") : nullptr;
  if (type != nullptr && *type != "BPE") {
    unknown(where, "the component " + string_text(json_string(model, "type", where)));
  }
  const Json* dropout = optional_member(model, "dropout");
  if (dropout != nullptr && *dropout != 0.0) {
    unknown(where, "BPE with dropout");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* affix = optional_member(model, key);
    if (affix != nullptr && *affix != "") {
      unknown(where, std::string("BPE with ") + key);
    }
  }
  const Json& vocab = json_member(model, "vocab", where);
  if (!vocab.is_object()) {
    refuse(where, "`vocab` is no object of tokens and ids");
  }
  model_.whole_words = flag(model, "ignore_merges", false, where);
  model_.bytes.fill(text::kNoId);
  for (const auto& [token, value] : vocab.items()) {
    const int32_t id = id_of(value, where + ".vocab");
    set_token(id, token, where, /*again=*/false);
    if (text::is_byte_token(token) && !token.empty()) {
      const std::string bytes = text::token_bytes(token);
      (void)model_.tokens.add(bytes, id);
      if (bytes.size() == 1) {
        model_.bytes[static_cast<unsigned char>(bytes[0])] = id;
      }
    }
  }
  const auto missing = std::ranges::find(model_.bytes, text::kNoId);
  if (missing != model_.bytes.end()) {
    refuse(
        where,
        "there is no token for the byte " + std::to_string(missing - model_.bytes.begin()) +
            ": it is no byte-level vocabulary, the only kind that is known here"
    );
  }
  const Json& merges = list_of(model, "merges", where);
  model_.merges.reserve(merges.size());
  int32_t rank = 0;
  for (const Json& merge : merges) {
    const std::string at = where + ".merges[" + std::to_string(rank) + "]";
    std::string left, right;
    if (merge.is_string()) {
      const std::string& pair = merge.get_ref<const std::string&>();
      const size_t space = pair.find(' ');
      if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos) {
        refuse(at, "no pair of tokens with a blank between them");
      }
      left = pair.substr(0, space);
      right = pair.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      refuse(at, "no pair of tokens");
    }
    const auto token = [&](const std::string& written) {
      const auto found = ids_.find(written);
      if (found == ids_.end()) {
        refuse(at, "needs the token " + string_text(written) + ", which the vocabulary lacks");
      }
      return found->second;
    };
    model_.merges(token(left), token(right)) = {rank++, token(left + right)};
  }
}

void HfTokenizer::read_normalizer(const Json& component, const std::string& where) {
  const std::string& type = json_string(component, "type", where);
  if (type == "Sequence") {
    for (const Json& part : list_of(component, "normalizers", where)) {
      read_normalizer(part, where);
    }
    return;
  }
  constexpr std::array<std::pair<const char*, Change>, 5> kChanges{{
      {"NFC", Change::nfc},
      {"NFD", Change::nfd},
      {"NFKC", Change::nfkc},
      {"NFKD", Change::nfkd},
      {"Lowercase", Change::lower},
  }};
  const auto* found = std::ranges::find(kChanges, type, &decltype(kChanges)::value_type::first);
  if (found == kChanges.end()) {
    unknown(where, "the component " + string_text(type));
  }
  normalizers_.push_back(found->second);
}

void HfTokenizer::read_pre_tokenizer(const Json& component, const std::string& where) {
  std::vector<Json> parts{component};
  if (json_string(component, "type", where) == "Sequence") {
    parts = list_of(component, "pretokenizers", where).get<std::vector<Json>>();
  }
  if (parts.empty() || json_string(parts.back(), "type", where) != "ByteLevel") {
    unknown(where, "a sequence that does not end with ByteLevel");
  }
  std::vector<std::string> patterns;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const std::string& type = json_string(parts[i], "type", where);
    if (type != "Split") {
      unknown(where, "the component " + string_text(type) + " before ByteLevel");
    }
    patterns.push_back(split_pattern(parts[i], where));
  }
  prefix_space_ = flag(parts.back(), "add_prefix_space", true, where);
  const bool own_pattern = flag(parts.back(), "use_regex", true, where);
  if (prefix_space_ && !patterns.empty()) {
    unknown(where, "ByteLevel with add_prefix_space behind Split");
  }
  if (own_pattern && !patterns.empty()) {
    unknown(where, "ByteLevel with use_regex behind Split");
  }
  if (is_deepseek(patterns)) {
    splitter_ = text::deepseek_splitter();
  } else if (patterns.size() > 1) {
    unknown(where, "more than one Split, DeepSeek's three apart,");
  } else if (patterns.empty()) {
    splitter_ = own_pattern ? text::gpt2_splitter() : std::make_unique<WholeSplitter>();
  } else {
    splitter_ = text::known_splitter(patterns[0]);
    if (splitter_ == nullptr) {
      splitter_ = text::pattern_splitter(
          std::make_shared<text::Pattern>(patterns[0], text::Dialect::oniguruma, where)
      );
    }
  }
}

void HfTokenizer::read_post_processor(const Json& component, const std::string& where) {
  const std::string& type = json_string(component, "type", where);
  if (type == "Sequence") {
    for (const Json& part : list_of(component, "processors", where)) {
      read_post_processor(part, where);
    }
    return;
  }
  if (type == "ByteLevel") {
    return; // it moves offsets only
  }
  if (type != "TemplateProcessing") {
    unknown(where, "the component " + string_text(type));
  }
  const Json& special = json_member(component, "special_tokens", where);
  std::vector<int32_t>* side = &before_;
  for (const Json& piece : list_of(component, "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      side = &behind_;
      continue;
    }
    const std::string& name = json_string(json_member(piece, "SpecialToken", where), "id", where);
    for (const Json& id : list_of(json_member(special, name, where), "ids", where)) {
      side->push_back(id_of(id, where));
      (void)token_at(side->back());
    }
  }
}

void HfTokenizer::read_added_tokens(const Json& list, const std::string& where) {
  if (!list.is_array()) {
    refuse(where, "it is no list");
  }
  for (const Json& entry : list) {
    const int32_t id = id_of(json_member(entry, "id", where), where);
    const std::string& content = json_string(entry, "content", where);
    if (content.empty()) {
      continue;
    }
    set_token(id, content, where, /*again=*/true);
    text::AddedToken token{
        .content = content,
        .id = id,
        .single_word = flag(entry, "single_word", false, where),
        .lstrip = flag(entry, "lstrip", false, where),
        .rstrip = flag(entry, "rstrip", false, where)};
    if (flag(entry, "normalized", true, where)) {
      token.content = changed(content);
      tokens_[static_cast<size_t>(id)].bytes = text::token_bytes(token.content);
      normalized_added_.add(std::move(token));
    } else {
      added_.add(std::move(token));
    }
  }
}

void HfTokenizer::read_special_ids(const Json& config, const std::string& where) {
  const auto find = [&](const char* key) -> std::optional<int32_t> {
    const Json* value = config.is_object() ? optional_member(config, key) : nullptr;
    if (value == nullptr) {
      return std::nullopt;
    }
    const auto found = ids_.find(
        value->is_string() ? value->get<std::string>() : json_string(*value, "content", where)
    );
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  };
  special_.bos = find("bos_token");
  special_.eos = find("eos_token");
  special_.pad = find("pad_token");
  special_.unk = find("unk_token");
  special_.mask = find("mask_token");
  special_.cls = find("cls_token");
  special_.sep = find("sep_token");
}

} // namespace mh::hf
