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
  if (commit_.valid()) {
    commit_.wait();
  }
  bins_.clear();
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

uint64_t CorpusShards::tokens_of(const std::string& stream) const {
  const auto at = std::ranges::find(streams_, stream) - streams_.begin();
  return sizes_[static_cast<size_t>(at)] / type_.bytes;
}

Path CorpusShards::index(uint64_t number, const std::string& stream) const {
  return folder_ / (std::to_string(number) + "_" + stream + ".idx");
}

Path CorpusShards::tokens(const std::string& stream) const {
  return folder_ / (stream + ".bin");
}

CorpusShards::Done CorpusShards::begin(Signature signature) {
  make_directories(folder_);
  lock_ = std::make_unique<FileLock>(folder_ / kLock);
  signature_ = std::move(signature);
  const Path journal = folder_ / kJournal;
  const bool found = file_system().kind(journal) == FileSystem::Kind::file;
  if (signature_ && found) {
    const auto json = ShardsJson::parse(read_file(journal, 1 << 20), nullptr, false);
    const auto number = [&](const char* key) { return json.value(key, uint64_t{0}); };
    if (json.is_object()) {
      const Done done{
          .place = {.file = number("file"), .offset = number("offset"), .line = number("line")},
          .bytes = number("bytes"),
          .documents = number("documents"),
          .tokens = number("tokens"),
          .skipped = number("skipped"),
          .cut = number("cut"),
          .broken = number("broken")};
      if (json.value("signature", "") == signature_(done.place) &&
          goes_on(json.value("sizes", std::vector<uint64_t>{}))) {
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
  for (const std::string& stream : streams_) {
    bins_.push_back(file_system().create(tokens(stream)));
    sizes_.push_back(0);
  }
  return {.left = found};
}

/// Opens the tokens that the journal tells of; what was written behind them is cut off.
bool CorpusShards::goes_on(const std::vector<uint64_t>& sizes) {
  if (sizes.size() != streams_.size()) {
    return false;
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Path bin = tokens(streams_[i]);
    if (file_system().kind(bin) != FileSystem::Kind::file ||
        file_system().open(bin)->size() < sizes[i]) {
      return false; // it was ended while its corpora got their names
    }
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    bins_.push_back(file_system().extend(tokens(streams_[i]), sizes[i]));
  }
  sizes_ = sizes;
  return true;
}

void CorpusShards::open() {
  for (size_t i = documents_.size(); i < streams_.size(); ++i) {
    documents_.emplace_back(*bins_[i], tokens(streams_[i]), prefix(streams_[i]), type_);
  }
}

void CorpusShards::end(const Done& done) {
  open();
  for (size_t i = 0; i < streams_.size(); ++i) {
    documents_[i].flush();
    sizes_[i] += documents_[i].tokens() * type_.bytes;
  }
  if (commit_.valid()) {
    commit_.get();
  }
  commit_ = std::async(
      std::launch::async,
      [this, documents = std::move(documents_), sizes = sizes_, number = shards_, done] {
        commit(documents, sizes, number, done);
      }
  );
  documents_.clear();
  ++shards_;
}

/// Runs next to the thread that calls the other functions.
void CorpusShards::commit(
    const std::vector<IndexedDocuments>& documents,
    const std::vector<uint64_t>& sizes,
    uint64_t number,
    const Done& done
) const {
  for (size_t i = 0; i < streams_.size(); ++i) {
    bins_[i]->sync();
    const Path path = index(number, streams_[i]);
    if (file_system().kind(path) != FileSystem::Kind::none) {
      file_system().remove(path); // left by a preparation that was killed
    }
    documents[i].write_index(file_system(), path);
  }
  file_system().sync_directory(folder_);
  const ShardsJson json{
      {"signature", signature_ ? signature_(done.place) : ""},
      {"shards", number + 1},
      {"sizes", sizes},
      {"file", done.place.file},
      {"offset", done.place.offset},
      {"line", done.place.line},
      {"bytes", done.bytes},
      {"documents", done.documents},
      {"tokens", done.tokens},
      {"skipped", done.skipped},
      {"cut", done.cut},
      {"broken", done.broken}};
  replace_file(folder_ / kJournal, json.dump());
}

void CorpusShards::publish() {
  commit_.get();
  bins_.clear();
  const auto merged = [&](const std::string& stream) { return folder_ / (stream + ".idx"); };
  for (size_t i = 0; i < streams_.size(); ++i) {
    std::vector<std::string> shards;
    for (uint64_t number = 0; number < shards_; ++number) {
      shards.push_back(index(number, streams_[i]));
    }
    if (file_system().kind(merged(streams_[i])) != FileSystem::Kind::none) {
      file_system().remove(merged(streams_[i])); // left by a preparation that was killed
    }
    const uint64_t bytes = merge_indexes(file_system(), shards, merged(streams_[i]));
    MH_ASSERT(bytes == sizes_[i], "an index tells of other tokens than were written");
  }
  for (const std::string& stream : streams_) {
    publish_indexed(file_system(), tokens(stream), merged(stream), prefix(stream));
  }
  // The journal first: what is removed by half is not gone on with.
  file_system().remove(folder_ / kJournal);
  remove_tree(file_system(), folder_);
}

} // namespace mh
