#pragma once
/// The keys of tokenised corpora in a recipe.

#include <megahost/corpus.hpp>
#include <megahost/schema.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh::indexed {

/// A corpus of a mixture.
struct SourceConfig {
  std::string path;
  std::string name; ///< empty: that of the file
  std::optional<double> weight, epochs;
  std::optional<std::string> tokens;
  std::optional<std::string> split; ///< the one split that gets all of it

  static void fields(Fields<SourceConfig>& fields);
};

/// Weights that hold from some point of the run on.
struct ChangeConfig {
  std::string at;
  std::map<std::string, double> weights;

  static void fields(Fields<ChangeConfig>& fields);
};

struct Config {
  std::vector<std::string> paths;
  std::vector<double> weights;
  std::vector<SourceConfig> sources;
  std::vector<ChangeConfig> changes;
  std::string order = "megahost";
  std::optional<std::string> index_files;
  std::string dataloader = "single";
  bool data_sharding = true;
  bool drop_last_partial = true;
  bool extra_token = true;
  std::string packing = "stream";
  bool supervised = false;
  bool mmap = true;
  double fim_rate = 0;
  double fim_spm_rate = 0.5;
  std::optional<int64_t> fim_prefix, fim_middle, fim_suffix;
  bool validation_by_source = false;
  bool full_validation = false;
  bool reset_positions = false;
  bool reset_attention = false;
  bool mask_eod_loss = false;
  bool shuffle = true;
  std::optional<int64_t> eod;

  [[nodiscard]] bool megatron() const { return order == "megatron"; }

  /// Samples are whole documents, each with labels of its own.
  [[nodiscard]] bool whole_documents() const { return packing != "stream"; }

  /// `paths` and `weights` as sources, or `sources`; each has a name.
  [[nodiscard]] std::vector<SourceConfig> all_sources() const;
};

void config_fields(Fields<Config>& fields);

/// "200B tokens" in samples of `seq` tokens, rounded up; "5000 samples". None for another text.
[[nodiscard]] std::optional<uint64_t> samples_of(const std::string& amount, int64_t seq);

/// "200B tokens", "200B": a number with K, M, B or T.
[[nodiscard]] std::optional<double> tokens_of(const std::string& amount);

} // namespace mh::indexed
