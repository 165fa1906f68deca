#pragma once
/// A corpus's arrays in a JSON file: samples for models that read more than tokens.

#include "core/session/session.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace mh {

/// Arrays of samples by name, each with a row for every sample.
class GivenArrays {
public:
  /// Both outlive it; `file` is named in messages.
  ///
  /// Throws:  mh::Error (exit code 5) for rows that are no array of the model's
  GivenArrays(const nlohmann::json& json, std::string file, const Session& session);

  /// One microbatch per sample, or of all where the model compares them. Without a "loss_mask" all
  /// labels count.
  [[nodiscard]] std::vector<Batch> batches(bool labels) const;

private:
  /// The declaration of an array that has no element for each token; null for others.
  [[nodiscard]] const ArraySpec* apart(const std::string& name) const;
  [[nodiscard]] bool is_float(const std::string& name) const;

  /// The name of the sequence whose tokens an array is about; "": the sample's own.
  [[nodiscard]] std::string sequence_of(const std::string& name) const;

  void check(const std::string& name, const nlohmann::json& rows);
  [[noreturn]] void refuse(const std::string& found) const;

  const nlohmann::json& json_;
  std::string file_;
  const Session& session_;
  std::vector<ArraySpec> read_; // by the model
  size_t samples_ = 0;
  std::map<std::string, size_t, std::less<>> lengths_; // by sequence, or array without one
};

} // namespace mh
