// data prepare --format tokens: flat files of ids become a corpus, cut into documents at an id.

#include "core/corpora/corpora.hpp"
#include "core/formats/flat_tokens.hpp"
#include "core/options/read.hpp"
#include "core/storage/documents.hpp"
#include "core/storage/indexed_writer.hpp"
#include "core/storage/mapped_file.hpp"
#include "megahost/error.hpp"

#include <array>
#include <cstdio>
#include <limits>

namespace mh {

namespace {

/// The id that ends documents; none: each file is one document.
std::optional<int64_t> end_id(const Invocation& invocation, const Tokenizer* tokenizer) {
  if (invocation.has("--eod")) {
    return number_option(invocation, "--eod", 0, 0, std::numeric_limits<int32_t>::max());
  }
  return tokenizer == nullptr ? std::nullopt : std::optional<int64_t>(tokenizer->end_of_document());
}

class TokenFiles {
public:
  TokenFiles(IndexedWriter& writer, std::optional<int64_t> end)
      : writer_(writer)
      , end_(end) {}

  void add(const std::string& path, const FlatTokens& tokens) {
    std::array<int64_t, 1 << 14> block{};
    for (uint64_t begin = 0; begin < tokens.count(); begin += block.size()) {
      const auto count = std::min<uint64_t>(block.size(), tokens.count() - begin);
      read_tokens(
          tokens.type, tokens.ids.data() + begin * tokens.type.bytes, std::span(block).first(count)
      );
      for (uint64_t i = 0; i < count; ++i) {
        take(block[i], path, begin + i);
      }
    }
    end_document();
  }

private:
  void take(int64_t id, const std::string& path, uint64_t place) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      throw Error(
          path + ": number " + std::to_string(place) + " is " + std::to_string(id) +
              ", which is no token id",
          "give the right --token-type",
          exit_code::data
      );
    }
    ids_.push_back(static_cast<int32_t>(id));
    if (id == end_) {
      end_document();
    }
  }

  void end_document() {
    if (!ids_.empty()) {
      writer_.add_document(ids_, std::array{ids_.size()});
      ids_.clear();
    }
  }

  IndexedWriter& writer_;
  std::optional<int64_t> end_;
  std::vector<int32_t> ids_;
};

} // namespace

int prepare_tokens(const Invocation& invocation, Host& host) {
  for (const char* option :
       {"--append-eod",
        "--sentences",
        "--on-error",
        "--workers",
        "--shard",
        "--template",
        "--json-key"}) {
    if (invocation.has(option)) {
      throw Error(
          std::string(option) + " is about texts, and --format tokens reads ids", "leave it out"
      );
    }
  }
  CorpusOutput output(invocation, host, "_text_document");
  const auto tokenizer = given_tokenizer(invocation, host);
  const auto files =
      find_documents(invocation.arguments, DocumentFormat::text, [&](const std::string& path) {
        return host.on_this_machine(path);
      });
  const std::string type = invocation.value("--token-type");
  for (const DocumentFile& file : files) {
    if (file.path == "-" || is_compressed_name(file.path) || is_columns_name(file.path)) {
      throw Error(
          (file.path == "-" ? "the standard input" : file.path) + " cannot be read as ids",
          "token files are mapped: name files of ids that are not compressed",
          exit_code::data
      );
    }
  }
  bool small = true; // all files hold ids of two bytes
  for (const DocumentFile& file : files) {
    const MappedFile mapped(file.path);
    small = small && read_flat_tokens(mapped.bytes(), type, file.path).type.bytes <= 2;
  }
  IndexedWriter writer(file_system(), output.prefix(), token_type_for(small ? 1 : 1 << 20));
  TokenFiles documents(writer, end_id(invocation, tokenizer.get()));
  for (const DocumentFile& file : files) {
    const MappedFile mapped(file.path);
    documents.add(file.path, read_flat_tokens(mapped.bytes(), type, file.path));
  }
  writer.commit();
  output.publish();
  say_corpus(output.name(), writer.documents(), writer.tokens());
  return 0;
}

} // namespace mh
