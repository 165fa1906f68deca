#include "mixture.hpp"

#include "../corpus_text.hpp"
#include "bins.hpp"
#include "index_files.hpp"
#include "legacy_random.hpp"
#include "packing.hpp"

#include <megahost/shuffle.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace mh::indexed {
namespace {

[[noreturn]] void
refuse_small(const IndexedDataset& dataset, const Member& member, Split split, int64_t needed) {
  throw Error(
      dataset.prefix() + ": the " + kSplitNames[static_cast<size_t>(split)] + " split holds " +
          documents_text(member.last - member.first) + " of " + thousands(dataset.sequences()) +
          " with " + thousands(member.tokens) + " tokens, but a sample needs " +
          thousands(static_cast<uint64_t>(needed)),
      "give more documents, a larger share in data.split, or a shorter model.seq_length",
      exit_code::data
  );
}

/// The weight of a source, in some unit that all sources have; by epochs and tokens the unit is a
/// token.
std::optional<double> weight_of(const SourceConfig& source, uint64_t tokens) {
  if (source.weight) {
    return source.weight;
  }
  if (source.epochs) {
    return *source.epochs * static_cast<double>(tokens);
  }
  return source.tokens ? tokens_of(*source.tokens) : std::nullopt;
}

std::vector<Member> members_of(
    const Corpus::Args& args,
    Split split,
    const std::vector<SourceConfig>& sources,
    const std::vector<IndexedDataset>& datasets
) {
  const auto part = static_cast<size_t>(split);
  std::vector<Member> members;
  for (size_t i = 0; i < sources.size(); ++i) {
    const SourceConfig& source = sources[i];
    const uint64_t documents = datasets[i].sequences();
    Member member{.name = source.name, .dataset = i, .first = 0, .last = documents};
    if (source.split) {
      if (*source.split != kSplitNames[part]) {
        continue;
      }
    } else if (args.split[part] > 0) {
      member.shares = split_bounds(args.split, part);
      std::tie(member.first, member.last) = split_range(*member.shares, documents);
    } else {
      continue;
    }
    member.tokens = datasets[i].begin(member.last) - datasets[i].begin(member.first);
    member.sample_tokens = static_cast<double>(args.seq_length);
    member.weight = weight_of(source, member.tokens);
    members.push_back(std::move(member));
  }
  return members;
}

uint64_t hash_lengths(const IndexedDataset& dataset) {
  uint64_t hash = 0;
  for (uint64_t i = 0; i < dataset.sequences(); ++i) {
    hash = mix(hash ^ dataset.length(i));
  }
  return hash;
}

std::vector<double> sizes_of(const std::vector<Member>& members) {
  std::vector<double> sizes;
  for (const Member& member : members) {
    sizes.push_back(static_cast<double>(member.order->size()));
  }
  return sizes;
}

std::vector<double> weights_of(const std::vector<Member>& members) {
  std::vector<double> weights;
  for (const Member& member : members) {
    weights.push_back(
        member.weight.value_or(member.order ? static_cast<double>(member.order->size()) : 0)
    );
  }
  return weights;
}

uint64_t total_of(const std::vector<Member>& members) {
  uint64_t total = 0;
  for (const Member& member : members) {
    total += member.order->size();
  }
  return total;
}

} // namespace

