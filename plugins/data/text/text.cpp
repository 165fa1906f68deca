#include "text.hpp"

#include "../corpus_text.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>
#include <megahost/tokenizer.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace mh::text {
namespace {

/// Says every second how far a long job is.
class EncodingProgress {
public:
  explicit EncodingProgress(size_t total)
      : total_(total) {}

  void done(size_t count) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ > std::chrono::seconds(1)) {
      last_ = now;
      spdlog::info("text: tokenised {} of {} files", thousands(count), thousands(total_));
    }
  }

private:
  size_t total_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void check_ids(const std::vector<int32_t>& ids, int64_t vocab, const std::string& path) {
  const auto bad = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= vocab; });
  if (bad != ids.end()) {
    throw Error(
        path + ": token " + std::to_string(bad - ids.begin()) + " is id " + std::to_string(*bad) +
            ", but the model has ids 0 to " + std::to_string(vocab - 1),
        "raise model.vocab, or use the tokenizer that belongs to the model",
        exit_code::data
    );
  }
}

/// Tokens of the whole corpus that give each split its samples.
uint64_t tokens_for(const Corpus::Args& args) {
  if (args.samples == 0) {
    return std::numeric_limits<uint64_t>::max();
  }
  double least = 1;
  for (const double share : args.split) {
    least = share > 0 ? std::min(least, share) : least;
  }
  return static_cast<uint64_t>(std::ceil(double(args.samples * args.seq_length + 1) / least));
}

} // namespace

void TextCorpus::fields(Fields<Config>& fields) {
  fields
      .add(
          "paths",
          &Config::paths,
          "files, folders, or @torch-headers: the C++ headers of the LibTorch in use"
      )
      .path()
      .required();
  fields.add(
      "extensions", &Config::extensions, "what to read of a folder, by the end of the name; {}: all"
  );
  fields.add(
      "eod", &Config::eod, "end each file with the tokenizer's end of document, if it has one"
  );
}

TextCorpus::TextCorpus(const Config& config, const Args& args)
    : args_(args)
    , tokens_(args.vocab) {
  MH_ASSERT(args.tokenizer != nullptr && args.seq_length > 0, "a text corpus needs a tokenizer");
  share_out(tokenise(config));
}

std::vector<Document> TextCorpus::tokenise(const Config& config) {
  const std::vector<TextFile> files = find_text_files(config.paths, config.extensions);
  const std::optional<int32_t> end = args_.tokenizer->end_of_document();
  const bool ends = config.eod && end.has_value();
  const uint64_t enough = tokens_for(args_);
  std::vector<Document> documents;
  EncodingProgress progress(files.size());
  for (const TextFile& file : files) {
    if (tokens_.size() >= enough) {
      break;
    }
    std::vector<int32_t> ids = ids_of(file, enough - tokens_.size());
    if (!ids.empty()) {
      if (ends) {
        ids.push_back(*end);
      }
      check_ids(ids, args_.vocab, file.path);
      const uint64_t begin = tokens_.size();
      tokens_.append(ids);
      documents.push_back({file.name, begin, tokens_.size()});
    }
    progress.done(++files_);
  }
  return documents;
}

std::vector<int32_t> TextCorpus::ids_of(const TextFile& file, uint64_t wanted) {
  for (uint64_t bytes = wanted;; bytes *= 2) { // a token has a byte or more
    const bool whole = bytes >= file.bytes;
    const std::string text = read_text_file(file.path, whole ? std::nullopt : std::optional(bytes));
    try {
      std::vector<int32_t> ids = args_.tokenizer->encode(text);
      if (whole || ids.size() >= wanted) {
        bytes_ += text.size();
        return ids;
      }
    } catch (const Error& error) {
      if (whole) { // else it may have been cut inside a character
        throw Error(file.path + ": " + error.what(), error.hint(), error.exit_code());
      }
    }
  }
}

