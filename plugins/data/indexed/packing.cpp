#include "packing.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

namespace mh::indexed {
namespace {

constexpr uint64_t kBlock = 64;
constexpr uint64_t kBlocksPerThread = 1 << 12;

} // namespace

Packing::Packing(
    const IndexedDataset& dataset,
    uint64_t first,
    uint64_t last,
    uint64_t seq,
    std::optional<uint64_t> key,
    bool whole
)
    : dataset_(dataset)
    , first_(first)
    , count_(last - first)
    , seq_(seq)
    , key_(key)
    , whole_(whole)
    , tokens_(dataset.begin(last) - dataset.begin(first)) {}

uint64_t Packing::order(uint64_t place, uint64_t count, uint64_t key) const {
  return key_ ? shuffled(place, count, key) : place;
}

uint64_t Packing::document(const Epoch& epoch, uint64_t place) const {
  return first_ + order(place, count_, epoch.key);
}

std::shared_ptr<const Packing::Epoch> Packing::make_epoch(uint64_t number) const {
  auto epoch = std::make_shared<Epoch>();
  epoch->number = number;
  epoch->key = mix(mix(key_.value_or(0)) + number);
  const uint64_t blocks = (count_ + kBlock - 1) / kBlock;
  std::vector<uint64_t> sums(blocks);
  const auto add_up = [&](uint64_t begin, uint64_t end) {
    for (uint64_t block = begin; block < end; ++block) {
      for (uint64_t i = block * kBlock; i < std::min((block + 1) * kBlock, count_); ++i) {
        sums[block] += dataset_.length(document(*epoch, i));
      }
    }
  };
  const uint64_t workers = std::clamp<uint64_t>(
      blocks / kBlocksPerThread, 1, std::max(1U, std::thread::hardware_concurrency())
  );
  std::vector<std::jthread> threads;
  for (uint64_t w = 1; w < workers; ++w) {
    threads.emplace_back(add_up, blocks * w / workers, blocks * (w + 1) / workers);
  }
  add_up(0, blocks / workers);
  threads.clear(); // waits
  epoch->begins.resize(blocks);
  std::exclusive_scan(sums.begin(), sums.end(), epoch->begins.begin(), uint64_t{0});
  return epoch;
}

std::shared_ptr<const Packing::Epoch> Packing::epoch(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (recent_[0] == nullptr || recent_[0]->number != number) {
    std::swap(recent_[0], recent_[1]);
  }
  if (recent_[0] == nullptr || recent_[0]->number != number) {
    recent_[0] = make_epoch(number);
  }
  return recent_[0];
}

std::vector<DocumentRange> Packing::sample(uint64_t index) const {
  MH_ASSERT(size() > 0, "a sample of nothing");
  const auto order = epoch(index / size());
  const uint64_t number = this->order(index % size(), size(), mix(order->key));
  uint64_t skip = number * seq_;
  uint64_t wanted = std::min(seq_ + 1, tokens_ - skip);
  const auto block = std::prev(std::ranges::upper_bound(order->begins, skip));
  skip -= *block;
  uint64_t place = static_cast<uint64_t>(block - order->begins.begin()) * kBlock;
  std::vector<DocumentRange> pieces;
  for (; wanted > 0; ++place) {
    const uint64_t document = this->document(*order, place);
    const uint64_t length = dataset_.length(document);
    if (skip < length) {
      pieces.push_back({document, skip, std::min(length - skip, wanted)});
      wanted -= pieces.back().count;
      skip = 0;
    } else {
      skip -= length;
    }
  }
  return pieces;
}

} // namespace mh::indexed
