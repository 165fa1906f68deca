#include "blend.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace mh::indexed {
namespace {

constexpr uint64_t kStride = 1024;

} // namespace

Blend::Blend(std::vector<double> weights)
    : weights_(std::move(weights)) {
  MH_ASSERT(!weights_.empty(), "a blend of nothing");
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) {
    weight /= sum;
  }
  marks_.emplace_back(weights_.size());
}

size_t Blend::next(uint64_t index, const Counts& counts) const {
  const double given = std::max(static_cast<double>(index), 1.0);
  size_t best = 0;
  double most = weights_[0] * given - static_cast<double>(counts[0]);
  for (size_t i = 1; i < weights_.size(); ++i) {
    const double lag = weights_[i] * given - static_cast<double>(counts[i]);
    if (lag > most) {
      most = lag;
      best = i;
    }
  }
  return best;
}

Blend::Place Blend::at(uint64_t index) const {
  Counts counts;
  uint64_t at = 0;
  {
    const std::lock_guard lock(mutex_);
    while (marks_.size() <= index / kStride) {
      counts = marks_.back();
      for (at = (marks_.size() - 1) * kStride; at < marks_.size() * kStride; ++at) {
        ++counts[next(at, counts)];
      }
      marks_.push_back(std::move(counts));
    }
    counts = marks_[index / kStride];
  }
  for (at = index / kStride * kStride; at < index; ++at) {
    ++counts[next(at, counts)];
  }
  const size_t corpus = next(index, counts);
  return {corpus, counts[corpus]};
}

} // namespace mh::indexed
