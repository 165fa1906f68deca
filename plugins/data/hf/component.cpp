#include "component.hpp"

namespace mh::hf {

void refuse(const std::string& where, const std::string& why) {
  throw Error(where + ": " + why, "get the file anew, or use another tokenizer", exit_code::data);
}

void unknown(const std::string& where, const std::string& what) {
  throw Error(
      where + ": " + what + " is not known here",
      "use the tokenizer's own program, and `tokenizer = { use = \"null\", vocab = N }`",
      exit_code::data
  );
}

const nlohmann::json* optional_member(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool flag(const nlohmann::json& object, const char* key, bool otherwise, const std::string& where) {
  const nlohmann::json* value = optional_member(object, key);
  if (value != nullptr && !value->is_boolean()) {
    refuse(where, std::string("`") + key + "` is no boolean");
  }
  return value == nullptr ? otherwise : value->get<bool>();
}

const nlohmann::json&
list_of(const nlohmann::json& object, const char* key, const std::string& where) {
  const nlohmann::json& list = json_member(object, key, where);
  if (!list.is_array()) {
    refuse(where, std::string("`") + key + "` is no list");
  }
  return list;
}

std::vector<nlohmann::json>
components(const nlohmann::json& component, const char* sequence_key, const std::string& where) {
  if (json_string(component, "type", where) != "Sequence") {
    return {component};
  }
  std::vector<nlohmann::json> all;
  for (const nlohmann::json& part : list_of(component, sequence_key, where)) {
    std::vector<nlohmann::json> parts = components(part, sequence_key, where);
    std::ranges::move(parts, std::back_inserter(all));
  }
  return all;
}

Sought::Sought(const nlohmann::json& component, const std::string& where) {
  const nlohmann::json& pattern = json_member(component, "pattern", where);
  if (pattern.is_object() && pattern.contains("Regex")) {
    pattern_ = std::make_shared<text::Pattern>(
        json_string(pattern, "Regex", where), text::Dialect::oniguruma, where
    );
    return;
  }
  literal_ = json_string(pattern, "String", where);
  if (literal_.empty()) {
    refuse(where, "an empty pattern");
  }
}

std::string
Sought::replaced(std::string_view text, const std::string& content, size_t& ret_head) const {
  std::string result;
  ret_head = 0;
  for_each_part(text, [&](size_t begin, size_t end, bool matched) {
    result += matched ? content : text.substr(begin, end - begin);
    ret_head = matched && begin == 0 ? end : ret_head;
  });
  return result;
}

} // namespace mh::hf
