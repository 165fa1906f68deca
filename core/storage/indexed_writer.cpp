#include "core/storage/indexed_writer.hpp"

#include <limits>
#include <numeric>
#include <utility>

namespace mh {

namespace {

constexpr size_t kWriteBytes = 4 << 20;

Path aside(const std::string& prefix, const char* ending) {
  return prefix + ending + ".part";
}

} // namespace

IndexedWriter::IndexedWriter(FileSystem& files, std::string prefix, const TokenType& type)
    : files_(files)
    , prefix_(std::move(prefix))
    , type_(type) {
  remove_rest(); // of a run that was killed
  bin_ = files_.create(aside(prefix_, ".bin"));
}

IndexedWriter::~IndexedWriter() {
  bin_.reset();
  remove_rest();
}

void IndexedWriter::remove_rest() noexcept {
  for (const char* ending : {".bin", ".idx"}) {
    try {
      if (files_.kind(aside(prefix_, ending)) != FileSystem::Kind::none) {
        files_.remove(aside(prefix_, ending));
      }
    } catch (const Error&) { // what stays is in no one's way: `create` says why it cannot be made
    }
  }
}

void IndexedWriter::add_document(
    std::span<const int32_t> ids, std::span<const size_t> sequence_lengths
) {
  MH_ASSERT(
      std::accumulate(sequence_lengths.begin(), sequence_lengths.end(), size_t{0}) == ids.size(),
      "the sequences of a document are its tokens"
  );
  if (const auto bad = append_tokens(type_, ids, waiting_)) {
    throw Error(
        prefix_ + ".bin: document " + std::to_string(documents()) + " has the id " +
            std::to_string(*bad) + ", which " + std::string(type_.name) + " cannot hold",
        "the tokenizer gives ids outside its own vocabulary",
        exit_code::data
    );
  }
  for (const size_t length : sequence_lengths) {
    if (length > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      throw Error(
          prefix_ + ".idx: document " + std::to_string(documents()) + " has " +
              std::to_string(length) + " tokens, and the format holds at most 2^31 - 1",
          "cut it into several documents",
          exit_code::data
      );
    }
    lengths_.push_back(static_cast<int32_t>(length));
  }
  starts_.push_back(static_cast<int64_t>(lengths_.size()));
  tokens_ += ids.size();
  if (waiting_.size() >= kWriteBytes) {
    flush();
  }
}

void IndexedWriter::flush() {
  write_all(*bin_, waiting_, aside(prefix_, ".bin"));
  waiting_.clear();
}

void IndexedWriter::commit() {
  flush();
  bin_->sync();
  bin_.reset();
  const Path index = aside(prefix_, ".idx");
  const auto file = files_.create(index);
  write_index(type_, lengths_, starts_, [&](std::span<const std::byte> bytes) {
    write_all(*file, bytes, index);
  });
  file->sync();
  const Path folder = Path(prefix_).parent_path();
  if (files_.kind(prefix_ + ".idx") != FileSystem::Kind::none) {
    files_.remove(prefix_ + ".idx"); // else it would tell of the new tokens for a moment
    files_.sync_directory(folder);
  }
  files_.rename(aside(prefix_, ".bin"), prefix_ + ".bin");
  files_.sync_directory(folder);
  files_.rename(index, prefix_ + ".idx");
  files_.sync_directory(folder);
}

} // namespace mh
