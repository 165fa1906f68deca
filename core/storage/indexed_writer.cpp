#include "core/storage/indexed_writer.hpp"

#include "core/storage/mapped_file.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

namespace mh {

namespace {

constexpr size_t kWriteBytes = 4 << 20;

Path aside(const std::string& prefix, const char* ending) {
  return prefix + ending + ".part";
}

void remove_unfinished(FileSystem& files, const std::string& prefix) noexcept {
  for (const char* ending : {".bin", ".idx"}) {
    try {
      if (files.kind(aside(prefix, ending)) != FileSystem::Kind::none) {
        files.remove(aside(prefix, ending));
      }
    } catch (const Error&) { // what stays is in no one's way: `create` says why it cannot be made
    }
  }
}

} // namespace

IndexedWriter::IndexedWriter(FileSystem& files, std::string prefix, const TokenType& type)
    : files_(files)
    , prefix_(std::move(prefix))
    , type_(type) {
  remove_rest(); // left by a run that was killed
  bin_ = files_.create(aside(prefix_, ".bin"));
}

IndexedWriter::~IndexedWriter() {
  bin_.reset();
  remove_rest();
}

void IndexedWriter::remove_rest() noexcept {
  remove_unfinished(files_, prefix_);
}

void IndexedWriter::add_document(
    std::span<const int32_t> ids, std::span<const size_t> sequence_lengths
) {
  MH_ASSERT(
      std::accumulate(sequence_lengths.begin(), sequence_lengths.end(), size_t{0}) == ids.size(),
      "the sequences of a document are its tokens"
  );
  append(ids);
  for (const size_t length : sequence_lengths) {
    lengths_.push_back(checked_length(length));
  }
  starts_.push_back(static_cast<int64_t>(lengths_.size()));
}

void IndexedWriter::extend_document(std::span<const int32_t> ids) {
  MH_ASSERT(starts_.size() > 1, "no document to extend");
  if (ids.empty()) {
    return;
  }
  append(ids);
  if (starts_.back() == starts_[starts_.size() - 2]) {
    lengths_.push_back(0);
    ++starts_.back();
  }
  lengths_.back() = checked_length(static_cast<size_t>(lengths_.back()) + ids.size());
}

int32_t IndexedWriter::checked_length(size_t length) const {
  if (length > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    throw Error(
        prefix_ + ".idx: document " + std::to_string(documents()) + " has " +
            std::to_string(length) + " tokens, and the format holds at most 2^31 - 1",
        "cut it into several documents",
        exit_code::data
    );
  }
  return static_cast<int32_t>(length);
}

void IndexedWriter::append(std::span<const int32_t> ids) {
  if (const auto bad = append_tokens(type_, ids, waiting_)) {
    throw Error(
        prefix_ + ".bin: document " + std::to_string(documents()) + " has the id " +
            std::to_string(*bad) + ", which " + std::string(type_.name) + " cannot hold",
        "the tokenizer gives ids outside its own vocabulary",
        exit_code::data
    );
  }
  tokens_ += ids.size();
  if (waiting_.size() >= kWriteBytes) {
    flush();
  }
}

void IndexedWriter::flush() {
  write_all(*bin_, waiting_, aside(prefix_, ".bin"));
  waiting_.clear();
}

namespace {

/// Gives both files their names; the index last.
void publish(FileSystem& files, const std::string& prefix) {
  const Path folder = Path(prefix).parent_path();
  if (files.kind(prefix + ".idx") != FileSystem::Kind::none) {
    files.remove(prefix + ".idx"); // else it would describe the new tokens for a moment
    files.sync_directory(folder);
  }
  files.rename(aside(prefix, ".bin"), prefix + ".bin");
  files.sync_directory(folder);
  files.rename(aside(prefix, ".idx"), prefix + ".idx");
  files.sync_directory(folder);
}

std::unique_ptr<WriteFile> create_anew(FileSystem& files, const Path& path) {
  if (files.kind(path) != FileSystem::Kind::none) {
    files.remove(path); // left by a run that was killed
  }
  return files.create(path);
}

} // namespace

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
  publish(files_, prefix_);
}

void merge_indexed(
    FileSystem& files, const std::vector<std::string>& prefixes, const std::string& output
) {
  const Path bin = aside(output, ".bin"), idx = aside(output, ".idx");

  const struct Rest { // removes what a merger that fails leaves; nothing once it is published

    ~Rest() { remove_unfinished(files, output); }

    FileSystem& files;
    const std::string& output;
  } rest{files, output};

  const auto tokens = create_anew(files, bin), index = create_anew(files, idx);
  const auto each = [&](const auto& use) { // one is open at a time: a corpus may have many parts
    for (const std::string& prefix : prefixes) {
      const MappedFile mapped(prefix + ".idx");
      const auto bytes = files.open(prefix + ".bin");
      use(read_index(mapped.bytes(), bytes->size(), prefix + ".idx"), *bytes, prefix);
    }
  };
  std::optional<TokenType> type;
  uint64_t sequences = 0, documents = 0;
  std::vector<std::byte> buffer(kWriteBytes);
  each([&](const IndexedLayout& layout, ReadFile& bytes, const std::string& from) {
    if (type && type->code != layout.type.code) {
      throw Error(
          from + " holds " + std::string(layout.type.name) + " and " + prefixes.front() + " " +
              std::string(type->name),
          "merge corpora that one tokenizer has made",
          exit_code::data
      );
    }
    type = layout.type;
    sequences += layout.sequences;
    documents += layout.documents;
    for (uint64_t at = 0; at < bytes.size();) { // a map of all would count as memory in use
      const size_t got = bytes.read(at, buffer);
      write_all(*tokens, std::span(buffer).first(got), bin);
      at += got;
    }
  });
  MH_ASSERT(type, "a merger of nothing");
  const auto write = [&](std::span<const std::byte> bytes) { write_all(*index, bytes, idx); };
  write_index_header(*type, sequences, documents + 1, write);
  each([&](const IndexedLayout& layout, auto&, auto) {
    write({layout.lengths, layout.sequences * sizeof(int32_t)});
  });
  const auto write_shifted = [&](uint64_t skip, auto numbers_of, auto length_of) {
    int64_t shift = 0;
    std::vector<int64_t> block;
    each([&](const IndexedLayout& layout, ReadFile& bytes, auto) {
      constexpr uint64_t kBlock = 1 << 16;
      const auto [numbers, count] = numbers_of(layout);
      for (uint64_t begin = skip; begin < count; begin += kBlock) {
        block.clear();
        for (uint64_t i = begin; i < std::min(begin + kBlock, count); ++i) {
          block.push_back(packed<int64_t>(numbers, i) + shift);
        }
        write(std::as_bytes(std::span(block)));
      }
      shift += static_cast<int64_t>(length_of(layout, bytes));
    });
  };
  write_shifted(
      0,
      [](const IndexedLayout& layout) { return std::pair(layout.offsets, layout.sequences); },
      [](const IndexedLayout&, ReadFile& bytes) { return bytes.size(); }
  );
  const int64_t first = 0; // each part begins where the one before it ends
  write(std::as_bytes(std::span(&first, 1)));
  write_shifted(
      1,
      [](const IndexedLayout& layout) { return std::pair(layout.starts, layout.documents + 1); },
      [](const IndexedLayout& layout, ReadFile&) { return layout.sequences; }
  );
  tokens->sync();
  index->sync();
  publish(files, output);
}

} // namespace mh
