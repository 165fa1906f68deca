#include "core/base/in_order.hpp"
#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/corpora/corpora.hpp"
#include "core/corpora/shards.hpp"
#include "core/draw/report.hpp"
#include "core/draw/terminal.hpp"
#include "core/install/open_input.hpp"
#include "core/options/read.hpp"
#include "core/storage/documents.hpp"
#include "core/storage/file_system.hpp"
#include "core/text/pieces.hpp"
#include "core/text/sentences.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"
#include "megahost/error.hpp"
#include "megahost/shuffle.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

namespace mh {

namespace {

/// One document's tokens under one key, or a piece of them.
struct Encoded {
  std::vector<int32_t> ids;
  std::vector<size_t> lengths; // lengths of its sequences
};

/// How a conversation is written. Only what an assistant says is trained, its end included.
struct ChatTemplate {
  const char *name, *begin, *before_role, *after_role, *end, *between;
  bool trims; // white space at both ends of what is said
};

/// Source:  the chat templates of Qwen's and Llama 3's tokenizer_config.json
constexpr std::array<ChatTemplate, 2> kChatTemplates{{
    {"chatml", "", "<|im_start|>", "\n", "<|im_end|>", "\n", false},
    {"llama3",
     "<|begin_of_text|>",
     "<|start_header_id|>",
     "<|end_header_id|>\n\n",
     "<|eot_id|>",
     "",
     true},
}};

/// Encoders of the parts of a conversation.
struct TurnEncoders {
  TurnEncoders(const Tokenizer& tokenizer, const ChatTemplate& chat)
      : first(tokenizer, "", chat.after_role, "a")
      , next(tokenizer, chat.end, chat.after_role, "a")
      , answer(
            tokenizer,
            std::string(chat.before_role) + "assistant" + chat.after_role,
            chat.end,
            "\na"
        )
      , last(tokenizer, chat.end, "", "") {}

  text::PartEncoder first, next; // up to an assistant's answer
  text::PartEncoder answer;
  text::PartEncoder last; // behind the last answer
};

/// An item that was read: a block, or the reason why a file cannot be read further.
struct ReadItem {
  std::optional<DocumentBlock> block;
  std::string failure;
  DocumentPlace place; // behind it
};

/// The same, tokenised.
struct EncodedItem {
  std::vector<std::vector<Encoded>> documents; // [document][stream]
  std::vector<std::string> skipped, broken;    // sentences
  uint64_t bytes = 0;
  bool begins = true; // else the first document goes on with the last one of the item before
  bool ends = true;   // else the last one goes on in the next item
  bool cut = false;   // what is skipped is the rest of a file
  DocumentPlace place;
};

/// Tokenises into shards, each of some input; the last step makes one corpus of them.
class Preparation {
public:
  Preparation(const Invocation& invocation, Host& host);
  void run();

private:
  void resume();
  [[nodiscard]] std::string signature(const DocumentPlace& place) const;
  [[nodiscard]] std::optional<ReadItem> read(DocumentReader& ret_reader) const;
  [[nodiscard]] Encoded
  encode(const std::vector<std::string>& texts, const DocumentBlock& block) const;
  [[nodiscard]] std::vector<Encoded> encode_chat(const std::vector<std::string>& texts) const;
  [[nodiscard]] EncodedItem encode_item(const ReadItem& item) const;
  void write(const EncodedItem& item);
  void say_fault(const char* done, const std::string& sentence) const;
  void show_progress(bool last);
  [[nodiscard]] std::string faults_text() const;
  void report() const;

