#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/corpora/corpora.hpp"
#include "core/draw/svg_bars.hpp"
#include "core/draw/terminal.hpp"
#include "core/options/read.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"
#include "megahost/indexed_dataset.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <limits>
#include <map>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

/// Tokens that are looked through for the range of ids.
constexpr uint64_t kSearched = 1 << 24;

std::string number(uint64_t value) {
  return grouped(static_cast<int64_t>(value));
}

uint64_t document_tokens(const IndexedDataset& corpus, uint64_t document) {
  return corpus.begin(corpus.document_begin(document + 1)) -
         corpus.begin(corpus.document_begin(document));
}

/// The first tokens of a document, at most `most`.
std::vector<int64_t> read_document(const IndexedDataset& corpus, uint64_t document, uint64_t most) {
  std::vector<int64_t> ids(std::min(document_tokens(corpus, document), most));
  std::span<int64_t> rest = ids;
  for (uint64_t i = corpus.document_begin(document); !rest.empty(); ++i) {
    const size_t count = std::min<size_t>(rest.size(), corpus.length(i));
    corpus.read(i, 0, rest.first(count));
    rest = rest.subspan(count);
  }
  return ids;
}

/// The text of ids; a tokenizer knows ids of 32 bits only.
std::string text_of(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  std::vector<int32_t> narrow;
  for (const int64_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab()) {
      throw Error(
          "the corpus holds the id " + std::to_string(id) + ", but the tokenizer has ids 0 to " +
              std::to_string(tokenizer.vocab() - 1),
          "name the tokenizer that the corpus was made with",
          exit_code::data
      );
    }
    narrow.push_back(static_cast<int32_t>(id));
  }
  return valid_utf8(tokenizer.decode(narrow));
}

struct Lengths {
  uint64_t shortest = 0, median = 0, longest = 0;
  double mean = 0;
  std::map<int, uint64_t> histogram; // documents by bit width: 0, 1, 2-3, 4-7, ...
};

Lengths measure(const IndexedDataset& corpus) {
  Lengths lengths;
  std::vector<uint64_t> all(corpus.documents());
  for (uint64_t i = 0; i < all.size(); ++i) {
    all[i] = document_tokens(corpus, i);
    ++lengths.histogram[static_cast<int>(std::bit_width(all[i]))];
  }
  if (!all.empty()) {
    const auto middle = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
    std::ranges::nth_element(all, middle);
    lengths.median = *middle;
    lengths.shortest = *std::ranges::min_element(all);
    lengths.longest = *std::ranges::max_element(all);
    lengths.mean = static_cast<double>(corpus.tokens()) / static_cast<double>(all.size());
  }
  return lengths;
}

std::pair<uint64_t, uint64_t> bucket(int width) {
  return width == 0 ? std::pair<uint64_t, uint64_t>(0, 0)
                    : std::pair(uint64_t{1} << (width - 1), (uint64_t{1} << width) - 1);
}

/// Smallest and largest id of the first tokens, at most kSearched.
std::pair<int64_t, int64_t> id_range(const IndexedDataset& corpus) {
  std::pair range(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min());
  std::vector<int64_t> ids;
  for (uint64_t i = 0; i < corpus.sequences() && corpus.begin(i) < kSearched; ++i) {
    ids.resize(std::min(corpus.length(i), kSearched - corpus.begin(i)));
    corpus.read(i, 0, ids);
    for (const int64_t id : ids) {
      range = {std::min(range.first, id), std::max(range.second, id)};
    }
  }
  return range;
}

void print_ids(const std::vector<int64_t>& ids, bool more, const Tokenizer* tokenizer) {
  std::string line = " ";
  for (const int64_t id : ids) {
    line += " " + std::to_string(id);
  }
  std::printf("%s%s\n", line.c_str(), more ? " ..." : "");
  if (tokenizer != nullptr) {
    std::printf("  %s%s\n", string_text(text_of(*tokenizer, ids)).c_str(), more ? " ..." : "");
  }
}

void print_histogram(const Lengths& lengths, const Terminal& terminal) {
  uint64_t most = 1;
  for (const auto& [width, documents] : lengths.histogram) {
    most = std::max(most, documents);
  }
  std::printf("%s\n", terminal.paint(Paint::bold, "documents by tokens").c_str());
  for (const auto& [width, documents] : lengths.histogram) {
    const auto [from, to] = bucket(width);
    const std::string range = from == to ? number(from) : number(from) + " to " + number(to);
    const double share = static_cast<double>(documents) / static_cast<double>(most);
    std::string shown = bar(share, 40);
    shown.erase(shown.find_last_not_of(' ') + 1);
    std::printf(
        "  %24s  %12s  %s\n",
        range.c_str(),
        number(documents).c_str(),
        terminal.paint(Paint::cyan, shown).c_str()
    );
  }
}

