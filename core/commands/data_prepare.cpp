#include "core/base/in_order.hpp"
#include "core/base/number_text.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/terminal.hpp"
#include "core/storage/documents.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/indexed_writer.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace mh {

namespace {

/// One document's tokens under one key.
struct Encoded {
  std::vector<int32_t> ids;
  std::vector<size_t> lengths; // of its sequences
};

/// A block, tokenised.
struct EncodedBlock {
  std::vector<std::vector<Encoded>> documents; // [document][key]
  std::vector<std::string> skipped;            // sentences
  uint64_t bytes = 0;
};

class Preparation {
public:
  Preparation(const Invocation& invocation, Host& host);
  void run();

private:
  void make_writers();
  [[nodiscard]] Encoded encode(const std::vector<std::string>& texts) const;
  [[nodiscard]] EncodedBlock encode_block(const DocumentBlock& block) const;
  void write(const EncodedBlock& block);
  void show_progress(bool last);
  void report() const;

  const Invocation& invocation_;
  std::string output_;
  std::vector<std::string> keys_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<DocumentFile> files_;
  uint64_t total_ = 0;                                  // bytes; 0: not known
  std::vector<std::unique_ptr<IndexedWriter>> writers_; // one for each key
  uint64_t bytes_ = 0;
  uint64_t skipped_ = 0;
  Terminal terminal_ = Terminal::of(STDERR_FILENO);
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_;
};

/// "1,234 files", "1 file".
std::string count_text(uint64_t count, const char* what) {
  return grouped(static_cast<int64_t>(count)) + " " + what + (count == 1 ? "" : "s");
}

std::string prefix_of(const std::string& output, const std::string& key) {
  return output + "_" + key + "_document";
}

DocumentFormat format_of(const std::string& word) {
  return word == "jsonl"  ? DocumentFormat::json_lines
         : word == "text" ? DocumentFormat::text
                          : DocumentFormat::by_name;
}

Preparation::Preparation(const Invocation& invocation, Host& host)
    : invocation_(invocation)
    , output_(invocation.value("--output"))
    , keys_(invocation.all("--json-key")) {
  if (output_.empty() || output_.ends_with('/')) {
    throw Error(
        "megahost data prepare needs --output PREFIX",
        "as in --output data/corpus, which makes data/corpus_text_document.bin and .idx"
    );
  }
  if (keys_.empty()) {
    keys_ = {"text"};
  }
  files_ = find_documents(invocation.arguments, format_of(invocation.value("--format")));
  const auto text = std::ranges::find(files_, false, &DocumentFile::json_lines);
  if (text != files_.end() && keys_ != std::vector<std::string>{"text"}) {
    throw Error(
        "--json-key chooses members of JSON objects, and " + text->path + " is a text file",
        "leave --json-key out, or say --format jsonl if it holds JSON lines"
    );
  }
  for (const DocumentFile& file : files_) {
    total_ += file.bytes;
  }
  tokenizer_ = given_tokenizer(invocation, host);
  if (tokenizer_ == nullptr) {
    throw Error(
        "megahost data prepare needs a tokenizer",
        "give --tokenizer byte (every byte a token), --tokenizer gpt2 with its files, or --recipe "
        "FILE"
    );
  }
  if (invocation.has("--append-eod") && !tokenizer_->end_of_document()) {
    throw Error(
        "--append-eod needs a tokenizer with an end of document, and this one has none",
        "leave it out, or choose another tokenizer"
    );
  }
}

void Preparation::make_writers() {
  make_directories(Path(output_).parent_path());
  for (const std::string& key : keys_) {
    const std::string prefix = prefix_of(output_, key);
    for (const char* ending : {".bin", ".idx"}) {
      if (!invocation_.has("--force") &&
          file_system().kind(prefix + ending) != FileSystem::Kind::none) {
        throw Error(
            prefix + ending + " is there already",
            "choose another --output, or replace it with --force",
            exit_code::data
        );
      }
    }
    writers_.push_back(
        std::make_unique<IndexedWriter>(file_system(), prefix, token_type_for(tokenizer_->vocab()))
    );
  }
}

Encoded Preparation::encode(const std::vector<std::string>& texts) const {
  Encoded encoded;
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = tokenizer_->encode(text);
    if (!ids.empty()) {
      encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
      encoded.lengths.push_back(ids.size());
    }
  }
  if (!encoded.ids.empty() && invocation_.has("--append-eod")) {
    encoded.ids.push_back(*tokenizer_->end_of_document());
    ++encoded.lengths.back();
  }
  return encoded;
}

