#include "core/step/buckets.hpp"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

namespace mh {

namespace {

constexpr int64_t kAlignment = 32; // elements: a cache line, also in 16 bits

int64_t aligned(int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

/// The sums that all pieces of a leaf need over whole axes: a bucket's. Sums over blocks of an axis
/// stay with the piece.
std::vector<GradientSum> common_sums(const Parameter& parameter) {
  std::vector<GradientSum> common;
  for (const auto& sum : parameter.pieces.front().sums) {
    if (sum.inner == 0 &&
        std::all_of(parameter.pieces.begin(), parameter.pieces.end(), [&](const Piece& piece) {
          return std::find(piece.sums.begin(), piece.sums.end(), sum) != piece.sums.end();
        })) {
      common.push_back(sum);
    }
  }
  return common;
}

/// The axis of the ranks that may share a leaf; those of ZeRO-3 hold only what is trained.
const GradientSum* sharded_over(
    const Parameter& leaf, const std::vector<GradientSum>& sums, const GradientOptions& options
) {
  const bool frozen = std::any_of(leaf.pieces.begin(), leaf.pieces.end(), [](const Piece& piece) {
    return piece.frozen;
  });
  const auto data = std::find_if(sums.begin(), sums.end(), [](const GradientSum& sum) {
    return sum.axis == MeshAxis::dp || sum.axis == MeshAxis::edp;
  });
  const bool sharded = options.zero > 0 && data != sums.end() && !(options.zero >= 3 && frozen);
  return sharded ? &*data : nullptr;
}

/// If `zero` may cut anywhere, the leaves follow one another, and each rank's part is as long.
/// Whole leaves go to ranks, the largest first, each to the rank that has least.
void lay_out(Bucket& bucket, Unit unit) {
  const int64_t ranks = bucket.shards == nullptr ? 1 : bucket.shards->size();
  if (ranks == 1 || unit == Unit::element) {
    int64_t end = 0;
    for (auto& leaf : bucket.leaves) {
      leaf.begin = std::exchange(end, end + aligned(leaf.parameter->value.numel()));
    }
    bucket.length = aligned((end + ranks - 1) / ranks) * ranks;
    return;
  }
  std::vector<Bucket::Leaf*> largest_first;
  for (auto& leaf : bucket.leaves) {
    largest_first.push_back(&leaf);
  }
  std::stable_sort(largest_first.begin(), largest_first.end(), [](const auto* a, const auto* b) {
    return a->parameter->value.numel() > b->parameter->value.numel();
  });
  std::vector<int64_t> ends(static_cast<size_t>(ranks), 0);
  std::vector<size_t> owner;
  for (auto* leaf : largest_first) {
    const auto least = std::min_element(ends.begin(), ends.end());
    owner.push_back(static_cast<size_t>(least - ends.begin()));
    leaf->begin = std::exchange(*least, *least + aligned(leaf->parameter->value.numel()));
  }
  const int64_t chunk = *std::max_element(ends.begin(), ends.end());
  for (size_t i = 0; i < owner.size(); ++i) {
    largest_first[i]->begin += static_cast<int64_t>(owner[i]) * chunk;
  }
  bucket.length = chunk * ranks;
}

/// The index of a piece's first element in its leaf, counted flat.
int64_t flat_begin(const Parameter& parameter, const Piece& piece) {
  int64_t begin = piece.row * parameter.value.stride(0);
  for (size_t d = 0; d < piece.inside.size(); ++d) {
    begin += piece.inside[d] * parameter.value.stride(static_cast<int64_t>(d) + 1);
  }
  return begin;
}

/// The parts of a piece that this rank updates. A slice without elements, of a vocabulary that ends
/// before it, is a part all the same where parts are whole: this rank takes part in sums over it.
std::vector<Piece>
parts_in(const Bucket& bucket, const Bucket::Leaf& leaf, const Piece& piece, Unit unit) {
  const int64_t begin = bucket.first() - leaf.begin;
  if (unit == Unit::matrix && c10::multiply_integers(piece.shape) == 0) {
    const bool here = begin <= 0 && 0 < begin + bucket.chunk();
    return here ? std::vector<Piece>{piece} : std::vector<Piece>();
  }
  return parts_of(*leaf.parameter, piece, begin, begin + bucket.chunk());
}

} // namespace

Buckets make_buckets(ParameterStore& store, const Mesh& mesh, const GradientOptions& options) {
  Buckets buckets;
  Buckets after_backward;
  std::map<std::string, Bucket*> open;
  std::map<const Bucket*, size_t> complete; // by which leaf, counted as backward reaches them
  size_t leaves = 0;
  auto& all = store.all();
  for (auto leaf = all.rbegin(); leaf != all.rend(); ++leaf) {
    if (!leaf->value.requires_grad()) {
      continue;
    }
    const auto sums = common_sums(*leaf);
    const auto* data = sharded_over(*leaf, sums, options);
    const bool is_after_backward =
        !leaf->pieces.front().stages.empty() || (options.zero >= 2 && data == nullptr);
    std::string key = is_after_backward ? "after backward" : "";
    for (const auto& sum : sums) {
      key += " " + std::string(to_string(sum.axis));
    }
    if (options.zero >= 3 && data != nullptr) {
      key += " of block " + std::to_string(leaf->block);
    }
    auto& bucket = open[key];
    if (bucket == nullptr || bucket->elements >= options.bucket) {
      auto& list = is_after_backward ? after_backward : buckets;
      bucket = list.emplace_back(std::make_unique<Bucket>()).get();
      bucket->sums = sums;
      bucket->after_backward = is_after_backward;
      bucket->shards = data != nullptr ? &mesh.group(data->axis) : nullptr;
    }
    bucket->leaves.push_back({&*leaf, 0});
    bucket->elements += leaf->value.numel();
    complete[bucket] = ++leaves;
  }
  // Small leaves that are summed in another way than most, such as norms under `sequence`, share a
  // bucket that only the first layer completes: it must not hold up the others.
  std::stable_sort(buckets.begin(), buckets.end(), [&](const auto& a, const auto& b) {
    return complete[a.get()] < complete[b.get()];
  });
  std::move(after_backward.begin(), after_backward.end(), std::back_inserter(buckets));
  for (size_t i = 0; i < buckets.size(); ++i) {
    buckets[i]->number = i;
    lay_out(*buckets[i], options.unit);
  }
  return buckets;
}

std::vector<OwnedPiece> owned_of(const Bucket& bucket, Unit unit) {
  std::vector<OwnedPiece> owned;
  const int64_t first = bucket.first();
  for (const auto& leaf : bucket.leaves) {
    Parameter* const parameter = leaf.parameter;
    for (const auto& piece : parameter->pieces) {
      if (piece.frozen) {
        continue;
      }
      for (auto& part : parts_in(bucket, leaf, piece, unit)) {
        const int64_t at = leaf.begin - first + flat_begin(*parameter, part);
        const auto of = [&](const at::Tensor& chunk) {
          return chunk.narrow(0, at, c10::multiply_integers(part.shape)).view(part.shape);
        };
        if (bucket.shards != nullptr) {
          part.copies /= bucket.shards->size();
        }
        const auto gradient = of(bucket.kept());
        const auto value = bucket.own.defined() ? of(bucket.own)
                                                : parameter->view(parameter->value.detach(), part);
        owned.push_back({parameter, std::move(part), gradient, value});
      }
    }
  }
  return owned;
}

} // namespace mh