void TextCorpus::share_out(const std::vector<Document>& documents) {
  const auto needed = static_cast<uint64_t>(args_.seq_length) + 1;
  const uint64_t least = args_.whole_splits ? 2 : needed;
  if (tokens_.size() < least) {
    throw Error(
        (tokens_.size() == 0 ? "the corpus is empty: " : "the corpus is shorter than one sequence: "
        ) + found() +
            (args_.whole_splits
                 ? ", and a loss needs "
                 : ", and model.seq_length " + std::to_string(args_.seq_length) + " needs ") +
            thousands(least),
        args_.whole_splits ? "give more text in data.paths"
                           : "give more text in data.paths, or lower model.seq_length",
        exit_code::data
    );
  }
  slices_ =
      split_documents(cut(documents, std::max(tokens_.size() / 256, needed)), args_.split, needed);
  if (args_.split[0] > 0 && !args_.whole_splits && size(Split::train) == 0) {
    throw too_short(Split::train); // the others are refused when they are asked for
  }
}

Error TextCorpus::too_short(Split split) const {
  return Error(
      "data.split asks for a " + std::string(kSplitNames[static_cast<size_t>(split)]) +
          " split, but its share is less than one sequence: " + found() + " were split as " +
          describe_splits(sizes(), args_.split) + ", and a sequence needs " +
          thousands(static_cast<uint64_t>(args_.seq_length) + 1),
      "give more text, a larger share in data.split, or a shorter model.seq_length",
      exit_code::data
  );
}

std::string TextCorpus::found() const {
  return thousands(files_) + (files_ == 1 ? " file" : " files") + " with " +
         thousands(tokens_.size()) + " tokens";
}

std::array<uint64_t, 3> TextCorpus::sizes() const {
  return {slices_[0].size(), slices_[1].size(), slices_[2].size()};
}

int64_t TextCorpus::size(Split split) const {
  const uint64_t tokens = slices_[static_cast<size_t>(split)].size();
  const int64_t labels = tokens == 0 ? 0 : static_cast<int64_t>(tokens - 1);
  return (labels + (args_.whole_splits ? args_.seq_length - 1 : 0)) / args_.seq_length;
}

Sample TextCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0 && args_.split[static_cast<size_t>(split)] > 0) {
    throw too_short(split);
  }
  if (count == 0) {
    throw Error(
        std::string("the ") + kSplitNames[static_cast<size_t>(split)] +
            " split of the corpus is empty",
        "give it a share in data.split",
        exit_code::data
    );
  }
  const uint64_t epoch = static_cast<uint64_t>(index) / count;
  const uint64_t key = mix(split == Split::train ? args_.seed : 0) ^ mix(epoch);
  const uint64_t number = shuffled(static_cast<uint64_t>(index) % count, count, key);

  const auto seq = static_cast<size_t>(args_.seq_length);
  const SplitText& text = slices_[static_cast<size_t>(split)];
  const size_t there = std::min<size_t>(seq + 1, text.size() - number * seq);
  std::vector<int64_t> ids(seq + 1);
  text.read(tokens_, number * seq, std::span(ids).first(there));
  Sample sample;
  sample["labels"] = std::vector<int64_t>(ids.begin() + 1, ids.end());
  ids.pop_back();
  sample["tokens"] = std::move(ids);
  std::vector<float> mask(seq);
  std::fill_n(mask.begin(), there - 1, 1.0F);
  sample["loss_mask"] = std::move(mask);
  return sample;
}

std::string TextCorpus::summary() const {
  const std::string megabytes =
      std::to_string(bytes_ / 1000000) + "." + std::to_string(bytes_ / 100000 % 10) + " MB";
  return "text: " + thousands(files_) + (files_ == 1 ? " file, " : " files, ") + megabytes + ", " +
         thousands(tokens_.size()) + " tokens (" + describe_splits(sizes(), args_.split) + ")";
}

} // namespace mh::text
