#pragma once
/// The arrays that a corpus declares, and whether its samples hold them.

#include "megahost/corpus.hpp"
#include "megahost/export.hpp"
#include "megahost/registry.hpp"
#include "megahost/value.hpp"

#include <memory>
#include <string>
#include <vector>

namespace mh {

/// The arrays that a corpus of these options declares; reads no data.
///
/// Throws:  mh::Error if two arrays have one name, or one on axis::seq has another length than its
///          sequence, or the model reads no such sequence
[[nodiscard]] MH_API std::vector<ArraySpec>
declared_arrays(const Registry::Entry& corpus, const Value& options, const Corpus::Args& args);

/// How a sample differs from what its corpus declares: "`labels` is float32 [64], declared int64
/// [64]"; empty if it does not.
[[nodiscard]] MH_API std::string
array_difference(const std::vector<ArraySpec>& declared, const Sample& sample);

/// Whether a model compares the samples of a microbatch with each other, so that its loss depends on
/// which of them meet: it reads a number of each sample, an array on axis::batch.
[[nodiscard]] MH_API bool compares_samples(const std::vector<ArraySpec>& read);

/// A sample of the shapes that are declared: ids of 0, and every loss mask 1.
[[nodiscard]] MH_API Sample blank_sample(const std::vector<ArraySpec>& declared);

/// A corpus of such samples: what a step that is recorded reads in place of data.
[[nodiscard]] std::unique_ptr<Corpus> blank_samples(const std::vector<ArraySpec>& declared);

} // namespace mh
