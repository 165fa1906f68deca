#include "core/corpora/shards.hpp"

#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace mh {

namespace {

using ShardsJson = nlohmann::ordered_json;

constexpr const char* kJournal = "journal.json";
constexpr const char* kLock = ".lock";

} // namespace

CorpusShards::CorpusShards(
    std::string output, std::vector<std::string> streams, const TokenType& type
)
    : output_(std::move(output))
    , streams_(std::move(streams))
    , type_(type)
    , folder_(output_ + ".preparing") {}

CorpusShards::~CorpusShards() {
  writers_.clear();
  try {
    if (lock_ && shards_ == 0 && file_system().kind(folder_) != FileSystem::Kind::none) {
      remove_tree(file_system(), folder_);
    }
  } catch (const Error&) { // an empty folder is in no one's way
  }
}

std::string CorpusShards::prefix(const std::string& stream) const {
  return output_ + "_" + stream;
}

std::string CorpusShards::shard(uint64_t number, const std::string& stream) const {
  return folder_ / (std::to_string(number) + "_" + stream);
}

CorpusShards::Done CorpusShards::begin(Signature signature) {
  make_directories(folder_);
  lock_ = std::make_unique<FileLock>(folder_ / kLock);
  signature_ = std::move(signature);
  const Path journal = folder_ / kJournal;
  if (signature_ && file_system().kind(journal) == FileSystem::Kind::file) {
    const auto json = ShardsJson::parse(read_file(journal, 1 << 20), nullptr, false);
    const auto number = [&](const char* key) { return json.value(key, uint64_t{0}); };
    if (json.is_object()) {
      const Done done{
          .place = {.file = number("file"), .offset = number("offset"), .line = number("line")},
          .bytes = number("bytes"),
          .skipped = number("skipped"),
          .documents = number("documents"),
          .tokens = number("tokens")};
      if (json.value("signature", "") == signature_(done.place)) {
        shards_ = number("shards");
        return done;
      }
    }
  }
  for (const std::string& name : file_system().list(folder_)) {
    if (name != kLock) {
      remove_tree(file_system(), folder_ / name); // shards of other inputs
    }
  }
  return {};
}

void CorpusShards::open() {
  for (size_t i = writers_.size(); i < streams_.size(); ++i) {
    writers_.push_back(
        std::make_unique<IndexedWriter>(file_system(), shard(shards_, streams_[i]), type_)
    );
  }
}

void CorpusShards::end(const Done& done) {
  open();
  for (const auto& writer : writers_) {
    writer->commit();
  }
  writers_.clear();
  ++shards_;
  const ShardsJson json{
      {"signature", signature_ ? signature_(done.place) : ""},
      {"shards", shards_},
      {"file", done.place.file},
      {"offset", done.place.offset},
      {"line", done.place.line},
      {"bytes", done.bytes},
      {"skipped", done.skipped},
      {"documents", done.documents},
      {"tokens", done.tokens}};
  replace_file(folder_ / kJournal, json.dump());
}

void CorpusShards::publish() {
  for (const std::string& stream : streams_) {
    std::vector<std::string> shards;
    for (uint64_t i = 0; i < shards_; ++i) {
      shards.push_back(shard(i, stream));
    }
    merge_indexed(file_system(), shards, prefix(stream));
  }
  // The journal first: what is removed by half is not gone on with.
  file_system().remove(folder_ / kJournal);
  remove_tree(file_system(), folder_);
}

} // namespace mh
