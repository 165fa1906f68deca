// megahost embed: an index of blocks by a retriever, and what it finds in it.

#include "core/encoders/embed.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/given_model.hpp"
#include "core/draw/columns.hpp"
#include "core/draw/terminal.hpp"
#include "core/encoders/search_index.hpp"
#include "core/formats/json.hpp"
#include "core/session/evaluate.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kLargestBlocks = uint64_t{4} << 30;
constexpr int64_t kRecalls[] = {1, 5, 20, 100};

/// Embedded blocks, and the shares of queries that find their own among them.
struct EmbeddedBlocks {
  SearchIndex index;
  std::string what; ///< "1,234 blocks of the validation split"
  std::vector<std::pair<int64_t, double>> recall{};
  int64_t queries = 0;
};

Split wanted_split(const Invocation& invocation) {
  const std::string name = invocation.value("--split", "valid");
  return name == "train" ? Split::train : name == "test" ? Split::test : Split::valid;
}

/// Each block of a split once, and the recall of its queries.
EmbeddedBlocks
embed_split(const Invocation& invocation, const Session& session, const Embedder& embedder) {
  const Split split = wanted_split(invocation);
  const int64_t all = samples_of(*session.corpus, split);
  const int64_t samples = number_option(invocation, "--samples", all, 1, std::max<int64_t>(all, 1));
  if (all == 0) {
    throw Error(
        "the " + std::string(name_of(split)) + " split holds no sample (" +
            summary_of(*session.corpus) + ")",
        "give it a share in data.split, choose another split by --split, or embed a --file",
        exit_code::data
    );
  }
  EmbeddedBlocks made;
  std::set<int64_t> known;
  std::vector<std::vector<int64_t>> blocks, queries;
  std::vector<int64_t> own;
  for (int64_t i = 0; i < samples; ++i) {
    const Sample sample = session.corpus->sample(split, i);
    queries.push_back(Embedder::ids(EmbeddedText::query, sample));
    std::vector<int64_t> block = Embedder::ids(EmbeddedText::context, sample);
    const int64_t number = std::get<std::vector<int64_t>>(sample.at("labels")).front();
    own.push_back(number);
    if (known.insert(number).second) {
      made.index.texts.push_back(embedder.text(block));
      made.index.numbers.push_back(number);
      blocks.push_back(std::move(block));
    }
  }
  made.index.embeddings = embedder.embed(EmbeddedText::context, blocks);
  made.queries = samples;
  made.what =
      counted(std::ssize(blocks), "block") + " of the " + std::string(name_of(split)) + " split";
  const auto found = search(
      made.index, embedder.embed(EmbeddedText::query, queries), kRecalls[std::size(kRecalls) - 1]
  );
  for (const int64_t k : kRecalls) {
    if (k == 1 || k < std::ssize(blocks)) {
      made.recall.emplace_back(k, recall_at(k, found, own, made.index));
    }
  }
  return made;
}

struct TitledText {
  std::string title, text;
};

/// A line's block: an object's "title" and "text", or the line as it is.
TitledText block_of_line(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("text") || !json["text"].is_string()) {
    return {"", std::string(line)};
  }
  const auto title = json.find("title");
  return {
      title != json.end() && title->is_string() ? title->get<std::string>() : "",
      json["text"].get<std::string>()};
}

EmbeddedBlocks embed_file(const std::string& file, const Embedder& embedder) {
  const std::string all = read_file(file, kLargestBlocks);
  EmbeddedBlocks made;
  std::vector<std::vector<int64_t>> blocks;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const std::string_view line = std::string_view(all).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      const TitledText block = block_of_line(line);
      blocks.push_back(embedder.ids(EmbeddedText::context, block.text, block.title));
      made.index.texts.push_back(
          valid_utf8(block.title + (block.title.empty() ? "" : " ") + block.text)
      );
    }
  }
  if (blocks.empty()) {
    throw Error(file + " holds no block", "write a block on each line", exit_code::data);
  }
  made.index.embeddings = embedder.embed(EmbeddedText::context, blocks);
  made.what = counted(std::ssize(blocks), "block") + " of " + file;
  return made;
}

EmbeddedBlocks
index_of(const Invocation& invocation, const Session& session, const Embedder& embedder) {
  if (invocation.has("--index")) {
    EmbeddedBlocks made{.index = read_index(invocation.value("--index")), .what = {}};
    made.what =
        counted(std::ssize(made.index.texts), "block") + " of " + invocation.value("--index");
    return made;
  }
  return invocation.has("--file") ? embed_file(invocation.value("--file"), embedder)
                                  : embed_split(invocation, session, embedder);
}