Mixture::Mixture(
    const Config& config,
    const Corpus::Args& args,
    Split split,
    const std::vector<SourceConfig>& sources,
    const std::vector<IndexedDataset>& datasets,
    const std::vector<IndexedDataset>& masks
)
    : datasets_(&datasets)
    , members_(members_of(args, split, sources, datasets)) {
  if (members_.empty()) {
    return;
  }
  if (config.megatron() && !args.whole_splits) {
    make_megatron(config, args, split);
    return;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    const uint64_t key =
        mix(split == Split::train ? args.seed : 0) ^ mix(i * 3 + static_cast<uint64_t>(split));
    const auto seq = static_cast<uint64_t>(args.seq_length);
    const auto given = config.shuffle && !args.whole_splits ? std::optional(key) : std::nullopt;
    const IndexedDataset& dataset = datasets[member.dataset];
    if (config.whole_documents()) {
      const bool first_fit = config.packing == "first_fit";
      const IndexedDataset* const counts = masks.empty() ? nullptr : &masks[member.dataset];
      member.order =
          std::make_unique<Bins>(dataset, member.first, member.last, seq, given, first_fit, counts);
    } else {
      member.order = std::make_unique<Packing>(
          dataset, member.first, member.last, seq, given, args.whole_splits
      );
    }
    if (member.order->size() == 0) {
      const bool short_ones = config.whole_documents() || args.whole_splits;
      refuse_small(dataset, member, split, short_ones ? 2 : args.seq_length + 1);
    }
    if (config.whole_documents()) { // samples of one source are fuller than those of another
      member.sample_tokens =
          static_cast<double>(member.tokens) / static_cast<double>(member.order->size());
      if (member.weight && !sources[member.dataset].weight) {
        *member.weight /= member.sample_tokens;
      }
    }
  }
  size_ = total_of(members_);
  const bool by_name = split == Split::valid && config.validation_by_source;
  if (by_name) {
    make_parts();
  }
  if (by_name || args.whole_splits) {
    return; // one member after the other
  }
  endless_ = true;
  stages_.push_back({.begin = 0, .shares = shares_of(weights_of(members_))});
  for (const ChangeConfig& change : config.changes) {
    if (split != Split::train) {
      break; // validation keeps its shares, so that its values can be compared
    }
    std::vector<double> weights;
    for (const Member& member : members_) {
      weights.push_back(change.weights.at(member.name));
    }
    stages_.push_back(
        {.begin = *samples_of(change.at, args.seq_length), .shares = shares_of(std::move(weights))}
    );
  }
  blend_ = std::make_unique<StagedBlend>(stages_);
}

void Mixture::make_order(
    Member& ret_member,
    std::optional<int64_t> samples,
    const Config& config,
    const Corpus::Args& args,
    Split split
) {
  const IndexedDataset& dataset = (*datasets_)[ret_member.dataset];
  const IndexTerms terms{
      .first = ret_member.first,
      .last = ret_member.last,
      .samples = samples,
      .seq = args.seq_length,
      .seed = static_cast<uint32_t>(args.seed),
      .drop_last_partial = split != Split::valid || config.drop_last_partial,
      .extra_token = config.extra_token};
  const auto sizes = index_sizes(terms, static_cast<int64_t>(ret_member.tokens));
  if (!sizes) {
    refuse_small(dataset, ret_member, split, args.seq_length + (config.extra_token ? 1 : 0));
  }
  const auto make = [&] {
    std::vector<int32_t> lengths(dataset.sequences());
    for (uint64_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = static_cast<int32_t>(dataset.length(i));
    }
    return make_index(terms, *sizes, lengths);
  };
  MegatronIndex index = config.index_files ? kept_index(
                                                 *config.index_files,
                                                 {.prefix = dataset.prefix(),
                                                  .split = kSplitNames[static_cast<size_t>(split)],
                                                  .shares = ret_member.shares,
                                                  .corpus_tokens = ret_member.tokens,
                                                  .lengths = hash_lengths(dataset)},
                                                 terms,
                                                 *sizes,
                                                 make
                                             )
                                           : make();
  ret_member.order = std::make_unique<MegatronOrder>(dataset, std::move(index), terms);
}

