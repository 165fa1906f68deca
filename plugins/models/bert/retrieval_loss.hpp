#pragma once
/// Scores of queries for contexts, and their loss.

#include <megahost/axis.hpp>
#include <megahost/context.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mh::bert {

/// The first token's row of each sample, wherever ranks hold it.
///
/// Shapes:  x [seq, batch, last] of the context's current sequence, as context.place(last) says ->
///          [batch, last], split over dp, replicated over cp, identical on the ranks of tp
/// Ranks:   collective over the mesh axes that split tokens
[[nodiscard]] at::Tensor first_tokens(const at::Tensor& x, Axis last, StepContext& context);

struct RetrievalSpec {
  double scale = 1;                  ///< factor of scores
  std::vector<int64_t> report_top{}; ///< numbers of best contexts for which accuracies are reported
};

/// Adds "retrieval loss", the cross entropy of each query's own context among those of all samples
/// of the microbatch, on whatever data-parallel ranks they lie, and "top-K accuracy". Contexts with
/// the number of a query's own ("labels") are no negatives of it, nor are absent ones.
///
/// Shapes:  queries [batch, dim]; contexts: own ones, then a tensor of each hard negative, the same
/// Arrays:  "labels" [contexts, batch] int64, "pair_mask" [1, batch]; "negative_mask" [contexts - 1,
///          batch] where there are hard negatives
/// Ranks:   collective over dp
/// Source:  arXiv:1906.00300 equation 6, arXiv:2004.04906 section 3.2
void add_retrieval_losses(
    const at::Tensor& queries,
    const std::vector<at::Tensor>& contexts,
    const RetrievalSpec& spec,
    StepContext& context
);

} // namespace mh::bert