/// Blanks and line breaks become one blank, so that a block is a row of a table.
std::string in_one_line(std::string_view text, size_t most) {
  std::string line;
  for (const char letter : text) {
    const bool blank = letter == ' ' || letter == '\n' || letter == '\t' || letter == '\r';
    if (!blank || !line.ends_with(' ')) {
      line += blank ? ' ' : letter;
    }
  }
  if (line.size() > most) {
    line = valid_utf8(line.substr(0, most)) + " ...";
  }
  return line;
}

void print_found(
    const EmbeddedBlocks& made, const std::vector<FoundBlock>& found, const std::string& words
) {
  constexpr size_t kMostLetters = 100;
  std::printf(
      "%s, %lld numbers each; weights: %s\n",
      made.what.c_str(),
      static_cast<long long>(made.index.embeddings.size(1)),
      words.c_str()
  );
  for (const auto& [k, share] : made.recall) {
    std::printf("recall@%lld %.4f\n", static_cast<long long>(k), share);
  }
  if (!made.recall.empty()) {
    std::printf(
        "%s, each for its own block\n",
        (grouped(made.queries) + (made.queries == 1 ? " query" : " queries")).c_str()
    );
  }
  if (found.empty()) {
    return;
  }
  std::vector<TextRow> rows{{"RANK", "SCORE", "BLOCK"}};
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string& text = made.index.texts[static_cast<size_t>(found[i].row)];
    rows.push_back(
        {std::to_string(i + 1),
         formatted("%.3f", found[i].score),
         terminal_text(in_one_line(text, kMostLetters))}
    );
  }
  std::printf("\n%s", columns(rows, Terminal::of(STDOUT_FILENO)).c_str());
}

void print_found_json(
    const EmbeddedBlocks& made, const std::vector<FoundBlock>& found, const std::string& words
) {
  Json object{
      {"blocks", made.index.texts.size()},
      {"dim", made.index.embeddings.size(1)},
      {"weights", words},
      {"recall", Json::object()},
      {"found", Json::array()}};
  for (const auto& [k, share] : made.recall) {
    object["recall"][std::to_string(k)] = share;
  }
  for (const FoundBlock& block : found) {
    object["found"].push_back(
        {{"row", block.row},
         {"score", block.score},
         {"text", made.index.texts[static_cast<size_t>(block.row)]}}
    );
  }
  std::printf("%s\n", json_text(object).c_str());
}

void check_embed_options(const Invocation& invocation) {
  if (invocation.has("--index") && !invocation.has("--query")) {
    throw Error("--index is searched by --query TEXT, which is missing", "add --query TEXT");
  }
  for (const char* option : {"--file", "--split", "--samples", "-o"}) {
    if (invocation.has("--index") && invocation.has(option)) {
      throw Error(
          std::string(option) + " is about blocks that are embedded, and --index has them already",
          "leave one of them out"
      );
    }
  }
  for (const char* option : {"--split", "--samples"}) {
    if (invocation.has("--file") && invocation.has(option)) {
      throw Error(
          std::string(option) + " is about the recipe's data, and --file takes its place",
          "leave one of them out"
      );
    }
  }
}

} // namespace

int command_embed(const Invocation& invocation, Host& host) {
  constexpr int64_t kMost = 1000;
  check_embed_options(invocation);
  const int64_t most = number_option(invocation, "--top", 5, 1, kMost);
  if (const auto status = run_as_given_ranks(invocation)) {
    return *status;
  }
  const bool corpus = !invocation.has("--index") && !invocation.has("--file");
  const GivenModel given = given_model(invocation, host, corpus);
  const Session& session = *given.session;
  const Embedder embedder(session);
  const EmbeddedBlocks made = index_of(invocation, session, embedder);
  const bool first = session.mesh.rank() == 0;
  if (invocation.has("-o") && first) {
    write_index(made.index, invocation.value("-o"));
  }
  std::vector<FoundBlock> found;
  if (invocation.has("--query")) {
    const at::Tensor query = embedder.embed(
        EmbeddedText::query, {embedder.ids(EmbeddedText::query, invocation.value("--query"))}
    );
    if (query.size(1) != made.index.embeddings.size(1)) {
      throw Error(
          "the index has embeddings of " + std::to_string(made.index.embeddings.size(1)) +
              " numbers, this model makes " + std::to_string(query.size(1)),
          "search in an index that the same model has made",
          exit_code::data
      );
    }
    found = search(made.index, query, most).front();
  }
  if (first) {
    invocation.has("--json") ? print_found_json(made, found, given.weights.description)
                             : print_found(made, found, given.weights.description);
  }
  return 0;
}

} // namespace mh