/// Source:  megatron-core 0.16.1, blended_megatron_dataset_builder.py
void Mixture::make_megatron(const Config& config, const Corpus::Args& args, Split split) {
  constexpr auto kMostSeed = std::numeric_limits<uint32_t>::max();
  if (args.seed > kMostSeed) {
    throw Error(
        "train.seed " + std::to_string(args.seed) + " is more than Megatron's order can have, " +
            std::to_string(kMostSeed),
        "choose a smaller one"
    );
  }
  const int64_t asked = args.wanted[static_cast<size_t>(split)];
  const bool whole = split == Split::valid && config.full_validation;
  const std::optional<int64_t> wanted = asked == 0 || whole ? std::nullopt : std::optional(asked);
  const bool weighted = members_.front().weight.has_value();
  const bool by_name = split == Split::valid && config.validation_by_source;
  const bool per_split = !members_.front().shares;
  const bool alone = members_.size() == 1 && (!weighted || per_split);
  if (alone || by_name) {
    for (Member& member : members_) {
      make_order(member, wanted, config, args, split);
    }
    size_ = total_of(members_);
    if (by_name) {
      make_parts();
    }
  } else if (weighted && wanted) {
    MegatronShares all = megatron_shares(weights_of(members_), *wanted);
    for (size_t i = 0; i < members_.size(); ++i) {
      make_order(members_[i], all.made[i], config, args, split);
    }
    size_ = all.size;
    stages_.push_back({.begin = 0, .shares = std::move(all.shares)});
  } else {
    for (Member& member : members_) {
      make_order(member, std::nullopt, config, args, split);
    }
    const uint64_t total = total_of(members_);
    size_ = wanted ? std::min(total, static_cast<uint64_t>(*wanted)) : total;
    Blend::Counts limits;
    for (const Member& member : members_) {
      limits.push_back(member.order->size());
    }
    stages_.push_back(
        {.begin = 0,
         .shares = wanted ? normalized(sizes_of(members_)) : shares_of(sizes_of(members_)),
         .limits = wanted ? Blend::Counts{} : limits}
    );
    if (wanted) {
      const Blend::Counts given = Blend(stages_.front().shares).counts(size_);
      for (size_t i = 0; i < limits.size(); ++i) {
        if (given[i] > limits[i]) {
          throw Error(
              (*datasets_)[members_[i].dataset].prefix() + ": the blend asks for " +
                  thousands(given[i]) + " samples, and it has " + thousands(limits[i]) +
                  ": Megatron refuses such a blend",
              "give data.weights",
              exit_code::data
          );
        }
      }
    }
  }
  if (!stages_.empty()) {
    blend_ = std::make_unique<StagedBlend>(stages_);
  }
  if (config.dataloader == "cyclic" && !by_name) {
    cyclic_ =
        std::make_unique<CyclicOrder>(size_, args.micro, args.data_ranks, config.data_sharding);
  }
}

void Mixture::make_parts() {
  int64_t first = 0;
  for (const Member& member : members_) {
    const auto size = static_cast<int64_t>(member.order->size());
    parts_.push_back({member.name, first, size});
    first += size;
  }
}

Mixture::Place Mixture::at(uint64_t index) const {
  if (cyclic_) {
    index = cyclic_->at(index);
  } else if (!endless_) {
    index %= size_;
  }
  if (blend_) {
    const Blend::Place place = blend_->at(index);
    const Member& member = members_[place.corpus];
    return {member, member.order->sample(place.sample), place.sample};
  }
  size_t part = 0;
  for (; index >= members_[part].order->size(); ++part) {
    index -= members_[part].order->size();
  }
  return {members_[part], members_[part].order->sample(index), index};
}

std::vector<double> Mixture::expected(uint64_t samples) const {
  std::vector<double> expected(members_.size());
  for (size_t i = 0; i < stages_.size(); ++i) {
    const uint64_t end = i + 1 < stages_.size() ? std::min(samples, stages_[i + 1].begin) : samples;
    for (size_t k = 0; k < expected.size() && stages_[i].begin < end; ++k) {
      expected[k] += static_cast<double>(end - stages_[i].begin) * stages_[i].shares[k];
    }
  }
  return expected;
}

} // namespace mh::indexed
