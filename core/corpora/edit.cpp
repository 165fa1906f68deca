// data merge, split, shuffle, dedup-exact: corpora made of the documents of others.

#include "core/corpora/corpora.hpp"
#include "core/options/read.hpp"
#include "core/storage/indexed_writer.hpp"
#include "megahost/error.hpp"
#include "megahost/indexed_dataset.hpp"
#include "megahost/shuffle.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <unordered_set>

namespace mh {

namespace {

IndexedDataset open_corpus(const std::string& given, Host& host) {
  return IndexedDataset(host.on_this_machine(given));
}

/// Documents are copied with their sequences; a corpus is not read and written at once.
class DocumentCopy {
public:
  DocumentCopy(const IndexedDataset& from, CorpusOutput output)
      : from_(from)
      , output_(std::move(output))
      , writer_(
            file_system(),
            output_.prefix(),
            *std::ranges::find(kTokenTypes, from.type(), &TokenType::name)
        ) {
    if (output_.prefix() == from.prefix()) {
      throw Error(output_.name() + " would be written while it is read", "choose another --output");
    }
  }

  void add(uint64_t document) {
    read_ids(document);
    writer_.add_document(ids_, lengths_);
  }

  /// The ids of a document, as they are written.
  const std::vector<int32_t>& read_ids(uint64_t document) {
    ids_.clear();
    lengths_.clear();
    for (uint64_t i = from_.document_begin(document); i < from_.document_begin(document + 1); ++i) {
      wide_.resize(from_.length(i));
      from_.read(i, 0, wide_);
      for (const int64_t id : wide_) {
        ids_.push_back(static_cast<int32_t>(id));
      }
      lengths_.push_back(wide_.size());
    }
    return ids_;
  }

  void commit() {
    writer_.commit();
    output_.publish();
    say_corpus(output_.name(), writer_.documents(), writer_.tokens());
  }

private:
  const IndexedDataset& from_;
  CorpusOutput output_;
  IndexedWriter writer_;
  std::vector<int64_t> wide_;
  std::vector<int32_t> ids_;
  std::vector<size_t> lengths_;
};

/// Two hashes of a document's ids: of 2^32 different documents, two share both in one case of 2^65.
std::pair<uint64_t, uint64_t> hashes_of(const std::vector<int32_t>& ids) {
  uint64_t first = mix(ids.size()), second = mix(first);
  for (const int32_t id : ids) {
    first = mix(first ^ static_cast<uint32_t>(id));
    second = mix(second * 3 + static_cast<uint32_t>(id));
  }
  return {first, second};
}

struct PairHash {
  size_t operator()(const std::pair<uint64_t, uint64_t>& pair) const { return pair.first; }
};

/// "98,1,1" as shares that sum to 1.
std::array<double, 3> shares_option(const Invocation& invocation) {
  const std::string text = invocation.value("--shares", "98,1,1");
  std::array<double, 3> shares{};
  double sum = 0;
  size_t at = 0, count = 0;
  while (at <= text.size() && count < 3) {
    char* end = nullptr;
    const double share = std::strtod(text.c_str() + at, &end);
    if (end == text.c_str() + at || !(share >= 0) || !std::isfinite(share)) {
      break;
    }
    shares[count++] = share;
    sum += share;
    at = static_cast<size_t>(end - text.c_str()) + 1;
  }
  if (at != text.size() + 1 || !(sum > 0)) {
    throw Error("--shares " + text + " are no three numbers", "as in --shares 98,1,1");
  }
  for (double& share : shares) {
    share /= sum;
  }
  return shares;
}

} // namespace

int command_data_merge(const Invocation& invocation, Host& host) {
  CorpusOutput output(invocation, host);
  std::vector<std::string> prefixes;
  for (const std::string& given : invocation.arguments) {
    prefixes.push_back(open_corpus(given, host).prefix());
    if (prefixes.back() == output.prefix()) {
      throw Error(output.name() + " would be written while it is read", "choose another --output");
    }
  }
  merge_indexed(file_system(), prefixes, output.prefix());
  const IndexedDataset merged(output.prefix());
  output.publish();
  say_corpus(output.name(), merged.documents(), merged.tokens());
  return 0;
}

int command_data_split(const Invocation& invocation, Host& host) {
  const IndexedDataset corpus = open_corpus(invocation.arguments[0], host);
  const std::array<double, 3> shares = shares_option(invocation);
  constexpr std::array<const char*, 3> kNames{"_train", "_valid", "_test"};
  std::vector<std::unique_ptr<DocumentCopy>> parts;
  std::vector<CorpusOutput> empty;
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto [first, last] = split_range(split_bounds(shares, i), corpus.documents());
    CorpusOutput output(invocation, host, kNames[i]);
    if (first == last) {
      empty.push_back(std::move(output));
      continue;
    }
    parts.push_back(std::make_unique<DocumentCopy>(corpus, std::move(output)));
    for (uint64_t document = first; document < last; ++document) {
      parts.back()->add(document);
    }
  }
  for (const auto& part : parts) { // all are written before the first one has its name
    part->commit();
  }
  for (CorpusOutput& part : empty) {
    part.remove();
    std::printf("%s: no document is left for it\n", part.name().c_str());
  }
  return 0;
}

int command_data_shuffle(const Invocation& invocation, Host& host) {
  const IndexedDataset corpus = open_corpus(invocation.arguments[0], host);
  const auto seed = static_cast<uint64_t>(number_option(invocation, "--seed", 1234, 0, INT64_MAX));
  DocumentCopy copy(corpus, CorpusOutput(invocation, host));
  for (uint64_t i = 0; i < corpus.documents(); ++i) {
    copy.add(shuffled(i, corpus.documents(), mix(seed)));
  }
  copy.commit();
  return 0;
}

int command_data_dedup_exact(const Invocation& invocation, Host& host) {
  const IndexedDataset corpus = open_corpus(invocation.arguments[0], host);
  DocumentCopy copy(corpus, CorpusOutput(invocation, host));
  std::unordered_set<std::pair<uint64_t, uint64_t>, PairHash> seen;
  uint64_t left_out = 0;
  for (uint64_t i = 0; i < corpus.documents(); ++i) {
    if (seen.insert(hashes_of(copy.read_ids(i))).second) {
      copy.add(i);
    } else {
      ++left_out;
    }
  }
  copy.commit();
  std::printf(
      "%s left out, each the same as one before it\n", count_text(left_out, "document").c_str()
  );
  return 0;
}

} // namespace mh
