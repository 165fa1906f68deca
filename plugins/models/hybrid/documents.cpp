#include "documents.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>

namespace mh::hybrid {

at::Tensor documents_begun(const AllTokens& all, StepContext& context) {
  if (context.mode().kv_cache != nullptr || context.mode().tokens_apart) { // nothing to tell apart
    return {};
  }
  const at::NoGradGuard no_grad;
  const at::Tensor segments = all.segments(context);
  if (!segments.defined()) {
    return {};
  }
  return context.cached("documents begun", [&] {
    const at::Tensor changes =
        segments.narrow(0, 1, segments.size(0) - 1).ne(segments.narrow(0, 0, segments.size(0) - 1));
    return at::cat({at::zeros_like(segments.narrow(0, 0, 1)), changes.cumsum(0)});
  });
}

at::Tensor starts_of(const at::Tensor& documents, const std::vector<TokenRun>& runs) {
  if (!documents.defined()) {
    return {};
  }
  std::vector<at::Tensor> parts;
  for (const TokenRun& run : runs) {
    const at::Tensor own = documents.narrow(0, run.first, run.count);
    const int64_t back = std::min<int64_t>(1, run.first);
    const at::Tensor before = documents.narrow(0, run.first - back, back + run.count - 1);
    parts.push_back(own.ne(back == 1 ? before : at::cat({own.narrow(0, 0, 1), before})));
  }
  return at::cat(parts);
}

} // namespace mh::hybrid
