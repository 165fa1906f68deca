#include "core/attention/flash_calls.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace mh::ops {

namespace {

constexpr int64_t kFar = int64_t{1} << 40; // beyond every token

struct Span {
  int64_t begin = 0, end = 0;

  [[nodiscard]] int64_t size() const { return end - begin; }
};

/// Query i sees keys i + low to i + high.
struct Band {
  int64_t low = -kFar, high = kFar;
};

/// Queries and keys in which each query sees a key, and the window that makes it so; a side that
/// hides nothing has none.
struct Seen {
  Span queries, keys;
  std::optional<int64_t> left, right;
};

Band band_of(const KernelMask& mask) {
  return {
      mask.window > 0 ? 1 - mask.window : -kFar,
      mask.causal       ? 0
      : mask.window > 0 ? mask.window - 1
                        : kFar};
}

/// The part of two ranges of positions that is seen.
std::optional<Seen> seen_of(Span queries, Span keys, const Band& band) {
  queries.begin = std::max(queries.begin, keys.begin - band.high);
  queries.end = std::min(queries.end, keys.end - band.low);
  if (queries.size() <= 0) {
    return std::nullopt;
  }
  keys.begin = std::max(keys.begin, queries.begin + band.low);
  keys.end = std::min(keys.end, queries.end + band.high);
  if (keys.size() <= 0) {
    return std::nullopt;
  }
  Seen seen{queries, keys, std::nullopt, std::nullopt};
  if (queries.begin + band.high < keys.end - 1) { // the first query does not see the last key
    seen.right = queries.end + band.high - keys.end;
  }
  if (queries.end - 1 + band.low > keys.begin) { // the last one not the first
    seen.left = keys.end - queries.end - band.low;
  }
  return seen;
}

/// Runs that follow one another are one.
std::vector<TokenRun> joined(const std::vector<TokenRun>& runs, TokenRun otherwise) {
  std::vector<TokenRun> out;
  for (const TokenRun& run : runs.empty() ? std::vector<TokenRun>{otherwise} : runs) {
    if (!out.empty() && out.back().first + out.back().count == run.first) {
      out.back().count += run.count;
    } else {
      out.push_back(run);
    }
  }
  return out;
}

/// Cuts runs of queries where the keys end: the kernel's windows cannot tell queries that see some
/// of the keys from more queries behind them than there are keys. With a window those behind are
/// cut into pieces of at most as many.
std::vector<TokenRun>
cut_at_end(const std::vector<TokenRun>& queries, const TokenRun& keys, int64_t window) {
  const int64_t end = keys.first + keys.count;
  std::vector<TokenRun> out;
  for (const auto& [first, count] : queries) {
    int64_t rest = count, begin = first;
    while (rest > 0) {
      const int64_t most = begin < end ? end - begin : window > 0 ? keys.count : rest;
      out.push_back({begin, std::min(rest, most)});
      begin += out.back().count;
      rest -= out.back().count;
    }
  }
  return out;
}

/// The sample's documents with the positions that they span.
std::vector<std::pair<int64_t, Span>>
spans_of(const std::vector<DocumentStart>& documents, int64_t sample) {
  std::vector<std::pair<int64_t, Span>> spans;
  for (const DocumentStart& document : documents) {
    if (document.sample == sample) {
      if (!spans.empty()) {
        spans.back().second.end = document.first;
      }
      spans.push_back({document.id, {document.first, kFar}});
    }
  }
  return spans;
}

Span overlap(const Span& a, const TokenRun& run) {
  return {std::max(a.begin, run.first), std::min(a.end, run.first + run.count)};
}

/// The kernel's own reading of a window, see the header.
bool means(const FlashCall& call, const Seen& seen) {
  const int64_t longest = call.longest_keys;
  int64_t left = call.left >= longest ? -1 : call.left;
  int64_t right = call.right >= longest ? -1 : call.right;
  if (left < 0 && right < 0) {
    return !seen.left && !seen.right;
  }
  left = left < 0 ? longest : left;
  right = right < 0 ? longest : right;
  const bool right_holds = seen.right ? right == *seen.right : right >= seen.queries.size() - 1;
  const bool left_holds = seen.left ? left == *seen.left : left >= seen.keys.size() - 1;
  return right_holds && left_holds;
}

/// One window for all that a call sees, if there is one.
bool choose_window(FlashCall& call, const std::vector<Seen>& all) {
  for (const Seen& seen : all) {
    call.longest_queries = std::max(call.longest_queries, seen.queries.size());
    call.longest_keys = std::max(call.longest_keys, seen.keys.size());
    call.left = seen.left.value_or(call.left);
    call.right = seen.right.value_or(call.right);
  }
  return std::all_of(all.begin(), all.end(), [&](const Seen& seen) { return means(call, seen); });
}

/// Fills the call with sequences that cover its rows in order: those that see one another, and
/// between them queries without keys and keys without queries.
class Tiles {
public:
  explicit Tiles(FlashCall& call)
      : call_(call) {
    call_.query_ends.push_back(0);
    call_.key_ends.push_back(0);
  }

