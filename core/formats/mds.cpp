#include "core/formats/mds.hpp"

#include "core/formats/indexed.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <optional>
#include <vector>

namespace mh {

namespace {

[[noreturn]] void refuse_mds(const std::string& file, const std::string& why) {
  throw Error(file + ": " + why, "the shard is damaged or cut short: get it anew", exit_code::data);
}

struct MdsColumn {
  std::string name;
  bool is_text = false;
  std::optional<uint32_t> bytes; // size of each value, if all have the same
};

std::vector<MdsColumn> columns_of(std::string_view text, const std::string& file) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  std::vector<MdsColumn> columns;
  try {
    const auto& names = json.at("column_names");
    for (size_t i = 0; i < names.size(); ++i) {
      const auto& size = json.at("column_sizes").at(i);
      columns.push_back(
          {names.at(i).get<std::string>(),
           json.at("column_encodings").at(i) == "str",
           size.is_null() ? std::nullopt : std::optional(size.get<uint32_t>())}
      );
    }
  } catch (const nlohmann::json::exception&) {
    refuse_mds(file, "it does not say what its columns are");
  }
  return columns;
}

} // namespace

std::string mds_json_lines(std::span<const std::byte> shard, const std::string& file) {
  const uint64_t words = shard.size() / sizeof(uint32_t);
  const uint64_t samples = words == 0 ? 0 : packed<uint32_t>(shard.data(), 0);
  const uint64_t table = (samples + 2) * sizeof(uint32_t);
  if (words < 2 || samples + 2 > words) {
    refuse_mds(file, "it has " + std::to_string(shard.size()) + " bytes, less than its table");
  }
  const auto place = [&](uint64_t index) { return packed<uint32_t>(shard.data(), index + 1); };
  const auto* text = reinterpret_cast<const char*>(shard.data());
  if (place(0) < table || place(0) > shard.size() || place(samples) != shard.size()) {
    refuse_mds(
        file, "its samples end at " + std::to_string(place(samples)) + ", not with the file"
    );
  }
  const auto columns = columns_of({text + table, place(0) - table}, file);
  std::string lines;
  bool has_text = false;
  for (uint64_t i = 0; i < samples; ++i) {
    const uint64_t begin = place(i), end = place(i + 1);
    const auto broken = [&] {
      refuse_mds(file, "sample " + std::to_string(i) + " does not end where it says");
    };
    if (begin > end || end > shard.size()) {
      broken();
    }
    uint64_t variable = 0;
    for (const MdsColumn& column : columns) {
      variable += column.bytes ? 0 : 1;
    }
    uint64_t at = begin + variable * sizeof(uint32_t), next = 0;
    if (at > end) {
      broken();
    }
    nlohmann::ordered_json line = nlohmann::ordered_json::object();
    for (const MdsColumn& column : columns) {
      const uint64_t bytes =
          column.bytes ? *column.bytes : packed<uint32_t>(shard.data() + begin, next++);
      if (bytes > end - at) {
        broken();
      }
      if (column.is_text) {
        line[column.name] = std::string(text + at, bytes);
        has_text = true;
      }
      at += bytes;
    }
    lines += line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  }
  if (!has_text && samples > 0) {
    throw Error(
        file + ": none of its columns holds text",
        "give a data set with a column of the encoding `str`",
        exit_code::data
    );
  }
  return lines;
}

} // namespace mh
