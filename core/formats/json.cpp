#include "core/formats/json.hpp"

#include "core/base/printable.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <limits>
#include <unordered_set>
#include <vector>

namespace mh {

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(where + ": " + why, "", exit_code::data);
}

/// Sees the parser's events and refuses what it would let pass.
class EventWatch {
public:
  EventWatch(const std::string& where, JsonLimits limits)
      : where_(where)
      , limits_(limits) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    const bool starts = event == Event::object_start || event == Event::array_start;
    if (starts && static_cast<size_t>(depth) >= limits_.depth) {
      refuse(where_, "more than " + std::to_string(limits_.depth) + " levels of JSON");
    }
    if ((starts || event == Event::value) && ++values_ > limits_.values) {
      refuse(where_, "more than " + std::to_string(limits_.values) + " JSON values");
    }
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        refuse(where_, "the key " + printable(key) + " is given twice in one JSON object");
      }
    }
    return true;
  }

private:
  const std::string& where_;
  JsonLimits limits_;
  size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;
};

} // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where, JsonLimits limits) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    refuse(where, "a NUL byte at byte " + std::to_string(nul) + " of the JSON text");
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    refuse(where, "the JSON text starts with a byte order mark");
  }
  EventWatch watch(where, limits);
  try {
    return nlohmann::json::parse(text, std::ref(watch));
  } catch (const nlohmann::json::parse_error& error) {
    refuse(where, "no valid JSON: syntax error at byte " + std::to_string(error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    refuse(where, "no valid JSON: a number out of range");
  }
}

const nlohmann::json&
json_member(const nlohmann::json& object, std::string_view key, const std::string& where) {
  if (!object.is_object()) {
    refuse(where, std::string("found a JSON ") + object.type_name() + ", expected an object");
  }
  const auto found = object.find(std::string(key));
  if (found == object.end()) {
    refuse(where, "`" + std::string(key) + "` is missing");
  }
  return *found;
}

const std::string&
json_string(const nlohmann::json& object, std::string_view key, const std::string& where) {
  const nlohmann::json& value = json_member(object, key, where);
  if (!value.is_string()) {
    refuse(
        where, "`" + std::string(key) + "` is a JSON " + value.type_name() + ", expected a string"
    );
  }
  return value.get_ref<const std::string&>();
}

bool is_json_size(const nlohmann::json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

int64_t json_size(const nlohmann::json& object, std::string_view key, const std::string& where) {
  const nlohmann::json& value = json_member(object, key, where);
  if (!is_json_size(value)) {
    refuse(where, "`" + std::string(key) + "` is no integer from 0 to 2^63 - 1");
  }
  return value.get<int64_t>();
}

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

} // namespace mh
