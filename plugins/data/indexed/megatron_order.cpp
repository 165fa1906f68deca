#include "megatron_order.hpp"

#include "legacy_random.hpp"

#include <megahost/error.hpp>

namespace mh::indexed {

std::vector<DocumentRange> MegatronOrder::sample(uint64_t index) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(
        dataset_.prefix() + ": the index files lead to " + what,
        "they are damaged or of another corpus: remove them, or name another folder in "
        "data.index_files",
        exit_code::data
    );
  };
  const int64_t number = index_.shuffle[index % size()];
  if (number < 0 || number >= static_cast<int64_t>(size())) {
    refuse("sample " + std::to_string(number));
  }
  const uint64_t at = 2 * static_cast<uint64_t>(number);
  const int64_t first = index_.samples[at], end_place = index_.samples[at + 2];
  if (first < 0 || end_place < first ||
      end_place >= static_cast<int64_t>(index_.documents.size())) {
    refuse(
        "place " + std::to_string(first) + " to " + std::to_string(end_place) + " of the documents"
    );
  }
  std::vector<DocumentRange> pieces;
  int64_t tokens = 0;
  for (int64_t place = first; place <= end_place; ++place) {
    const auto document = static_cast<uint64_t>(index_.documents[static_cast<uint64_t>(place)]);
    const auto length = static_cast<int64_t>(dataset_.length(document));
    const int64_t begin = place == first ? index_.samples[at + 1] : 0;
    const int64_t end = place == end_place ? index_.samples[at + 3] + extra_ : length;
    if (begin < 0 || begin > end || end > length) {
      refuse(
          "tokens " + std::to_string(begin) + " to " + std::to_string(end) + " of document " +
          std::to_string(document) + ", which has " + std::to_string(length)
      );
    }
    tokens += end - begin;
    if (begin < end) {
      pieces.push_back({document, static_cast<uint64_t>(begin), static_cast<uint64_t>(end - begin)}
      );
    }
  }
  const bool last = number + 1 == static_cast<int64_t>(size());
  if (tokens > tokens_ || (tokens < tokens_ && !(last && last_may_be_short_))) {
    refuse(
        std::to_string(tokens) + " tokens for sample " + std::to_string(number) + ", which has " +
        std::to_string(tokens_)
    );
  }
  return pieces;
}

CyclicOrder::CyclicOrder(uint64_t total, int64_t micro, int64_t data_ranks, bool sharding)
    : micro_(static_cast<uint64_t>(micro))
    , ranks_(static_cast<uint64_t>(data_ranks))
    , sharding_(sharding)
    , active_(total - total % (micro_ * ranks_)) {
  const uint64_t shuffled = sharding ? active_ / ranks_ : total - total % micro_;
  if (active_ == 0 || shuffled > UINT32_MAX) {
    throw Error(
        "data.dataloader = \"cyclic\" has " + std::to_string(total) + " samples, expected " +
            std::to_string(micro_ * ranks_) + " (a microbatch on each data-parallel rank) to 2^32",
        "use data.dataloader = \"single\"",
        exit_code::data
    );
  }
  shuffled_ = static_cast<uint32_t>(shuffled);
}

std::shared_ptr<const std::vector<uint32_t>> CyclicOrder::epoch(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (number_ != number) {
    order_ = std::make_shared<const std::vector<uint32_t>>(torch_randperm(shuffled_, number));
    number_ = number;
  }
  return order_;
}

uint64_t CyclicOrder::at(uint64_t index) const {
  const auto order = epoch(index / active_);
  const uint64_t in_epoch = index % active_;
  const uint64_t at_once = micro_ * ranks_;
  const uint64_t chunk = in_epoch / at_once, rank = in_epoch % at_once / micro_;
  const uint64_t row = chunk * micro_ + in_epoch % micro_; // row of this rank
  return sharding_ ? rank * shuffled_ + (*order)[row] : (*order)[row * ranks_ + rank];
}

} // namespace mh::indexed
