#pragma once
/// A Hugging Face model's config.json in terms of a recipe's section `model`, by the mapping that
/// an architecture declares (megahost/hugging_face.hpp).

#include "megahost/hugging_face.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The contents of FOLDER/config.json; each value knows its place there.
///
/// Throws:  RecipeError with the place for what is no JSON; mh::Error (exit code 5) if there is no
///          such file, or its `model_type` is no text
[[nodiscard]] Value read_hf_config(const std::filesystem::path& folder);

/// The contents of a config.json whose text is given; messages name `file` as its place.
[[nodiscard]] Value read_hf_config(const std::filesystem::path& file, std::string text);

/// `model_type` of a config.json.
[[nodiscard]] const std::string& hf_model_type(const Value& config);

/// Whether a value of theirs is one of a key's words.
[[nodiscard]] bool is_word(const HfKey& key, const Value& value);

/// The description of a model in a config.json.
struct HfReading {
  /// The key that decides a field.
  struct Said {
    std::string key;      ///< key in the file
    bool present = false; ///< else transformers' default is taken
    bool compared = true;
  };

  std::string file; ///< "gpt2/config.json"
  std::string model_type;
  Table fields;                     ///< ours, "seq_length" among them
  std::map<std::string, Said> said; ///< by field
  std::vector<std::string> unknown; ///< keys that no plugin declares
};

/// Throws:  mh::Error (exit code 5), naming file, key and value: a model_type that the mapping
///          lacks, a value that the architecture cannot do, one of another type
[[nodiscard]] HfReading read_hf_fields(
    const Value& config,
    const HfMapping& mapping,
    const Schema& schema,
    const std::string& architecture
);

/// A config.json of these fields, without what changes no number.
///
/// Throws:  mh::Error naming a field whose value such a model cannot have
[[nodiscard]] Table write_hf_config(const Table& fields, const HfModel& model);

/// A field in which a recipe's model is not a config.json's.
struct HfDifference {
  std::string field;
  Origin origin;       ///< in the recipe
  std::string message; ///< "model.heads is 2, by n_head in config.json it is 4"
};

/// Compares all fields but those that the mapping leaves free. `options` is complete, with
/// `seq_length`.
[[nodiscard]] std::vector<HfDifference> hf_differences(
    const HfReading& theirs, const Table& options, const HfMapping& mapping, const Schema& schema
);

/// A sentence about unknown keys; empty if there are none.
[[nodiscard]] std::string hf_unknown_keys(const HfReading& reading);

/// A sentence about samples longer than those that the model is good for; empty if they are not.
[[nodiscard]] std::string hf_beyond_length(const HfReading& reading, int64_t seq_length);

} // namespace mh