void print_corpus(const IndexedDataset& corpus, uint64_t shown, const Tokenizer* tokenizer) {
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  const Lengths lengths = measure(corpus);
  std::printf("%s\n", terminal.paint(Paint::bold, corpus.prefix()).c_str());
  std::printf("  documents  %s", number(corpus.documents()).c_str());
  if (corpus.sequences() != corpus.documents()) {
    std::printf(" of %s sequences", number(corpus.sequences()).c_str());
  }
  std::printf(
      "\n  tokens     %s as %s: %s\n",
      number(corpus.tokens()).c_str(),
      std::string(corpus.type()).c_str(),
      bytes_text(static_cast<int64_t>(corpus.tokens() * corpus.token_bytes())).c_str()
  );
  if (corpus.tokens() == 0) {
    return;
  }
  const auto [least, greatest] = id_range(corpus);
  std::printf(
      "  ids        %lld to %lld%s\n",
      static_cast<long long>(least),
      static_cast<long long>(greatest),
      corpus.tokens() > kSearched ? (" in the first " + number(kSearched) + " tokens").c_str() : ""
  );
  std::printf(
      "  lengths    shortest %s, median %s, mean %s, longest %s\n",
      number(lengths.shortest).c_str(),
      number(lengths.median).c_str(),
      number(static_cast<uint64_t>(lengths.mean + 0.5)).c_str(),
      number(lengths.longest).c_str()
  );
  print_histogram(lengths, terminal);
  std::printf("%s\n", terminal.paint(Paint::bold, "document 0 begins").c_str());
  print_ids(read_document(corpus, 0, shown), document_tokens(corpus, 0) > shown, tokenizer);
}

Json json_of(const IndexedDataset& corpus, uint64_t shown, const Tokenizer* tokenizer) {
  const Lengths lengths = measure(corpus);
  Json histogram = Json::array();
  for (const auto& [width, documents] : lengths.histogram) {
    const auto [from, to] = bucket(width);
    histogram.push_back({{"from", from}, {"to", to}, {"documents", documents}});
  }
  Json json{
      {"prefix", corpus.prefix()},
      {"documents", corpus.documents()},
      {"sequences", corpus.sequences()},
      {"tokens", corpus.tokens()},
      {"type", corpus.type()},
      {"lengths",
       {{"shortest", lengths.shortest},
        {"median", lengths.median},
        {"mean", lengths.mean},
        {"longest", lengths.longest},
        {"histogram", histogram}}},
  };
  if (corpus.tokens() > 0) {
    const auto [least, greatest] = id_range(corpus);
    json["ids"] = {least, greatest};
    json["first"] = read_document(corpus, 0, shown);
    if (tokenizer != nullptr) {
      json["text"] = text_of(*tokenizer, json["first"]);
    }
  }
  return json;
}

void show_document(
    const IndexedDataset& corpus, uint64_t document, bool as_json, const Tokenizer* tokenizer
) {
  const std::vector<int64_t> ids = read_document(corpus, document, UINT64_MAX);
  if (!as_json) {
    std::printf("document %s: %s tokens\n", number(document).c_str(), number(ids.size()).c_str());
    print_ids(ids, false, tokenizer);
    return;
  }
  Json lengths = Json::array();
  for (uint64_t i = corpus.document_begin(document); i < corpus.document_begin(document + 1); ++i) {
    lengths.push_back(corpus.length(i));
  }
  Json json{{"document", document}, {"sequence_lengths", lengths}, {"ids", ids}};
  if (tokenizer != nullptr) {
    json["text"] = text_of(*tokenizer, ids);
  }
  std::puts(json.dump().c_str());
}

/// The texts of the first documents.
void show_texts(const IndexedDataset& corpus, uint64_t documents, const Tokenizer& tokenizer) {
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  for (uint64_t i = 0; i < std::min(documents, corpus.documents()); ++i) {
    const std::vector<int64_t> ids = read_document(corpus, i, UINT64_MAX);
    const std::string head = "document " + number(i) + ": " + number(ids.size()) + " tokens";
    std::printf("%s\n", terminal.paint(Paint::bold, head).c_str());
    std::printf("%s\n", terminal_text(text_of(tokenizer, ids)).c_str());
  }
}

void write_picture(const IndexedDataset& corpus, const std::string& path, Storage& storage) {
  Bars bars;
  bars.title = corpus.prefix() + ": documents by tokens";
  bars.parts = {"documents"};
  for (const auto& [width, documents] : measure(corpus).histogram) {
    const auto [from, to] = bucket(width);
    bars.rows.push_back(
        {from == to ? number(from) : number(from) + " to " + number(to),
         {static_cast<double>(documents)},
         number(documents)}
    );
  }
  put_text(storage, path, svg_bars(bars));
}

} // namespace

int command_data_inspect(const Invocation& invocation, Host& host) {
  const auto tokenizer = given_tokenizer(invocation, host);
  const IndexedDataset corpus(host.on_this_machine(invocation.arguments[0]));
  if (invocation.has("--svg")) {
    write_picture(corpus, invocation.value("--svg"), host.storage());
  }
  if (invocation.has("--decode")) {
    if (tokenizer == nullptr) {
      throw Error(
          "--decode needs the tokenizer that the corpus was made with",
          "give --tokenizer with its files, or --recipe FILE"
      );
    }
    show_texts(
        corpus,
        static_cast<uint64_t>(number_option(invocation, "--decode", 1, 1, INT64_MAX)),
        *tokenizer
    );
    return 0;
  }
  if (invocation.has("--document")) {
    if (corpus.documents() == 0) {
      throw Error(corpus.prefix() + " has no documents", "", exit_code::data);
    }
    const int64_t document =
        number_option(invocation, "--document", 0, 0, static_cast<int64_t>(corpus.documents()) - 1);
    show_document(
        corpus, static_cast<uint64_t>(document), invocation.has("--json"), tokenizer.get()
    );
    return 0;
  }
  const auto shown = static_cast<uint64_t>(
      number_option(invocation, "--tokens", 64, 0, std::numeric_limits<int64_t>::max())
  );
  if (invocation.has("--json")) {
    std::puts(json_of(corpus, shown, tokenizer.get()).dump(2).c_str());
  } else {
    print_corpus(corpus, shown, tokenizer.get());
  }
  return 0;
}

} // namespace mh
