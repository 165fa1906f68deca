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

IndexedDocuments::IndexedDocuments(
    WriteFile& bin, Path bin_path, std::string prefix, const TokenType& type
)
    : bin_(bin)
    , bin_path_(std::move(bin_path))
    , prefix_(std::move(prefix))
    , type_(type) {}

void IndexedDocuments::add(std::span<const int32_t> ids, std::span<const size_t> sequence_lengths) {
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

void IndexedDocuments::extend(std::span<const int32_t> ids) {
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

int32_t IndexedDocuments::checked_length(size_t length) const {
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

void IndexedDocuments::append(std::span<const int32_t> ids) {
  tokens_ += ids.size();
  while (!ids.empty()) { // a long document is written piece by piece
    const auto piece = ids.first(std::min(ids.size(), kWriteBytes / type_.bytes));
    if (const auto bad = append_tokens(type_, piece, waiting_)) {
      throw Error(
          prefix_ + ".bin: document " + std::to_string(documents()) + " has the id " +
              std::to_string(*bad) + ", which " + std::string(type_.name) + " cannot hold",
          "the tokenizer gives ids outside its own vocabulary",
          exit_code::data
      );
    }
    if (waiting_.size() >= kWriteBytes) {
      flush();
    }
    ids = ids.subspan(piece.size());
  }
}

void IndexedDocuments::flush() {
  write_all(bin_, waiting_, bin_path_);
  waiting_.clear();
}

void IndexedDocuments::write_index(FileSystem& files, const Path& index) const {
  const auto file = files.create(index);
  mh::write_index(type_, lengths_, starts_, [&](std::span<const std::byte> bytes) {
    write_all(*file, bytes, index);
  });
  file->sync();
}

namespace {

/// The file of tokens, in place of what a writer that was killed has left.
std::unique_ptr<WriteFile> create_bin(FileSystem& files, const std::string& prefix) {
  remove_unfinished(files, prefix);
  return files.create(aside(prefix, ".bin"));
}

} // namespace

IndexedWriter::IndexedWriter(FileSystem& files, std::string prefix, const TokenType& type)
    : files_(files)
    , prefix_(std::move(prefix))
    , bin_(create_bin(files_, prefix_))
    , documents_(*bin_, aside(prefix_, ".bin"), prefix_, type) {}

IndexedWriter::~IndexedWriter() {
  bin_.reset();
  remove_unfinished(files_, prefix_);
}

void IndexedWriter::commit() {
  documents_.flush();
  bin_->sync();
  documents_.write_index(files_, aside(prefix_, ".idx"));
  publish_indexed(files_, aside(prefix_, ".bin"), aside(prefix_, ".idx"), prefix_);
}

void publish_indexed(
    FileSystem& files, const Path& bin, const Path& index, const std::string& prefix
) {
  const Path folder = Path(prefix).parent_path();
  if (files.kind(prefix + ".idx") != FileSystem::Kind::none) {
    files.remove(prefix + ".idx"); // else it would describe the new tokens for a moment
    files.sync_directory(folder);
  }
  files.rename(bin, prefix + ".bin");
  files.sync_directory(folder);
  files.rename(index, prefix + ".idx");
  files.sync_directory(folder);
}

uint64_t
merge_indexes(FileSystem& files, const std::vector<std::string>& indexes, const Path& output) {
  const auto each = [&](const auto& use) { // one is mapped at a time: a corpus may have many parts
    for (const std::string& path : indexes) {
      const MappedFile mapped(path);
      use(read_index(mapped.bytes(), std::nullopt, path), path);
    }
  };
  std::optional<TokenType> type;
  uint64_t sequences = 0, documents = 0, tokens = 0;
  each([&](const IndexedLayout& layout, const std::string& path) {
    if (type && type->code != layout.type.code) {
      throw Error(
          path + " holds " + std::string(layout.type.name) + " and " + indexes.front() + " " +
              std::string(type->name),
          "merge corpora that one tokenizer has made",
          exit_code::data
      );
    }
    type = layout.type;
    sequences += layout.sequences;
    documents += layout.documents;
    tokens += layout.tokens;
  });
  MH_ASSERT(type, "a merger of nothing");
  const auto file = files.create(output);
  const auto write = [&](std::span<const std::byte> bytes) { write_all(*file, bytes, output); };
  write_index_header(*type, sequences, documents + 1, write);
  each([&](const IndexedLayout& layout, const auto&) {
    write({layout.lengths, layout.sequences * sizeof(int32_t)});
  });
  const auto write_shifted = [&](uint64_t skip, auto numbers_of, auto length_of) {
    int64_t shift = 0;
    std::vector<int64_t> block;
    each([&](const IndexedLayout& layout, const auto&) {
      constexpr uint64_t kBlock = 1 << 16;
      const auto [numbers, count] = numbers_of(layout);
      for (uint64_t begin = skip; begin < count; begin += kBlock) {
        block.clear();
        for (uint64_t i = begin; i < std::min(begin + kBlock, count); ++i) {
          block.push_back(packed<int64_t>(numbers, i) + shift);
        }
        write(std::as_bytes(std::span(block)));
      }
      shift += static_cast<int64_t>(length_of(layout));
    });
  };
  write_shifted(
      0,
      [](const IndexedLayout& layout) { return std::pair(layout.offsets, layout.sequences); },
      [](const IndexedLayout& layout) { return layout.tokens * layout.type.bytes; }
  );
  const int64_t first = 0; // each part begins where the one before it ends
  write(std::as_bytes(std::span(&first, 1)));
  write_shifted(
      1,
      [](const IndexedLayout& layout) { return std::pair(layout.starts, layout.documents + 1); },
      [](const IndexedLayout& layout) { return layout.sequences; }
  );
  file->sync();
  return tokens * type->bytes;
}

void merge_indexed(
    FileSystem& files, const std::vector<std::string>& prefixes, const std::string& output
) {
  const struct Rest { // removes what a merger that fails leaves; nothing once it is published

    ~Rest() { remove_unfinished(files, output); }

    FileSystem& files;
    const std::string& output;
  } rest{files, output};

  const Path bin = aside(output, ".bin"), idx = aside(output, ".idx");
  const auto tokens = create_bin(files, output);
  std::vector<std::string> indexes;
  for (const std::string& prefix : prefixes) {
    indexes.push_back(prefix + ".idx");
    const MappedFile mapped(indexes.back());
    const auto bytes = files.open(prefix + ".bin");
    (void)read_index(mapped.bytes(), bytes->size(), indexes.back());
  }
  merge_indexes(files, indexes, idx);
  std::vector<std::byte> buffer(kWriteBytes);
  for (const std::string& prefix : prefixes) {
    const auto bytes = files.open(prefix + ".bin");
    for (uint64_t at = 0; at < bytes->size();) { // a map of all would count as memory in use
      const size_t got = bytes->read(at, buffer);
      write_all(*tokens, std::span(buffer).first(got), bin);
      at += got;
    }
  }
  tokens->sync();
  publish_indexed(files, bin, idx, output);
}

} // namespace mh
