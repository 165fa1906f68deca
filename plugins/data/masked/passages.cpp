#include "passages.hpp"

#include "../corpus_text.hpp"
#include "../text/documents.hpp"
#include "../text/files.hpp"

#include <megahost/error.hpp>
#include <megahost/indexed_dataset.hpp>
#include <megahost/shuffle.hpp>
#include <megahost/tokenizer.hpp>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

namespace mh::masked {
namespace {

constexpr uint64_t kManyDocuments = 256;

class IndexedSource final : public PassageSource {
public:
  IndexedSource(const std::string& prefix, int64_t vocab)
      : dataset_(prefix) {
    check_ids(dataset_, vocab);
  }

  [[nodiscard]] uint64_t sequences() const override { return dataset_.sequences(); }

  [[nodiscard]] uint64_t documents() const override { return dataset_.documents(); }

  [[nodiscard]] uint64_t document_begin(uint64_t document) const override {
    return dataset_.document_begin(document);
  }

  [[nodiscard]] uint64_t length(uint64_t sequence) const override {
    return dataset_.length(sequence);
  }

  void read(uint64_t sequence, uint64_t first, std::span<int64_t> ret_ids) const override {
    dataset_.read(sequence, first, ret_ids);
  }

  [[nodiscard]] const std::string& name() const override { return dataset_.prefix(); }

private:
  IndexedDataset dataset_;
};

class TextSource final : public PassageSource {
public:
  TextSource(
      const std::vector<std::string>& paths,
      const std::vector<std::string>& extensions,
      const Corpus::Args& args
  )
      : tokens_(args.vocab)
      , begins_{0} {
    auto files = text::find_text_files(paths, extensions);
    std::ranges::sort(files, {}, [](const text::TextFile& file) {
      return std::pair(hash_text(file.name), file.name);
    });
    for (const text::TextFile& file : files) {
      documents_.push_back(sequences());
      add(file, *args.tokenizer, args.vocab);
    }
    documents_.push_back(sequences());
  }

  [[nodiscard]] uint64_t sequences() const override { return begins_.size() - 1; }

  [[nodiscard]] uint64_t documents() const override { return documents_.size() - 1; }

  [[nodiscard]] uint64_t document_begin(uint64_t document) const override {
    return documents_[document];
  }

  [[nodiscard]] uint64_t length(uint64_t sequence) const override {
    return begins_[sequence + 1] - begins_[sequence];
  }

  void read(uint64_t sequence, uint64_t first, std::span<int64_t> ret_ids) const override {
    tokens_.read(begins_[sequence] + first, ret_ids);
  }

  [[nodiscard]] const std::string& name() const override { return name_; }

private:
  /// A sequence is a line and the line breaks behind it.
  void add(const text::TextFile& file, const Tokenizer& tokenizer, int64_t vocab) {
    const std::string all = text::read_text_file(file.path);
    const SpecialIds special = tokenizer.special_ids();
    for (size_t begin = 0; begin < all.size();) {
      size_t end = std::min(all.find('\n', begin), all.size());
      end = std::min(all.find_first_not_of("\r\n", end), all.size());
      std::vector<int32_t> ids = tokenizer.encode(std::string_view(all).substr(begin, end - begin));
      begin = end;
      if (!ids.empty() && (ids.front() == special.cls || ids.front() == special.bos)) {
        ids.erase(ids.begin());
      }
      if (!ids.empty() && (ids.back() == special.sep || ids.back() == special.eos)) {
        ids.pop_back();
      }
      for (const int32_t id : ids) {
        if (id < 0 || id >= vocab) {
          throw Error(
              file.path + ": the tokenizer gives the id " + std::to_string(id) +
                  ", but the model has ids 0 to " + std::to_string(vocab - 1),
              "raise model.vocab, or use the tokenizer that belongs to the model",
              exit_code::data
          );
        }
      }
      if (!ids.empty()) {
        tokens_.append(ids);
        begins_.push_back(tokens_.size());
      }
    }
  }

  std::string name_ = "data.paths";
  text::TokenStore tokens_;
  std::vector<uint64_t> begins_;    // the first token of each sequence, and the end
  std::vector<uint64_t> documents_; // the first sequence of each document, and the end
};

bool is_tokenised(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".idx") || path.ends_with(".bin") ||
         std::filesystem::is_regular_file(path + ".idx", ignored);
}

/// Tokens of all sequences from one to another.
uint64_t tokens_of(const PassageSource& source, uint64_t first, uint64_t end) {
  uint64_t tokens = 0;
  for (uint64_t i = first; i < end; ++i) {
    tokens += source.length(i);
  }
  return tokens;
}

} // namespace

Passages::Passages(const PassagesConfig& config, const Corpus::Args& args)
    : args_(args)
    , begins_{0} {
  MH_ASSERT(args.tokenizer != nullptr, "passages need a tokenizer");
  std::vector<std::string> texts;
  for (const std::string& path : config.paths) {
    if (is_tokenised(path)) {
      sources_.push_back(std::make_unique<IndexedSource>(path, args.vocab));
    } else {
      texts.push_back(path);
    }
  }
  if (!texts.empty()) {
    texts_ = true;
    sources_.push_back(std::make_unique<TextSource>(texts, config.extensions, args));
  }
  for (const auto& source : sources_) {
    share_out(*source, begins_.back());
    begins_.push_back(begins_.back() + source->sequences());
  }
}