  const Invocation& invocation_;
  Host& host_;
  std::string output_;
  std::vector<std::string> keys_;
  const ChatTemplate* chat_ = nullptr;
  std::vector<std::string> streams_; // what becomes a corpus of its own: "text_document"
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<TurnEncoders> turns_; // if documents are conversations
  std::vector<DocumentFile> files_;
  bool skips_, replaces_;
  uint64_t vocabulary_ = 0; // hash of the tokens
  std::unique_ptr<CorpusShards> shards_;
  CorpusShards::Done done_;
  uint64_t most_ = 0;        // bytes of a shard
  uint64_t first_bytes_ = 0; // done before this process
  uint64_t shard_bytes_ = 0; // read since the shard began
  bool drops_ = false;       // the pieces of a document of which one was skipped
  bool broken_ = false;      // a piece of this document already
  Terminal terminal_ = Terminal::of(STDERR_FILENO);
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_;
};

/// The text without white space at both ends.
std::string_view trimmed(std::string_view said) {
  size_t begin = said.size(), end = 0, at = 0;
  text::for_each_character(said, [&](char32_t code, std::string_view bytes) {
    if (!text::categories().in(code, text::kSpaces)) {
      begin = std::min(begin, at);
      end = at + bytes.size();
    }
    at += bytes.size();
  });
  begin = std::min(begin, end);
  return said.substr(begin, end - begin);
}

/// A prompt and its response as a conversation's messages.
std::vector<std::string> messages_of_pair(const DocumentTexts& texts) {
  if (texts[0].size() != 1 || texts[1].size() != 1) {
    throw Error("a prompt or a response is a list", "each is one text", exit_code::data);
  }
  return {"user", texts[0][0], "assistant", texts[1][0]};
}

DocumentFormat format_of(const std::string& word) {
  return word == "jsonl"  ? DocumentFormat::json_lines
         : word == "text" ? DocumentFormat::text
                          : DocumentFormat::by_name;
}

Preparation::Preparation(const Invocation& invocation, Host& host)
    : invocation_(invocation)
    , host_(host)
    , output_(output_option(invocation))
    , keys_(invocation.all("--json-key"))
    , skips_(invocation.value("--on-error") == "skip")
    , replaces_(invocation.value("--on-error") == "replace") {
  if (scheme_of(output_)) {
    throw Error(
        "--output " + output_ +
            " is in a store, and what a preparation has done is kept next to its "
            "output, so that one that was ended goes on",
        "prepare on a disk of this machine, then: megahost data merge PREFIX --output " + output_
    );
  }
  for (auto key = keys_.begin(); key != keys_.end(); ++key) {
    if (std::find(keys_.begin(), key, *key) != key) {
      throw Error("--json-key names " + *key + " twice", "each becomes a corpus of its own");
    }
  }
  const std::string chat = invocation.value("--template");
  const auto found = std::ranges::find(kChatTemplates, chat, &ChatTemplate::name);
  chat_ = found == kChatTemplates.end() ? nullptr : &*found;
  if (keys_.empty()) {
    keys_ = {chat_ == nullptr ? "text" : "messages"};
  }
  if (chat_ != nullptr && keys_.size() > 2) {
    throw Error(
        "--template reads the messages of one member, or a pair of two, and --json-key names " +
            std::to_string(keys_.size()),
        "name the messages, or the prompt and then the response"
    );
  }
  if (chat_ != nullptr && invocation.has("--sentences")) {
    throw Error("--template reads messages, and --sentences cuts texts", "leave one of them out");
  }
  if (chat_ != nullptr) {
    streams_ = {keys_.back() + "_document", keys_.back() + "_loss"};
  } else {
    for (const std::string& key : keys_) {
      streams_.push_back(key + (invocation.has("--sentences") ? "_sentence" : "_document"));
    }
  }
  tokenizer_ = given_tokenizer(invocation, host);
  files_ = find_documents(
      invocation.arguments,
      format_of(invocation.value("--format")),
      [&](const std::string& path) { return host.on_this_machine(path); }
  );
  for (const DocumentFile& file : files_) {
    std::error_code failure;
    if (file.bytes == 0 && !is_compressed_name(file.path) &&
        std::filesystem::is_regular_file(file.path, failure)) {
      std::fprintf(stderr, "warning: %s is empty\n", name_of(file).c_str());
    }
  }
  const auto text = std::ranges::find(files_, false, &DocumentFile::json_lines);
  if (text != files_.end() && (chat_ != nullptr || keys_ != std::vector<std::string>{"text"})) {
    throw Error(
        std::string(chat_ != nullptr ? "--template" : "--json-key") +
            " chooses members of JSON objects, and " + text->path + " is a text file",
        "leave it out, or say --format jsonl if it holds JSON lines"
    );
  }
  if (tokenizer_ == nullptr) {
    throw Error(
        "megahost data prepare needs a tokenizer",
        "give --tokenizer byte (every byte a token), --tokenizer gpt2 with its files, or --recipe "
        "FILE"
    );
  }
  if (chat_ != nullptr) {
    turns_.emplace(*tokenizer_, *chat_);
  }
  if (invocation.has("--append-eod") && !tokenizer_->end_of_document()) {
    throw Error(
        "--append-eod needs a tokenizer with an end of document, and this one has none",
        "leave it out, or choose another tokenizer"
    );
  }
}

/// Hashes all tokens: a preparation goes on only with the vocabulary that it began with.
uint64_t hash_vocabulary(const Tokenizer& tokenizer) {
  uint64_t hash = 0;
  for (int64_t id = 0; id < tokenizer.vocab(); ++id) {
    try {
      hash = mix(hash ^ hash_text(tokenizer.token(static_cast<int32_t>(id))));
    } catch (const Error&) { // an id without a token
      hash = mix(hash);
    }
  }
  return hash;
}

/// Files that come later may change: a broken one can be mended, and the preparation goes on.
std::string Preparation::signature(const DocumentPlace& place) const {
  std::string text;
  for (size_t i = 0; i < files_.size(); ++i) {
    text += files_[i].path + "\n";
    if (i < place.file || (i == place.file && place.offset > 0)) {
      std::error_code failure;
      const auto changed = std::filesystem::last_write_time(files_[i].path, failure);
      text += std::to_string(files_[i].bytes) + " " +
              std::to_string(changed.time_since_epoch().count()) + "\n";
    }
  }
  for (const char* option :
       {"--tokenizer", "--recipe", "--set", "--json-key", "--format", "--template", "--on-error"}) {
    text += option + join(invocation_.all(option)) + "\n";
  }
  for (const char* option : {"--append-eod", "--sentences"}) {
    text += invocation_.has(option) ? option : "";
  }
  return std::to_string(mix(hash_text(text) ^ vocabulary_));
}

/// Goes on with what an earlier preparation of the same inputs has left.
void Preparation::resume() {
  const bool repeatable = std::ranges::find(files_, "-", &DocumentFile::path) == files_.end();
  const auto sign = [this](const DocumentPlace& place) { return signature(place); };
  vocabulary_ = hash_vocabulary(*tokenizer_);
  done_ = shards_->begin(repeatable ? CorpusShards::Signature(sign) : nullptr);
  first_bytes_ = done_.bytes;
  if (done_.left) {
    std::fprintf(
        stderr,
        "begins anew: %s.preparing was of other files, options, or another tokenizer\n",
        output_.c_str()
    );
  }
  if (done_.bytes > 0) {
    std::fprintf(
        stderr,
        "goes on after %s, %s of input\n",
        count_text(done_.documents, "document").c_str(),
        bytes_text(static_cast<int64_t>(done_.bytes)).c_str()
    );
  }
}

std::optional<ReadItem> Preparation::read(DocumentReader& ret_reader) const {
  ReadItem item;
  try {
    item.block = ret_reader.next();
    if (!item.block) {
      return std::nullopt;
    }
  } catch (const Error& error) {
    if (!skips_ || error.exit_code() == exit_code::other) {
      throw;
    }
    item.failure = error.what();
  }
  item.place = ret_reader.place();
  return item;
}

Encoded
Preparation::encode(const std::vector<std::string>& texts, const DocumentBlock& block) const {
  Encoded encoded;
  const auto add = [&](std::vector<int32_t> ids) {
    if (!ids.empty()) {
      encoded.lengths.push_back(ids.size());
      if (encoded.ids.empty()) {
        encoded.ids = std::move(ids); // a long document's are not held twice
      } else {
        encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
      }
    }
  };
  for (const std::string& text : texts) {
    if (invocation_.has("--sentences")) {
      for (const std::string_view sentence : text::sentences(text)) {
        add(tokenizer_->encode(sentence));
      }
    } else {
      add(text::encode_piece(*tokenizer_, text, block.begins, block.ends));
    }
  }
  if (!encoded.ids.empty() && block.ends && invocation_.has("--append-eod")) {
    encoded.ids.push_back(*tokenizer_->end_of_document());
    ++encoded.lengths.back();
  }
  return encoded;
}

/// The tokens of a conversation, and for each a 1 where its loss counts, else a 0. The text
/// up to an assistant's turn, which generation reads, and the answer are tokenised on their own.
std::vector<Encoded> Preparation::encode_chat(const std::vector<std::string>& texts) const {
  std::vector<Encoded> streams(2);
  const auto add = [&](const std::vector<int32_t>& ids, bool trained) {
    streams[0].ids.insert(streams[0].ids.end(), ids.begin(), ids.end());
    streams[1].ids.insert(streams[1].ids.end(), ids.size(), trained ? 1 : 0);
  };
  bool trains = false;
  std::string untrained = chat_->begin; // gathered, so that it is tokenised as a whole
  for (size_t i = 0; i + 1 < texts.size(); i += 2) {
    const std::string said(chat_->trims ? trimmed(texts[i + 1]) : std::string_view(texts[i + 1]));
    untrained += chat_->before_role + texts[i] + chat_->after_role;
    if (texts[i] == "assistant") {
      add((trains ? turns_->next : turns_->first).encode(untrained), false);
      add(turns_->answer.encode(said + chat_->end), true);
      trains = true;
      untrained = chat_->between;
    } else {
      untrained += said + chat_->end + chat_->between;
    }
  }
  if (!trains) {
    throw Error(
        "the assistant says nothing in it, and nothing else is trained",
        "leave such lines out with --on-error skip",
        exit_code::data
    );
  }
  add(turns_->last.encode(untrained), false);
  if (invocation_.has("--append-eod") && !streams[0].ids.empty()) {
    streams[0].ids.push_back(*tokenizer_->end_of_document());
    streams[1].ids.push_back(0);
  }
  for (Encoded& stream : streams) {
    if (!stream.ids.empty()) {
      stream.lengths.push_back(stream.ids.size());
    }
  }
  return streams;
}

EncodedItem Preparation::encode_item(const ReadItem& item) const {
  EncodedItem encoded;
  encoded.place = item.place;
  if (!item.block) {
    encoded.skipped.push_back(item.failure);
    encoded.cut = true;
    return encoded;
  }
  encoded.bytes = item.block->text.size();
  encoded.begins = item.block->begins;
  encoded.ends = item.block->ends;
  const bool pairs = chat_ != nullptr && keys_.size() == 2;
  const auto take = [&](const DocumentTexts& texts) {
    if (chat_ != nullptr) {
      encoded.documents.push_back(encode_chat(pairs ? messages_of_pair(texts) : texts[0]));
      return;
    }
    std::vector<Encoded> document;
    for (const auto& key : texts) {
      document.push_back(encode(key, *item.block));
    }
    encoded.documents.push_back(std::move(document));
  };
  const auto keep = [](std::vector<std::string>* ret_sentences) {
    return [=](std::string sentence) { ret_sentences->push_back(std::move(sentence)); };
  };
  const auto members =
      chat_ != nullptr && !pairs ? DocumentMembers::messages : DocumentMembers::texts;
  DocumentFaults faults;
  if (skips_) {
    faults.skip = keep(&encoded.skipped);
  }
  (replaces_ ? faults.replace : faults.keep) = keep(&encoded.broken);
  parse_documents(*item.block, keys_, take, faults, members);
  return encoded;
}

void Preparation::write(const EncodedItem& item) {
  bool begins = item.begins;
  drops_ = drops_ && !begins;
  for (const auto& document : item.documents) {
    if (drops_) {
      break; // a piece of it was skipped
    }
    shards_->add(document, begins);
    done_.documents += begins ? 1 : 0;
    done_.tokens += document[0].ids.size();
    begins = true;
  }
  for (const std::string& sentence : item.skipped) {
    ++(item.cut ? done_.cut : done_.skipped);
    say_fault(item.begins ? "skipped" : "skipped from here to the document's end", sentence);
  }
  broken_ = broken_ && !item.begins;
  for (const std::string& sentence : item.broken) {
    done_.broken += broken_ ? 0 : 1;
    if (replaces_ || !broken_) {
      say_fault(replaces_ ? "replaced" : "kept", sentence);
    }
    broken_ = !item.ends;
  }
  drops_ = drops_ || (!item.ends && !item.skipped.empty());
  done_.bytes += item.bytes;
  done_.place = item.place;
  shard_bytes_ += item.bytes;
  show_progress(false);
  if (shard_bytes_ >= most_ && !item.place.within) {
    shards_->end(done_);
    shard_bytes_ = 0;
  }
}

void Preparation::say_fault(const char* done, const std::string& sentence) const {
  const char* line = terminal_.interactive ? "\r\x1b[K" : "";
  std::fprintf(stderr, "%s%s: %s\n", line, done, sentence.c_str());
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
  const double speed = static_cast<double>(done_.bytes - first_bytes_) / std::max(seconds, 1e-3);
  std::string line = formatted(
      "%s, %s tokens, %s, %.1f MB/s",
      count_text(done_.documents, "document").c_str(),
      grouped(static_cast<int64_t>(done_.tokens)).c_str(),
      bytes_text(static_cast<int64_t>(done_.bytes)).c_str(),
      speed / 1e6
  );
  uint64_t total = 0, passed = 0; // bytes of the files as they lie on the disk
  for (size_t i = 0; i < files_.size(); ++i) {
    const std::string& path = files_[i].path;
    const bool plain = !is_compressed_name(path) && !is_columns_name(path);
    passed += i < done_.place.file             ? files_[i].bytes
              : i == done_.place.file && plain ? std::min(done_.place.offset, files_[i].bytes)
                                               : 0;
    total += files_[i].bytes;
  }
  if (passed > 0) {
    const double share = static_cast<double>(passed) / static_cast<double>(total);
    const double left =
        (1 - share) / share * static_cast<double>(done_.bytes) / std::max(speed, 1.0);
    line = terminal_.paint(Paint::cyan, bar(share, 24)) + formatted(" %3.0f%%  ", 100 * share) +
           line + ", " + duration_text(left) + " left";
  }
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
}

/// "; skipped 3 documents, the rest of 1 file; ...", or nothing.
std::string Preparation::faults_text() const {
  std::vector<std::string> skipped;
  if (done_.skipped > 0) {
    skipped.push_back(count_text(done_.skipped, "document"));
  }
  if (done_.cut > 0) {
    skipped.push_back("the rest of " + count_text(done_.cut, "file"));
  }
  std::string text = skipped.empty() ? "" : "; skipped " + join(skipped);
  if (done_.broken > 0) {
    text += std::string("; bytes that are no UTF-8 ") + (replaces_ ? "replaced" : "kept") + " in " +
            count_text(done_.broken, "document");
  }
  return text;
}

void Preparation::report() const {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string paths;
  for (const std::string& stream : streams_) {
    const std::string prefix = shards_->prefix(stream);
    say_corpus(prefix, done_.documents, shards_->tokens_of(stream));
    if (stream.ends_with("_loss")) {
      continue; // found by the name of the other
    }
    paths += (paths.empty() ? "\"" : ", \"") + prefix + "\"";
  }
  std::printf(
      "%s, %s in %s (%.1f MB/s)%s\n",
      count_text(files_.size(), "file").c_str(),
      bytes_text(static_cast<int64_t>(done_.bytes)).c_str(),
      duration_text(seconds).c_str(),
      static_cast<double>(done_.bytes - first_bytes_) / 1e6 / std::max(seconds, 1e-3),
      faults_text().c_str()
  );
  std::printf(
      "in a recipe of this folder: data = { use = \"indexed\", paths = { %s }%s }\n",
      paths.c_str(),
      chat_ != nullptr ? ", supervised = true, packing = \"first_fit\"" : ""
  );
}

void Preparation::run() {
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  const int64_t workers = number_option(invocation_, "--workers", cores, 1, 1024);
  most_ = static_cast<uint64_t>(number_option(invocation_, "--shard", 64, 1, 1 << 20)) << 20;
  shards_ = std::make_unique<CorpusShards>(output_, streams_, token_type_for(tokenizer_->vocab()));
  for (const std::string& stream : streams_) {
    require_free(invocation_, host_, shards_->prefix(stream));
  }
  resume();
  DocumentPieces pieces;
  if (invocation_.has("--sentences")) {
    pieces.end = text::end_of_paragraph;
  }
  const auto open = [this](const std::string& path) { return open_input(path, keys_); };
  DocumentReader reader(files_, open, pieces);
  reader.seek(done_.place);
  in_order(
      static_cast<size_t>(workers),
      [&] { return read(reader); },
      [&](const ReadItem& item) { return encode_item(item); },
      [&](const EncodedItem& item) { write(item); }
  );
  show_progress(true);
  shards_->end(done_); // empty where the one before was full
  shards_->publish();
  report();
}

} // namespace

int command_data_prepare(const Invocation& invocation, Host& host) {
  if (invocation.value("--format") == "tokens") {
    return prepare_tokens(invocation, host);
  }
  try {
    Preparation(invocation, host).run();
  } catch (const std::bad_alloc&) {
    throw Error(
        out_of_memory(0).what(),
        "each of --workers holds up to 8 MiB of a text file and its tokens, but a line of JSON as a "
        "whole: lower --workers, or cut long documents",
        exit_code::memory
    );
  }
  return 0;
}

} // namespace mh
