#include "component.hpp"
#include "core/text/vocabulary_file.hpp"
#include "hf.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace mh::hf {

namespace {

void require_post_processor(const nlohmann::json& component, const std::string& where) {
  constexpr std::array<std::string_view, 4> kKnown{
      "ByteLevel", "BertProcessing", "RobertaProcessing", "TemplateProcessing"};
  const std::string& type = json_string(component, "type", where);
  if (std::ranges::find(kKnown, type) == kKnown.end()) {
    unknown(where, "the component " + string_text(type));
  }
}

} // namespace

HfTokenizer::HfTokenizer(const Config& config, const Args&) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const bool folder = fs::is_directory(config.path, failure);
  const std::string path =
      folder ? (fs::path(config.path) / "tokenizer.json").string() : config.path;
  const nlohmann::json json = parse_json(text::read_vocabulary_file("tokenizer.path", path), path);
  read_vocabulary(json, path);
  read_steps(json, path);
  if (const nlohmann::json* list = optional_member(json, "added_tokens")) {
    read_added_tokens(*list, path + ": added_tokens");
  }
  if (const nlohmann::json* post = optional_member(json, "post_processor")) {
    for (const nlohmann::json& component :
         components(*post, "processors", path + ": post_processor")) {
      require_post_processor(component, path + ": post_processor");
      if (config.add_special_tokens) {
        read_post_processor(component, path + ": post_processor");
      }
    }
  }
  const fs::path about = fs::path(path).parent_path() / "tokenizer_config.json";
  if (fs::is_regular_file(about, failure)) {
    read_special_ids(about.string());
  }
  for (int i = 0; ids_.contains("<extra_id_" + std::to_string(i) + ">"); ++i) {
    special_.extra.push_back(ids_.at("<extra_id_" + std::to_string(i) + ">"));
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

void HfTokenizer::read_vocabulary(const nlohmann::json& json, const std::string& path) {
  const nlohmann::json& model = json_member(json, "model", path);
  if (const nlohmann::json* component = optional_member(json, "pre_tokenizer")) {
    bytes_ = read_byte_splitter(*component, path + ": pre_tokenizer");
  }
  const std::string where = path + ": model";
  TokenModel read = read_model(model, where, bytes_.splitter != nullptr);
  for (const auto& [token, id] : read.ids) {
    set_token(id, token, where, /*again=*/false);
  }
  model_ = std::move(read.words);
  special_.unk = read.unknown;
  if (!read.bytes) {
    bytes_.splitter = nullptr;
  }
}

void HfTokenizer::read_steps(const nlohmann::json& json, const std::string& path) {
  if (const nlohmann::json* component = optional_member(json, "normalizer")) {
    normalizers_ = read_normalizers(*component, path + ": normalizer");
  }
  const nlohmann::json* pre = optional_member(json, "pre_tokenizer");
  if (pre != nullptr && bytes_.splitter == nullptr) {
    pre_tokenizers_ = read_pre_tokenizers(*pre, path + ": pre_tokenizer");
  }
  const nlohmann::json* decoder = optional_member(json, "decoder");
  if (decoder != nullptr) {
    decoders_ = read_decoders(*decoder, path + ": decoder");
  }
  const bool byte_decoder = decoder != nullptr && *optional_member(*decoder, "type") == "ByteLevel";
  lossy_ =
      bytes_.splitter == nullptr || bytes_.prefix_space || !normalizers_.empty() || !byte_decoder;
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
  tokens_[place] = {written, written, true};
  const auto [known, added] = ids_.emplace(written, id);
  if (!added && known->second != id) {
    refuse(
        where,
        "the token " + string_text(written) + " has the ids " + std::to_string(known->second) +
            " and " + std::to_string(id)
    );
  }
}

void HfTokenizer::read_post_processor(const nlohmann::json& component, const std::string& where) {
  const std::string& type = json_string(component, "type", where);
  if (type == "ByteLevel") {
    return; // it moves offsets only
  }
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    for (const auto& [key, side] : {std::pair("cls", &before_), std::pair("sep", &behind_)}) {
      const nlohmann::json& token = list_of(component, key, where);
      if (token.size() != 2) {
        refuse(where, std::string("`") + key + "` is no token and its id");
      }
      append_special(id_of(token[1], where), where, *side);
    }
    return;
  }
  const nlohmann::json& special = json_member(component, "special_tokens", where);
  std::vector<int32_t>* side = &before_;
  for (const nlohmann::json& piece : list_of(component, "single", where)) {
    if (piece.is_object() && piece.contains("Sequence")) {
      side = &behind_;
      continue;
    }
    const std::string& name = json_string(json_member(piece, "SpecialToken", where), "id", where);
    for (const nlohmann::json& id : list_of(json_member(special, name, where), "ids", where)) {
      append_special(id_of(id, where), where, *side);
    }
  }
}

void HfTokenizer::append_special(
    int32_t id, const std::string& where, std::vector<int32_t>& ret_ids
) const {
  if (static_cast<size_t>(id) >= tokens_.size() || !tokens_[static_cast<size_t>(id)].known) {
    refuse(where, "the id " + std::to_string(id) + " has no token");
  }
  ret_ids.push_back(id);
}

void HfTokenizer::read_added_tokens(const nlohmann::json& list, const std::string& where) {
  if (!list.is_array()) {
    refuse(where, "it is no list");
  }
  for (const nlohmann::json& entry : list) {
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
    if (!flag(entry, "normalized", true, where)) {
      added_.add(std::move(token));
      continue;
    }
    bool begins = true;
    token.content = changed(content, begins);
    tokens_[static_cast<size_t>(id)].changed = token.content;
    if (!token.content.empty()) {
      normalized_added_.add(std::move(token));
    }
  }
}

/// Reads the special tokens of tokenizer_config.json.
void HfTokenizer::read_special_ids(const std::string& path) {
  const nlohmann::json config =
      parse_json(text::read_vocabulary_file("tokenizer.path", path), path);
  const auto find = [&](const char* key) -> std::optional<int32_t> {
    const nlohmann::json* value = config.is_object() ? optional_member(config, key) : nullptr;
    if (value == nullptr) {
      return std::nullopt;
    }
    const auto found = ids_.find(
        value->is_string() ? value->get<std::string>() : json_string(*value, "content", path)
    );
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  };
  special_.bos = find("bos_token");
  special_.eos = find("eos_token");
  special_.pad = find("pad_token");
  special_.unk = find("unk_token").has_value() ? find("unk_token") : special_.unk;
  special_.mask = find("mask_token");
  special_.cls = find("cls_token");
  special_.sep = find("sep_token");
}

} // namespace mh::hf