  /// Up to these rows of the call nothing sees anything.
  void skip(int64_t queries, int64_t keys) {
    if (queries > query_) {
      call_.blind = true;
      call_.longest_queries = std::max(call_.longest_queries, queries - query_);
      end(queries, key_);
    }
    if (keys > key_) {
      call_.longest_keys = std::max(call_.longest_keys, keys - key_);
      end(query_, keys);
    }
  }

  void end(int64_t queries, int64_t keys) {
    query_ = queries;
    key_ = keys;
    call_.query_ends.push_back(static_cast<int32_t>(queries));
    call_.key_ends.push_back(static_cast<int32_t>(keys));
  }

  [[nodiscard]] int64_t key() const { return key_; }

private:
  FlashCall& call_;
  int64_t query_ = 0, key_ = 0;
};

/// The call of a run of queries whose documents see those of the same number among the keys.
/// Nothing in `call.queries` if there are none.
bool documents_call(
    FlashCall& call,
    const KernelMask& mask,
    const TokenRun& queries,
    const TokenRun& keys,
    int64_t batch
) {
  Tiles sequences(call);
  std::vector<Seen> all;
  for (int64_t sample = 0; sample < batch; ++sample) {
    const int64_t first_query = sample * queries.count, first_key = sample * keys.count;
    const auto others = spans_of(mask.key_documents, sample);
    for (const auto& [id, span] : spans_of(mask.query_documents, sample)) {
      const auto other = std::find_if(others.begin(), others.end(), [id = id](const auto& o) {
        return o.first == id;
      });
      if (other == others.end()) {
        continue;
      }
      const auto seen =
          seen_of(overlap(span, queries), overlap(other->second, keys), band_of(mask));
      if (!seen) {
        continue;
      }
      const int64_t key = first_key + seen->keys.begin - keys.first;
      if (key < sequences.key()) { // documents of the two sequences in another order
        return false;
      }
      const int64_t query = first_query + seen->queries.begin - queries.first;
      sequences.skip(query, key);
      sequences.end(query + seen->queries.size(), key + seen->keys.size());
      all.push_back(*seen);
    }
    sequences.skip(first_query + queries.count, first_key + keys.count);
  }
  if (all.empty()) {
    call.queries = 0;
    return true;
  }
  return choose_window(call, all);
}

} // namespace

std::optional<std::vector<FlashCall>>
flash_calls(const KernelMask& mask, int64_t queries, int64_t keys, int64_t batch) {
  const auto others = joined(mask.key_runs, {0, keys});
  const int64_t most = std::max(queries, keys) * batch;
  if (others.size() != 1 || most > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  const TokenRun& run = others.front();
  std::vector<FlashCall> calls;
  int64_t row = 0;
  const auto owns = joined(mask.query_runs, {keys - queries, queries});
  for (const TokenRun& own : cut_at_end(owns, run, mask.window)) {
    FlashCall call{.first_query = row, .queries = own.count, .first_key = 0, .keys = keys};
    row += own.count;
    if (!mask.query_documents.empty()) {
      if (!documents_call(call, mask, own, run, batch)) {
        return std::nullopt;
      }
    } else if (const auto seen = seen_of({own.first, own.first + own.count}, {run.first, run.first + run.count}, band_of(mask))) {
      call.first_query += seen->queries.begin - own.first;
      call.queries = seen->queries.size();
      call.first_key = seen->keys.begin - run.first;
      call.keys = seen->keys.size();
      if (!choose_window(call, {*seen})) {
        return std::nullopt;
      }
    } else {
      call.queries = 0;
    }
    if (call.queries > 0) {
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

} // namespace mh::ops
