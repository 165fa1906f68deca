#include "mock.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <algorithm>
#include <cmath>

namespace mh {
namespace {

/// Random words of one sample.
class Stream {
public:
  explicit Stream(uint64_t key)
      : key_(key) {}

  uint64_t below(int64_t limit) { return mix(key_ + ++count_) % static_cast<uint64_t>(limit); }

private:
  uint64_t key_;
  uint64_t count_ = 0;
};

} // namespace

void MockCorpus::fields(Fields<Config>& fields) {
  fields.add("pattern", &Config::pattern, "what there is to learn")
      .one_of({"markov", "repeat", "count", "random"});
  fields.add("samples", &Config::samples, "sequences in an epoch, over all splits").at_least(1);
  fields.add("branches", &Config::branches, "markov: tokens that may follow a token").at_least(1);
  fields.add("period", &Config::period, "repeat: tokens until the sequence begins anew")
      .at_least(1);
}

MockCorpus::MockCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args) {
  if (args.vocab < 1) {
    throw Error(
        "mock data has no vocabulary to draw from",
        "set model.vocab, or a tokenizer",
        exit_code::data
    );
  }
}

int64_t MockCorpus::size(Split split) const {
  const double share = args_.split[static_cast<size_t>(split)];
  return share > 0 ? std::max<int64_t>(1, std::llround(share * double(config_.samples))) : 0;
}

Sample MockCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    throw Error(
        "the mock corpus has no samples in a split whose share is 0",
        "change data.split",
        exit_code::data
    );
  }
  const uint64_t table = mix(args_.seed);
  const uint64_t part = mix(table + 1 + static_cast<uint64_t>(split));
  const uint64_t epoch = static_cast<uint64_t>(index) / count;
  const uint64_t number = shuffled(static_cast<uint64_t>(index) % count, count, mix(part ^ epoch));
  Stream random(mix(part + mix(number)));

  const int64_t vocab = args_.vocab;
  std::vector<int64_t> ids(static_cast<size_t>(args_.seq_length) + 1);
  const uint64_t step = random.below(vocab);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool first = i == 0;
    uint64_t id = 0;
    if (config_.pattern == "markov" && !first) {
      const uint64_t branch = random.below(config_.branches);
      id = mix(mix(table ^ static_cast<uint64_t>(ids[i - 1])) + branch) %
           static_cast<uint64_t>(vocab);
    } else if (config_.pattern == "repeat" && i >= static_cast<size_t>(config_.period)) {
      id = static_cast<uint64_t>(ids[i - static_cast<size_t>(config_.period)]);
    } else if (config_.pattern == "count" && !first) {
      id = (static_cast<uint64_t>(ids[i - 1]) + step) % static_cast<uint64_t>(vocab);
    } else {
      id = random.below(vocab);
    }
    ids[i] = static_cast<int64_t>(id);
  }

  Sample sample;
  sample["tokens"] = std::vector<int64_t>(ids.begin(), ids.end() - 1);
  sample["labels"] = std::vector<int64_t>(ids.begin() + 1, ids.end());
  sample["loss_mask"] = std::vector<float>(ids.size() - 1, 1.0F);
  return sample;
}

std::string MockCorpus::summary() const {
  return "mock: pattern " + config_.pattern + ", " + std::to_string(config_.samples) +
         " samples of " + std::to_string(args_.seq_length) + " tokens, vocabulary " +
         std::to_string(args_.vocab);
}

} // namespace mh
