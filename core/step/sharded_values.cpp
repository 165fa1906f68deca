#include "core/step/sharded_values.hpp"

#include "core/model/deferred_values.hpp"
#include "core/model/storage_memory.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace mh {

void ShardedValues::take(const Buckets& buckets, const GradientOptions& options) {
  const at::NoGradGuard no_grad;
  freed_ = options.zero >= 3;
  ahead_ = options.overlap;
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket) {
    auto& b = **bucket;
    if (b.shards == nullptr) {
      continue;
    }
    buckets_.push_back(&b);
    const auto& first = b.leaves.front().parameter->value;
    b.whole = at::zeros({b.length}, first.options().requires_grad(false));
    for (const auto& [parameter, begin] : b.leaves) {
      const auto& value = parameter->value;
      const at::Tensor place = b.whole.narrow(0, begin, value.numel()).view(value.sizes());
      if (options.deferred == nullptr || !options.deferred->make(*parameter, place)) {
        place.copy_(value);
        value.set_data(place);
      }
      bucket_of_[parameter] = &b;
    }
    b.own = b.whole.narrow(0, b.first(), b.chunk());
    if (freed_) {
      b.own = b.own.clone();
      of_block_[b.leaves.front().parameter->block].push_back(&b);
      drop(b);
    }
  }
}

void ShardedValues::send() {
  for (auto* bucket : buckets_) {
    if (freed_) {
      drop(*bucket);
    } else {
      fetch(*bucket);
    }
  }
  if (!ahead_) {
    settle();
  }
}

bool ShardedValues::needed(const std::vector<Parameter*>& parameters) {
  std::vector<Bucket*> now;
  for (const auto* parameter : parameters) {
    if (const auto found = bucket_of_.find(parameter); found != bucket_of_.end()) {
      now.push_back(found->second);
    }
  }
  if (freed_ && !now.empty()) {
    const auto next = of_block_.find(next_after(parameters.front()->block));
    const auto ahead = ahead_ && next != of_block_.end() ? next->second : std::vector<Bucket*>();
    for (auto* bucket : buckets_) {
      if (std::find(now.begin(), now.end(), bucket) == now.end() &&
          std::find(ahead.begin(), ahead.end(), bucket) == ahead.end()) {
        drop(*bucket);
      }
    }
    for (const auto* list : {&std::as_const(now), &ahead}) {
      for (auto* bucket : *list) {
        fetch(*bucket);
      }
    }
  }
  for (auto* bucket : now) {
    receive(*bucket);
  }
  return freed_;
}

/// The pass goes forward to the last block, and back to the first, where it ends.
int64_t ShardedValues::next_after(int64_t block) {
  const int64_t before = std::exchange(block_, block);
  if (block >= of_block_.rbegin()->first) {
    forward_ = false;
  } else if (block != before) {
    forward_ = block > before;
  } else if (block <= of_block_.begin()->first) {
    forward_ = true;
  }
  return forward_ ? block + 1 : block - 1;
}

void ShardedValues::wait_for_all() {
  for (auto* bucket : buckets_) {
    if (freed_) {
      fetch(*bucket);
    }
    receive(*bucket);
  }
}

void ShardedValues::settle() {
  for (auto* bucket : buckets_) {
    receive(*bucket);
  }
}

int64_t ShardedValues::bytes() const {
  int64_t bytes = 0;
  for (const auto* bucket : buckets_) {
    bytes += static_cast<int64_t>((freed_ ? bucket->own : bucket->whole).nbytes());
  }
  return bytes;
}

void ShardedValues::fetch(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  if (freed_) {
    if (bucket.here) {
      return;
    }
    const auto& flat = bucket.whole;
    share_memory(flat.storage(), at::empty({flat.numel()}, flat.options()).storage());
    bucket.here = true;
  }
  bucket.values = bucket.shards->start_all_gather(bucket.own, 0, bucket.whole);
  bucket.in_flight = true;
}

void ShardedValues::receive(Bucket& bucket) {
  if (!std::exchange(bucket.in_flight, false)) {
    return;
  }
  const at::NoGradGuard no_grad;
  (void)bucket.values.wait();
  bucket.values = Pending();
  if (trace) {
    trace("values " + std::to_string(bucket.number));
  }
}

void ShardedValues::drop(Bucket& bucket) {
  if (bucket.here) {
    receive(bucket);
    free_memory(bucket.whole.storage());
    bucket.here = false;
  }
}

} // namespace mh
