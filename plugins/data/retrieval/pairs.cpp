#include "pairs.hpp"

#include "../masked/draws.hpp"
#include "../masked/passages.hpp"
#include "../text/files.hpp"
#include "../corpus_text.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace mh::retrieval {

/// Reads the lines of one file.
class PairReader {
public:
  using Json = nlohmann::json;
  using Text = PairsCorpus::Text;
  using Pair = PairsCorpus::Pair;

  PairReader(std::string file, std::vector<Pair>& ret_pairs)
      : file_(std::move(file))
      , pairs_(ret_pairs) {}

  void read() {
    const std::string all = text::read_text_file(file_);
    for (size_t begin = 0; begin < all.size(); ++line_) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      const std::string_view line = std::string_view(all).substr(begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        continue;
      }
      const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!object.is_object()) {
        refuse("is no JSON object");
      }
      pairs_.push_back(pair(object));
    }
  }

private:
  [[noreturn]] void refuse(const std::string& found) const {
    throw Error(
        file_ + ":" + std::to_string(line_) + " " + found,
        R"(a line is {"query": "...", "positive": "...", "negatives": ["...", ...]}, and a context )"
        R"(may be {"title": "...", "text": "..."})",
        exit_code::data
    );
  }

  static const Json* member(const Json& object, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (const auto found = object.find(name); found != object.end()) {
        return &*found;
      }
    }
    return nullptr;
  }

  [[nodiscard]] Text text_of(const Json& json) const {
    if (json.is_string()) {
      return {"", json.get<std::string>()};
    }
    const Json* text = json.is_object() ? member(json, {"text"}) : nullptr;
    const Json* title = json.is_object() ? member(json, {"title"}) : nullptr;
    const bool titled = title != nullptr && !title->is_null();
    if (text == nullptr || !text->is_string() || (titled && !title->is_string())) {
      refuse("has a context that is neither a text nor an object with one");
    }
    return {titled ? title->get<std::string>() : "", text->get<std::string>()};
  }

  [[nodiscard]] Pair pair(const Json& object) const {
    const Json* query = member(object, {"query", "question"});
    const Json* positive = member(object, {"positive", "positive_ctxs"});
    const Json* negatives = member(object, {"negatives", "hard_negative_ctxs"});
    if (query == nullptr || !query->is_string() || query->get_ref<const std::string&>().empty()) {
      refuse("has no \"query\"");
    }
    if (positive != nullptr && positive->is_array()) {
      positive = positive->empty() ? nullptr : &positive->front();
    }
    if (positive == nullptr) {
      refuse("has no \"positive\"");
    }
    Pair made{query->get<std::string>(), text_of(*positive), {}};
    if (negatives != nullptr && !negatives->is_array()) {
      refuse("has \"negatives\" that are no list");
    }
    for (size_t i = 0; negatives != nullptr && i < negatives->size(); ++i) {
      made.negatives.push_back(text_of((*negatives)[i]));
    }
    return made;
  }

  std::string file_;
  std::vector<Pair>& pairs_;
  size_t line_ = 1;
};

void PairsCorpus::fields(Fields<Config>& f) {
  f.add(
       "paths",
       &Config::paths,
       "files of pairs, a JSON object on each line with query, positive and negatives; folders of "
       "*.jsonl"
  )
      .path()
      .required();
}

PairsCorpus::PairsCorpus(const Config& config, const Args& args)
    : args_(args)
    , samples_(args, "pairs") {
  for (const text::TextFile& file : text::find_text_files(config.paths, {".jsonl"})) {
    PairReader(file.path, pairs_).read();
  }
  std::ranges::stable_sort(pairs_, {}, [](const Pair& pair) {
    return std::pair(hash_text(pair.query), pair.query);
  });
  ends_ = split_ends(args.split, pairs_.size());
  if (args.split[0] > 0 && size(Split::train) == 0) {
    masked::refuse_empty(Split::train, args_, summary());
  }
}

int64_t PairsCorpus::size(Split split) const {
  const auto part = static_cast<size_t>(split);
  return static_cast<int64_t>(ends_[part] - (part == 0 ? 0 : ends_[part - 1]));
}

PairContext PairsCorpus::context_of(const Text& text) const {
  return {
      samples_.encode(text.title),
      samples_.encode(text.text),
      number_of(text.title + "\n" + text.text)};
}

Sample PairsCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    masked::refuse_empty(split, args_, summary());
  }
  const auto part = static_cast<size_t>(split);
  auto [number, draws] = masked::turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  const Pair& pair = pairs_[number + (part == 0 ? 0 : ends_[part - 1])];
  std::vector<PairContext> negatives;
  const uint64_t wanted = std::min(samples_.negatives(), pair.negatives.size());
  for (const uint64_t one : draws.choose(wanted, std::max<uint64_t>(pair.negatives.size(), 1))) {
    negatives.push_back(context_of(pair.negatives[one]));
  }
  return samples_.sample(samples_.encode(pair.query), context_of(pair.positive), negatives);
}

std::string PairsCorpus::summary() const {
  return "pairs: " + thousands(pairs_.size()) + " queries, " +
         thousands(static_cast<uint64_t>(size(Split::train))) + " samples of train";
}

} // namespace mh::retrieval
