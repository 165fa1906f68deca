#include "blend.hpp"

#include "legacy_random.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace mh::indexed {
namespace {

constexpr uint64_t kStride = 1024;

} // namespace

Blend::Blend(std::vector<double> shares, Counts limits)
    : shares_(std::move(shares))
    , limits_(std::move(limits)) {
  MH_ASSERT(!shares_.empty(), "a blend of nothing");
  marks_.emplace_back(shares_.size());
}

size_t Blend::next(uint64_t index, const Counts& counts) const {
  const double given = std::max(static_cast<double>(index), 1.0);
  size_t best = shares_.size();
  double most = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (shares_[i] == 0 || (!limits_.empty() && counts[i] == limits_[i])) {
      continue;
    }
    const double lag = shares_[i] * given - static_cast<double>(counts[i]);
    if (best == shares_.size() || lag > most) {
      most = lag;
      best = i;
    }
  }
  return best;
}

void Blend::count(uint64_t index, Counts& ret_counts) const {
  const size_t corpus = next(index, ret_counts);
  if (corpus < ret_counts.size()) {
    ++ret_counts[corpus];
  }
}

Blend::Counts Blend::counts(uint64_t index) const {
  Counts counts;
  {
    const std::lock_guard lock(mutex_);
    while (marks_.size() <= index / kStride) {
      counts = marks_.back();
      for (uint64_t at = (marks_.size() - 1) * kStride; at < marks_.size() * kStride; ++at) {
        count(at, counts);
      }
      marks_.push_back(std::move(counts));
    }
    counts = marks_[index / kStride];
  }
  for (uint64_t at = index / kStride * kStride; at < index; ++at) {
    count(at, counts);
  }
  return counts;
}

Blend::Place Blend::at(uint64_t index) const {
  const Counts before = counts(index);
  const size_t corpus = next(index, before);
  MH_ASSERT(corpus < before.size(), "a sample behind the last of a blend");
  return {corpus, before[corpus]};
}

std::vector<double> shares_of(std::vector<double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) {
    weight /= sum;
  }
  return weights;
}

MegatronShares megatron_shares(std::vector<double> weights, int64_t wanted) {
  constexpr double kSurplus = 0.005;
  const std::vector<double> shares = normalized(std::move(weights));
  MegatronShares all{.shares = normalized(shares), .made = {}};
  for (const double share : shares) {
    const double target = std::ceil(static_cast<double>(wanted) * share);
    all.made.push_back(static_cast<int64_t>(std::ceil(target * (1 + kSurplus))));
    all.size += static_cast<uint64_t>(target);
  }
  return all;
}

StagedBlend::StagedBlend(const std::vector<Stage>& stages) {
  for (const Stage& stage : stages) {
    Blend::Counts given(stage.shares.size());
    if (!parts_.empty()) {
      const Part& before = parts_.back();
      given = before.blend->counts(stage.begin - before.begin);
      std::ranges::transform(given, before.given, given.begin(), std::plus<>());
    }
    parts_.push_back(
        {stage.begin, std::move(given), std::make_unique<Blend>(stage.shares, stage.limits)}
    );
  }
}

Blend::Place StagedBlend::at(uint64_t index) const {
  const auto part = std::prev(std::ranges::upper_bound(parts_, index, {}, &Part::begin));
  Blend::Place place = part->blend->at(index - part->begin);
  place.sample += part->given[place.corpus];
  return place;
}

} // namespace mh::indexed