void Passages::share_out(const PassageSource& source, uint64_t begin) {
  std::vector<uint64_t> ends; // where a split may end
  if (source.documents() >= kManyDocuments) {
    for (uint64_t i = 1; i <= source.documents(); ++i) {
      ends.push_back(i == source.documents() ? source.sequences() : source.document_begin(i));
    }
  } else {
    for (uint64_t i = 1; i <= source.sequences(); ++i) {
      ends.push_back(i);
    }
  }
  const auto all = static_cast<double>(tokens_of(source, 0, source.sequences()));
  double share = 0;
  uint64_t first = 0, tokens = 0;
  auto end = ends.begin();
  for (size_t split = 0; split < ranges_.size(); ++split) {
    share += args_.split[split];
    const uint64_t began = first;
    while (end != ends.end() && (static_cast<double>(tokens) < share * all - 0.5)) {
      tokens += tokens_of(source, first, *end);
      first = *end++;
    }
    if (first > began) {
      ranges_[split].push_back({begin + began, begin + first});
    }
  }
}

Passages::Place Passages::place(uint64_t sequence) const {
  const auto after = std::ranges::upper_bound(begins_, sequence);
  const auto number = static_cast<size_t>(after - begins_.begin()) - 1;
  return {number, sequence - begins_[number]};
}

std::vector<Passage>
Passages::cut(Split split, bool across, const std::function<uint64_t(uint64_t)>& longest) const {
  std::vector<Passage> passages;
  const auto room = [&] { return longest(passages.size()); };
  for (const Range& range : ranges_[static_cast<size_t>(split)]) {
    const Place begins = place(range.first);
    const PassageSource* source = &source_of(begins);
    const uint64_t begin = begins.sequence;
    uint64_t document = 0;
    Passage passage;
    const auto close = [&] {
      if (passage.count >= 2 && (!across || passage.count == room())) {
        passages.push_back(passage);
      }
      passage = {};
    };
    for (uint64_t sequence = range.first; sequence < range.end; ++sequence) {
      const uint64_t own = sequence - range.first + begin;
      bool new_document = false;
      while (document < source->documents() && source->document_begin(document) <= own) {
        new_document |= source->document_begin(document++) == own;
      }
      if (new_document && !across) {
        close();
      }
      const uint64_t length = source->length(own);
      for (uint64_t first = 0; first < length;) {
        const uint64_t left = room() - passage.count;
        const bool whole = length - first <= left;
        if (!whole && passage.count > 0 && !across) { // a passage ends with a sequence
          close();
          continue;
        }
        if (passage.count == 0) {
          passage.sequence = sequence;
          passage.first = static_cast<uint32_t>(first);
        }
        const uint64_t taken = whole ? length - first : left;
        passage.count += static_cast<uint32_t>(taken);
        first += taken;
        if (!whole || passage.count == room()) {
          close();
        }
      }
    }
    close();
  }
  return passages;
}

std::vector<int64_t> Passages::read(const Passage& passage, std::vector<size_t>* ret_begins) const {
  std::vector<int64_t> ids(passage.count);
  const Place begins = place(passage.sequence);
  const PassageSource* source = &source_of(begins);
  uint64_t sequence = begins.sequence;
  uint64_t first = passage.first;
  for (size_t at = 0; at < ids.size(); ++sequence, first = 0) {
    const uint64_t count = std::min<uint64_t>(source->length(sequence) - first, ids.size() - at);
    const std::span part(ids.data() + at, count);
    source->read(sequence, first, part);
    const auto bad =
        std::ranges::find_if(part, [this](int64_t id) { return id < 0 || id >= args_.vocab; });
    if (bad != part.end()) {
      throw Error(
          source->name() + ": sequence " + std::to_string(sequence) + " holds the id " +
              std::to_string(*bad) + ", but the model has ids 0 to " +
              std::to_string(args_.vocab - 1),
          "raise model.vocab, or use the tokenizer and the corpus that belong together",
          exit_code::data
      );
    }
    if (ret_begins != nullptr && at > 0 && count > 0) {
      ret_begins->push_back(at);
    }
    at += count;
  }
  return ids;
}

std::optional<uint64_t> Passages::documents(size_t path) const {
  return texts_ ? std::nullopt : std::optional(sources_.at(path)->documents());
}

Passages::PathDocument Passages::document(const Passage& passage) const {
  const Place begins = place(passage.sequence);
  const PassageSource& source = source_of(begins);
  uint64_t first = 0, end = source.documents(); // the last that does not begin behind the sequence
  while (end - first > 1) {
    const uint64_t middle = first + (end - first) / 2;
    (source.document_begin(middle) <= begins.sequence ? first : end) = middle;
  }
  return {begins.source, first};
}

std::string Passages::found() const {
  uint64_t documents = 0, tokens = 0;
  for (const auto& source : sources_) {
    documents += source->documents();
    tokens += tokens_of(*source, 0, source->sequences());
  }
  return documents_text(documents) + ", " + thousands(tokens) + " tokens";
}

void refuse_empty(Split split, const Corpus::Args& args, const std::string& found) {
  const auto part = static_cast<size_t>(split);
  const std::string name = kSplitNames[part];
  throw Error(
      args.split[part] > 0 ? "the " + name + " split of the corpus holds no sample (" + found + ")"
                           : "the " + name + " split of the corpus is empty",
      args.split[part] > 0 ? "give more text, or a larger share in data.split"
                           : "give it a share in data.split",
      exit_code::data
  );
}

} // namespace mh::masked
