#pragma once
/// The files of Megatron-LM's ranks: mp_rank_00_001/model_optim_rng.pt.

#include "megahost/storage.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

/// The file of a rank, and its numbers, which the name of its folder tells.
struct RankFile {
  std::string name;
  int64_t tensor = 0, pipeline = 0, expert = 0;
};

/// The files of an iteration. The second one of two numbers is that of the pipeline stage.
[[nodiscard]] std::vector<RankFile> rank_files(Storage& storage, const Path& folder);

/// Takes the second one of two numbers for that of the expert-parallel rank, if the arguments say that
/// there is one pipeline stage.
void settle_numbers(std::vector<RankFile>& ret_files, const nlohmann::json& arguments);

/// Throws:  mh::Error (exit code 5) if the file of a rank is missing
void require_all_ranks(const Path& folder, const std::vector<RankFile>& files);

/// Takes a number of at most seven digits off a text; -1 if there is none.
[[nodiscard]] int64_t take_small(std::string& ret_text);

} // namespace mh
