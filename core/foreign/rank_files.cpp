#include "core/foreign/rank_files.hpp"

#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace mh {

namespace {

constexpr const char* kRankFile = "model_optim_rng.pt";
constexpr std::string_view kRankFolder = "mp_rank_";
constexpr int64_t kMostRanks = 1 << 20;

} // namespace

int64_t take_small(std::string& ret_text) {
  const size_t end = std::min(ret_text.find_first_not_of("0123456789"), ret_text.size());
  int64_t number = -1;
  if (end > 0 && end <= 7) {
    std::from_chars(ret_text.data(), ret_text.data() + end, number);
    ret_text.erase(0, end);
  }
  return number;
}

std::vector<RankFile> rank_files(Storage& storage, const Path& folder) {
  std::vector<RankFile> files;
  for (const Storage::Item& item : storage.list(folder)) {
    const std::string file = item.name + "/" + kRankFile;
    if (!item.is_prefix || !item.name.starts_with(kRankFolder) ||
        !storage.contains(folder / file)) {
      continue;
    }
    std::string rest = item.name.substr(kRankFolder.size());
    RankFile one{.name = file};
    one.tensor = take_small(rest);
    for (int64_t* number : {&one.pipeline, &one.expert}) {
      if (rest.starts_with('_')) {
        rest.erase(0, 1);
        *number = take_small(rest);
      }
    }
    if (rest.empty() && one.tensor >= 0 && one.pipeline >= 0 && one.expert >= 0) {
      files.push_back(std::move(one));
    }
  }
  return files;
}

void settle_numbers(std::vector<RankFile>& ret_files, const nlohmann::json& arguments) {
  const bool two = std::all_of(ret_files.begin(), ret_files.end(), [](const RankFile& one) {
    return one.expert == 0 && std::count(one.name.begin(), one.name.end(), '_') == 5;
  });
  const auto size = [&](const char* key) {
    const auto found = arguments.find(key);
    return found != arguments.end() && found->is_number_integer() ? found->get<int64_t>() : 1;
  };
  if (two && size("pipeline_model_parallel_size") == 1 && size("expert_model_parallel_size") > 1) {
    for (RankFile& file : ret_files) {
      std::swap(file.pipeline, file.expert);
    }
  }
}

void require_all_ranks(const Path& folder, const std::vector<RankFile>& files) {
  int64_t tensor = 0, pipeline = 0, expert = 0;
  for (const RankFile& file : files) {
    tensor = std::max(tensor, file.tensor + 1);
    pipeline = std::max(pipeline, file.pipeline + 1);
    expert = std::max(expert, file.expert + 1);
  }
  if (tensor > kMostRanks || pipeline > kMostRanks || expert > kMostRanks ||
      tensor * pipeline > kMostRanks || tensor * pipeline * expert != std::ssize(files)) {
    throw Error(
        folder.string() + " holds the files of " + std::to_string(files.size()) +
            " ranks, and their numbers go up to those of " + std::to_string(tensor) +
            " tensor-parallel, " + std::to_string(pipeline) + " pipeline and " +
            std::to_string(expert) + " expert-parallel ranks",
        "bring the mp_rank_ folders of all ranks together",
        exit_code::data
    );
  }
}

} // namespace mh
