#include "core/commands/given_arrays.hpp"

#include "core/formats/json.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

namespace mh {

GivenArrays::GivenArrays(const nlohmann::json& json, std::string file, const Session& session)
    : json_(json)
    , file_(std::move(file))
    , session_(session)
    , read_(session.architecture->arrays(session.recipe.model.seq_length)) {
  if (!json.contains("tokens")) {
    refuse("has no array \"tokens\"");
  }
  samples_ = json["tokens"].is_array() ? json["tokens"].size() : 0;
  for (const auto& [name, rows] : json.items()) {
    check(name, rows);
  }
}

std::vector<Batch> GivenArrays::batches(bool labels) const {
  std::vector<Batch> batches;
  const size_t each = compares_samples(read_) ? samples_ : 1;
  for (size_t first = 0; first < samples_; first += each) {
    Batch batch;
    batch.batch = static_cast<int64_t>(each);
    for (size_t i = first; i < first + each; ++i) {
      batch.samples.push_back(static_cast<int64_t>(i));
    }
    for (const auto& [name, rows] : json_.items()) {
      if (!labels && (name.ends_with("loss_mask") || name.ends_with("labels"))) {
        continue;
      }
      std::vector<at::Tensor> columns;
      for (size_t i = first; i < first + each; ++i) {
        columns.push_back(
            is_float(name) ? at::tensor(rows[i].template get<std::vector<float>>(), at::kFloat)
                           : at::tensor(rows[i].template get<std::vector<int64_t>>(), at::kLong)
        );
      }
      batch.arrays[name] = at::stack(columns, 1);
      if (apart(name) == nullptr) {
        batch.sequences[sequence_of(name)] = columns.front().size(0);
      }
    }
    batch.seq = batch.sequences.extract("").mapped();
    const auto given = batch.arrays.find("labels");
    if (labels && given != batch.arrays.end() && apart("labels") == nullptr &&
        !batch.arrays.contains("loss_mask")) {
      batch.arrays["loss_mask"] = at::ones(given->second.sizes());
    }
    batches.push_back(std::move(batch));
  }
  return batches;
}

const ArraySpec* GivenArrays::apart(const std::string& name) const {
  const auto found = std::ranges::find(read_, name, &ArraySpec::name);
  return found == read_.end() || found->axis == axis::seq ? nullptr : &*found;
}

bool GivenArrays::is_float(const std::string& name) const {
  const ArraySpec* spec = apart(name);
  return spec != nullptr ? spec->type == ArraySpec::Type::float32 : name.ends_with("loss_mask");
}

std::string GivenArrays::sequence_of(const std::string& name) const {
  for (const auto& [sequence, length] : session_.architecture->sequences()) {
    if (name.starts_with(sequence + "_")) {
      return sequence;
    }
  }
  return "";
}

void GivenArrays::check(const std::string& name, const nlohmann::json& rows) {
  const auto all = session_.architecture->sequences();
  const ArraySpec* spec = apart(name);
  const std::string sequence = spec != nullptr ? "" : sequence_of(name);
  const int64_t most = spec != nullptr    ? spec->length
                       : sequence.empty() ? session_.recipe.model.seq_length
                                          : all.at(sequence);
  const bool ids = spec == nullptr && (name.ends_with("tokens") || name == "labels");
  if (!rows.is_array() || rows.empty() || rows.size() != samples_) {
    refuse("\"" + name + "\" has no row for each sample");
  }
  size_t& length = lengths_[spec != nullptr ? name : sequence];
  for (const auto& row : rows) {
    length = length == 0 && row.is_array() ? row.size() : length;
    if (!row.is_array() || row.empty() || row.size() != length ||
        static_cast<int64_t>(length) > most) {
      refuse(
          "\"" + name + "\" has a row of another length than the first one, or of more than " +
          std::to_string(most) + " elements"
      );
    }
    for (const auto& element : row) {
      if (is_float(name) ? !element.is_number()
                         : !is_json_size(element) || (ids && element.template get<int64_t>() >=
                                                                 session_.architecture->vocab())) {
        refuse("\"" + name + "\" holds " + element.dump());
      }
    }
  }
}

void GivenArrays::refuse(const std::string& found) const {
  throw Error(
      file_ + ": " + found,
      "give rows of the same length under each name, {\"tokens\": [[1, 2]], \"labels\": [[2, 3]]}; "
      "tokens and labels are ids below " +
          std::to_string(session_.architecture->vocab()),
      exit_code::data
  );
}

} // namespace mh
