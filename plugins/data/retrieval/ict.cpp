#include "ict.hpp"

#include "../masked/draws.hpp"
#include "../text/files.hpp"
#include "../corpus_text.hpp"
#include "functions.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace mh::retrieval {

void IctCorpus::fields(Fields<Config>& f) {
  masked::passages_fields(f);
  f.add(
       "query",
       &Config::query,
       "what is searched by: sentence: a sentence of the block that is to be found (a line of a "
       "text); comment: the comment before a function of source code, whose block is the function"
  )
      .one_of({"sentence", "comment"});
  f.add(
       "query_in_block",
       &Config::query_in_block,
       "share of samples whose block keeps the query; out of the others it is taken"
  )
      .unit("probability")
      .at_least(0)
      .at_most(1);
  f.add(
      "one_sentence",
      &Config::one_sentence,
      "blocks of a single sentence count, too; their query stays in them"
  );
  f.add(
       "titles",
       &Config::titles,
       "tokenised corpora of titles, one for each of data.paths: sequence n is the title of "
       "document n"
  )
      .path();
}

IctCorpus::IctCorpus(const Config& config, const Args& args)
    : config_(config)
    , args_(args)
    , samples_(args, "ict") {
  if (samples_.negatives() > 0) {
    throw Error(
        "the corpus ict has no hard negatives, and the model reads " +
            std::to_string(samples_.negatives()) + " of each sample",
        "set model.hard_negatives = 0, or choose data.use = \"pairs\", whose file has them",
        exit_code::recipe
    );
  }
  if (is_code()) {
    if (!config.titles.empty()) {
      throw Error(
          "data.titles are those of documents, and functions have none",
          "leave data.titles out, or set data.query = \"sentence\"",
          exit_code::recipe
      );
    }
    read_functions();
  } else {
    cut_passages();
  }
  if (args.split[0] > 0 && size(Split::train) == 0) {
    masked::refuse_empty(Split::train, args_, summary());
  }
}

/// A comment belongs to one split, wherever it is repeated; of its functions the first is taken.
void IctCorpus::read_functions() {
  std::map<std::pair<uint64_t, std::string>, std::string> by_comment;
  for (const text::TextFile& file : text::find_text_files(config_.paths, config_.extensions)) {
    ++files_;
    for (CommentedFunction& one : commented_functions(text::read_text_file(file.path))) {
      const uint64_t key = hash_text(one.comment);
      by_comment.try_emplace({key, std::move(one.comment)}, std::move(one.code));
    }
  }
  for (auto& [key, code] : by_comment) {
    functions_.push_back({key.second, std::move(code)});
  }
  ends_ = split_ends(args_.split, functions_.size());
}

void IctCorpus::cut_passages() {
  passages_ = std::make_unique<masked::Passages>(config_, args_);
  if (!config_.titles.empty() && config_.titles.size() != config_.paths.size()) {
    throw Error(
        "data.titles has " + std::to_string(config_.titles.size()) + " corpora, data.paths has " +
            std::to_string(config_.paths.size()),
        "give a corpus of titles for each of data.paths, in the same order",
        exit_code::recipe
    );
  }
  for (size_t i = 0; i < config_.titles.size(); ++i) {
    titles_.emplace_back(config_.titles[i]);
    check_ids(titles_.back(), args_.vocab);
    const auto documents = passages_->documents(i);
    if (!documents || titles_.back().sequences() < *documents) {
      throw Error(
          "data.titles: " + titles_.back().prefix() + " has " +
              std::to_string(titles_.back().sequences()) + " titles, and " + config_.paths[i] +
              (documents ? " has " + std::to_string(*documents) + " documents"
                         : " is no tokenised corpus"),
          "prepare both from the same documents by megahost data prepare",
          exit_code::data
      );
    }
  }
  const uint64_t room = samples_.room(0);
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    auto& passages = passages_by_split_[static_cast<size_t>(split)];
    passages = passages_->cut(split, /*across=*/false, [&](uint64_t) { return room; });
    if (!config_.one_sentence) {
      std::erase_if(passages, [&](const masked::Passage& passage) {
        std::vector<size_t> begins;
        (void)passages_->read(passage, &begins);
        return begins.empty();
      });
    }
  }
}

int64_t IctCorpus::size(Split split) const {
  const auto part = static_cast<size_t>(split);
  if (is_code()) {
    return static_cast<int64_t>(ends_[part] - (part == 0 ? 0 : ends_[part - 1]));
  }
  return std::ssize(passages_by_split_[part]);
}

PairIds IctCorpus::title_of(const masked::Passage& passage) const {
  if (titles_.empty()) {
    return {};
  }
  const auto [path, document] = passages_->document(passage);
  PairIds title(titles_[path].length(document));
  titles_[path].read(document, 0, title);
  return title;
}

Sample IctCorpus::sample(Split split, int64_t index) const {
  const auto count = static_cast<uint64_t>(size(split));
  if (count == 0) {
    masked::refuse_empty(split, args_, summary());
  }
  const auto part = static_cast<size_t>(split);
  auto [number, draws] = masked::turn_of(split, args_.seed, static_cast<uint64_t>(index), count);
  const bool keeps = draws.happens(config_.query_in_block);
  if (is_code()) {
    const Function& found = functions_[number + (part == 0 ? 0 : ends_[part - 1])];
    const std::string& text = keeps ? found.comment + " " + found.code : found.code;
    return samples_.sample(
        samples_.encode(found.comment), {{}, samples_.encode(text), number_of(found.code)}, {}
    );
  }
  const masked::Passage& passage = passages_by_split_[part][number];
  std::vector<size_t> begins;
  PairIds block = passages_->read(passage, &begins);
  begins.insert(begins.begin(), 0);
  const size_t sentence = draws.below(begins.size());
  const auto first = block.begin() + static_cast<ptrdiff_t>(begins[sentence]);
  const auto last = sentence + 1 < begins.size()
                        ? block.begin() + static_cast<ptrdiff_t>(begins[sentence + 1])
                        : block.end();
  const PairIds query(first, last);
  if (!keeps && begins.size() > 1) {
    block.erase(first, last);
  }
  PairContext context{title_of(passage), std::move(block), static_cast<int64_t>(number)};
  if (context.text.size() > samples_.room(context.title.size())) {
    context.text.resize(samples_.room(context.title.size()));
  }
  return samples_.sample(query, context, {});
}

std::string IctCorpus::summary() const {
  const std::string found = is_code() ? thousands(functions_.size()) + " commented functions in " +
                                            thousands(files_) + " files"
                                      : passages_->found();
  return "ict: " + found + ", " + thousands(static_cast<uint64_t>(size(Split::train))) +
         " samples of train";
}

} // namespace mh::retrieval
