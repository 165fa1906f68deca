#pragma once
/// Megatron's arrays on disk, in the files that Megatron itself keeps them in.

#include "megatron_index.hpp"

#include <array>
#include <filesystem>
#include <functional>
#include <string>

namespace mh::indexed {

/// The split that index files belong to, as their description says it.
struct IndexedSplit {
  std::string prefix;                                ///< prefix of the corpus
  std::string split;                                 ///< "train", "valid", "test"
  std::optional<std::pair<double, double>> shares{}; ///< none: the whole corpus is this split's
  uint64_t corpus_tokens = 0;                        ///< tokens of the split's documents
  uint64_t lengths = 0;                              ///< hash of the lengths of all documents
};

/// The arrays from `folder`: mapped if a description there has the same split and terms,
/// whoever wrote it; else made and kept. A folder is one process's at a time, so that of many that
/// start together one makes the files. The description is written last, each file under a temporary
/// name before.
///
/// Files: NAME-GPTDataset-SPLIT-{document_index,sample_index,shuffle_index}.npy and
/// -description.txt, JSON with Megatron's keys; NAME is a hash of it (Megatron's: an MD5 sum).
///
/// Throws:  mh::Error (exit code 5) if files are damaged, or do not fit the corpus any more
[[nodiscard]] MegatronIndex kept_index(
    const std::filesystem::path& folder,
    const IndexedSplit& split,
    const IndexTerms& terms,
    const IndexSizes& sizes,
    const std::function<MegatronIndex()>& make
);

/// Writes the four files of an index, the description last.
void write_index_files(
    const std::filesystem::path& folder,
    const IndexedSplit& split,
    const IndexTerms& terms,
    const MegatronIndex& index
);

} // namespace mh::indexed
