#include "megahost/indexed_dataset.hpp"

#include "core/formats/indexed.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/mapped_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <utility>
#include <vector>

namespace mh {

namespace {

std::string without_ending(std::string prefix) {
  if (prefix.ends_with(".bin") || prefix.ends_with(".idx")) {
    prefix.resize(prefix.size() - 4);
  }
  return prefix;
}

/// The result of `open_file` for one of the pair.
template <class OpenFile>
auto open(const std::string& prefix, const char* ending, const OpenFile& open_file) {
  try {
    return open_file(prefix + ending);
  } catch (const StorageError& error) {
    if (error.code() != ENOENT && error.code() != ENOTDIR) {
      throw;
    }
    throw Error(
        "there is no " + prefix + ending,
        "give the path of a pair PREFIX.bin and PREFIX.idx without the ending; "
        "`megahost data prepare` makes one",
        exit_code::data
    );
  }
}

} // namespace

struct IndexedDataset::Files {
  std::unique_ptr<MappedFile> index, tokens;
  std::string read_index;                // in place of `index`
  std::unique_ptr<ReadFile> read_tokens; // in place of `tokens`
  IndexedLayout layout;
};

IndexedDataset::IndexedDataset(std::string prefix, Access access)
    : prefix_(without_ending(std::move(prefix)))
    , files_(std::make_unique<Files>()) {
  const auto layout_of = [&](std::span<const std::byte> index, uint64_t tokens) {
    files_->layout = read_index(index, tokens, prefix_ + ".idx");
  };
  if (access == Access::mapped) {
    const auto map = [](const Path& file) { return std::make_unique<MappedFile>(file); };
    files_->index = open(prefix_, ".idx", map);
    files_->tokens = open(prefix_, ".bin", map);
    layout_of(files_->index->bytes(), files_->tokens->bytes().size());
  } else {
    const auto read = [](const Path& file) { return file_system().open(file); };
    const auto index = open(prefix_, ".idx", read);
    files_->read_index = read_text(*index, prefix_ + ".idx", index->size());
    files_->read_tokens = open(prefix_, ".bin", read);
    layout_of(std::as_bytes(std::span(files_->read_index)), files_->read_tokens->size());
  }
}

IndexedDataset::~IndexedDataset() = default;
IndexedDataset::IndexedDataset(IndexedDataset&&) noexcept = default;
IndexedDataset& IndexedDataset::operator=(IndexedDataset&&) noexcept = default;

uint64_t IndexedDataset::sequences() const {
  return files_->layout.sequences;
}

uint64_t IndexedDataset::documents() const {
  return files_->layout.documents;
}

uint64_t IndexedDataset::tokens() const {
  return files_->layout.tokens;
}

std::string_view IndexedDataset::type() const {
  return files_->layout.type.name;
}

uint64_t IndexedDataset::token_bytes() const {
  return files_->layout.type.bytes;
}

uint64_t IndexedDataset::length(uint64_t sequence) const {
  MH_ASSERT(sequence < sequences(), "a sequence past the last");
  return static_cast<uint64_t>(packed<int32_t>(files_->layout.lengths, sequence));
}

uint64_t IndexedDataset::begin(uint64_t sequence) const {
  MH_ASSERT(sequence <= sequences(), "a sequence past the end");
  return sequence == sequences()
             ? tokens()
             : static_cast<uint64_t>(packed<int64_t>(files_->layout.offsets, sequence)) /
                   token_bytes();
}

uint64_t IndexedDataset::document_begin(uint64_t document) const {
  MH_ASSERT(document <= documents(), "a document past the end");
  return static_cast<uint64_t>(packed<int64_t>(files_->layout.starts, document));
}

void IndexedDataset::read(uint64_t sequence, uint64_t first, std::span<int64_t> ret_ids) const {
  const uint64_t size = length(sequence);
  MH_ASSERT(first <= size && ret_ids.size() <= size - first, "tokens past a sequence's end");
  read_from(begin(sequence) + first, ret_ids);
}

/// Copies tokens, counted from the first one of the corpus.
void IndexedDataset::read_from(uint64_t token, std::span<int64_t> ret_ids) const {
  const uint64_t begins = token * token_bytes();
  if (files_->tokens != nullptr) {
    read_tokens(files_->layout.type, files_->tokens->bytes().data() + begins, ret_ids);
    return;
  }
  std::vector<std::byte> bytes(ret_ids.size() * token_bytes());
  read_exactly(*files_->read_tokens, begins, bytes, prefix_ + ".bin");
  read_tokens(files_->layout.type, bytes.data(), ret_ids);
}

std::optional<IndexedDataset::PlacedId>
IndexedDataset::find_outside(int64_t vocab, uint64_t most) const {
  constexpr uint64_t kBlock = 1 << 14;
  const uint64_t all = (tokens() + kBlock - 1) / kBlock; // blocks
  const uint64_t looked_at = std::min(all, std::max<uint64_t>(1, most / kBlock));
  std::vector<int64_t> ids;
  for (uint64_t i = 0; i < looked_at; ++i) {
    const uint64_t block =
        looked_at == all ? i : i * (all - 1) / std::max<uint64_t>(1, looked_at - 1);
    ids.resize(std::min(kBlock, tokens() - block * kBlock));
    read_from(block * kBlock, ids);
    const auto bad = std::ranges::find_if(ids, [&](int64_t id) { return id < 0 || id >= vocab; });
    if (bad != ids.end()) {
      const uint64_t token = block * kBlock + static_cast<uint64_t>(bad - ids.begin());
      // The first document that ends behind it; those before may be empty.
      uint64_t document = 0;
      for (uint64_t end = documents(); document < end;) {
        const uint64_t middle = document + (end - document) / 2;
        if (begin(document_begin(middle + 1)) <= token) {
          document = middle + 1;
        } else {
          end = middle;
        }
      }
      return PlacedId{*bad, document, token - begin(document_begin(document))};
    }
  }
  return std::nullopt;
}

std::pair<double, double> split_bounds(const std::array<double, 3>& shares, size_t part) {
  double before = 0;
  for (size_t i = 0; i < part; ++i) {
    before += shares[i];
  }
  return {before, before + shares[part]};
}

std::pair<uint64_t, uint64_t> split_range(std::pair<double, double> bounds, uint64_t count) {
  const auto document_at = [count](double bound) {
    const double place = std::nearbyint(bound * static_cast<double>(count));
    return std::min(static_cast<uint64_t>(place), count);
  };
  return {document_at(bounds.first), document_at(bounds.second)};
}

} // namespace mh
