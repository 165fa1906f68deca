#include "core/formats/hf_index.hpp"

#include "core/base/printable.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <set>

namespace mh {

namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(file + ": " + why, "download the model's folder again", exit_code::data);
}

} // namespace

HfIndex read_hf_index(std::string_view text, const std::string& file) {
  const nlohmann::json root = parse_json(text, file);
  const nlohmann::json& map = json_member(root, "weight_map", file);
  if (!map.is_object() || map.empty()) {
    refuse(file, "`weight_map` is no object that names at least one tensor");
  }
  HfIndex index;
  std::set<std::string> files;
  for (const auto& [name, value] : map.items()) {
    if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>())) {
      refuse(file, "the file of tensor " + printable(name) + " is no bare file name");
    }
    index.file_of[name] = value.get<std::string>();
    files.insert(value.get<std::string>());
  }
  index.files.assign(files.begin(), files.end());
  return index;
}

std::string hf_index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes) {
  const nlohmann::json root{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of}};
  return root.dump(2, ' ', false, nlohmann::json::error_handler_t::strict) + "\n";
}

void check_hf_index(
    const HfIndex& index,
    const std::map<std::string, std::vector<std::string>>& tensors_of,
    const std::string& file
) {
  std::set<std::string> found;
  for (const auto& [shard, names] : tensors_of) {
    for (const std::string& name : names) {
      const auto listed = index.file_of.find(name);
      if (listed == index.file_of.end()) {
        refuse(
            file, "tensor " + printable(name) + " of " + printable(shard) + " is not in the index"
        );
      }
      if (listed->second != shard) {
        refuse(
            file,
            "tensor " + printable(name) + " should be in " + printable(listed->second) +
                " but is in " + printable(shard)
        );
      }
      found.insert(name);
    }
  }
  for (const auto& [name, shard] : index.file_of) {
    if (!found.contains(name)) {
      refuse(file, "tensor " + printable(name) + " is not in " + printable(shard));
    }
  }
}

} // namespace mh
