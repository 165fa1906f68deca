#pragma once
/// The words in which corpora describe themselves.

#include <megahost/error.hpp>
#include <megahost/indexed_dataset.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace mh {

inline constexpr std::array<const char*, 3> kSplitNames{"train", "valid", "test"};

/// 31207113 -> "31,207,113"
[[nodiscard]] inline std::string thousands(uint64_t number) {
  std::string digits = std::to_string(number);
  for (auto at = static_cast<ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

/// "1 document", "1,234 documents"
[[nodiscard]] inline std::string documents_text(uint64_t count) {
  return thousands(count) + (count == 1 ? " document" : " documents");
}

/// "train 36,816,640, valid 1,937,732": the splits that were asked for.
[[nodiscard]] inline std::string
describe_splits(const std::array<uint64_t, 3>& tokens, const std::array<double, 3>& shares) {
  std::string text;
  for (size_t split = 0; split < tokens.size(); ++split) {
    if (shares[split] > 0) {
      text += (text.empty() ? "" : ", ") + std::string(kSplitNames[split]) + " " +
              thousands(tokens[split]);
    }
  }
  return text;
}

/// The refusal of an id that the model does not have.
[[nodiscard]] inline Error
no_such_id(const IndexedDataset& dataset, const IndexedDataset::PlacedId& found, int64_t vocab) {
  return Error(
      dataset.prefix() + ".bin: document " + std::to_string(found.document) + " holds the id " +
          std::to_string(found.id) + " at token " + std::to_string(found.token) +
          ", but the model has ids 0 to " + std::to_string(vocab - 1),
      "raise model.vocab, or use the tokenizer and the corpus that belong together",
      exit_code::data
  );
}

/// Looks at some tokens of a corpus, so that a corpus of another tokenizer ends a run before its
/// first step.
///
/// Throws:  mh::Error (exit code 5) if the model does not have one of their ids
inline void check_ids(const IndexedDataset& dataset, int64_t vocab) {
  if (const auto found = dataset.find_outside(vocab)) {
    throw no_such_id(dataset, *found, vocab);
  }
}

} // namespace mh