EncodedBlock Preparation::encode_block(const DocumentBlock& block) const {
  EncodedBlock encoded;
  encoded.bytes = block.text.size();
  const auto take = [&](const DocumentTexts& texts) {
    std::vector<Encoded> document;
    for (const auto& key : texts) {
      document.push_back(encode(key));
    }
    encoded.documents.push_back(std::move(document));
  };
  const auto skip = [&](std::string sentence) { encoded.skipped.push_back(std::move(sentence)); };
  if (invocation_.has("--skip-bad")) {
    parse_documents(block, keys_, take, skip);
  } else {
    parse_documents(block, keys_, take, nullptr);
  }
  return encoded;
}

void Preparation::write(const EncodedBlock& block) {
  for (const auto& document : block.documents) {
    for (size_t key = 0; key < keys_.size(); ++key) {
      writers_[key]->add_document(document[key].ids, document[key].lengths);
    }
  }
  constexpr uint64_t kMostShown = 5;
  for (const std::string& sentence : block.skipped) {
    if (skipped_++ < kMostShown) {
      std::fprintf(
          stderr, "%sskipped: %s\n", terminal_.interactive ? "\r\x1b[K" : "", sentence.c_str()
      );
    }
  }
  bytes_ += block.bytes;
  show_progress(false);
}

void Preparation::show_progress(bool last) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_.interactive || (!last && now - shown_ < std::chrono::milliseconds(200))) {
    return;
  }
  shown_ = now;
  if (last) {
    std::fputs("\r\x1b[K", stderr);
    return;
  }
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double speed = static_cast<double>(bytes_) / std::max(seconds, 1e-3);
  std::string line = formatted(
      "%s, %s, %.1f MB/s",
      count_text(writers_[0]->documents(), "document").c_str(),
      bytes_text(static_cast<int64_t>(bytes_)).c_str(),
      speed / 1e6
  );
  if (total_ > 0 && bytes_ <= total_) {
    const double share = static_cast<double>(bytes_) / static_cast<double>(total_);
    line = terminal_.paint(Paint::cyan, bar(share, 24)) + formatted(" %3.0f%%  ", 100 * share) +
           line + ", " + duration_text(static_cast<double>(total_ - bytes_) / speed) + " left";
  }
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
}

void Preparation::report() const {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string paths;
  for (size_t key = 0; key < keys_.size(); ++key) {
    const std::string prefix = prefix_of(output_, keys_[key]);
    std::printf(
        "%s: %s, %s\n",
        prefix.c_str(),
        count_text(writers_[key]->documents(), "document").c_str(),
        count_text(writers_[key]->tokens(), "token").c_str()
    );
    paths += (paths.empty() ? "\"" : ", \"") + prefix + "\"";
  }
  std::printf(
      "%s, %s in %s (%.1f MB/s)%s\n",
      count_text(files_.size(), "file").c_str(),
      bytes_text(static_cast<int64_t>(bytes_)).c_str(),
      duration_text(seconds).c_str(),
      static_cast<double>(bytes_) / 1e6 / std::max(seconds, 1e-3),
      skipped_ == 0 ? "" : ("; skipped " + count_text(skipped_, "document")).c_str()
  );
  std::printf(
      "in a recipe of this folder: data = { use = \"indexed\", paths = { %s } }\n", paths.c_str()
  );
}

void Preparation::run() {
  make_writers();
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t workers = number_option(invocation_, "--workers", cores, 1, 1024);
  DocumentReader reader(files_);
  in_order(
      static_cast<size_t>(workers),
      [&] { return reader.next(); },
      [&](const DocumentBlock& block) { return encode_block(block); },
      [&](const EncodedBlock& block) { write(block); }
  );
  show_progress(true);
  for (const auto& writer : writers_) {
    writer->commit();
  }
  report();
}

} // namespace

int command_data_prepare(const Invocation& invocation, Host& host) {
  Preparation(invocation, host).run();
  return 0;
}

} // namespace mh
