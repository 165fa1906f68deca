#include "core/formats/indexed.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace mh {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = 34;
constexpr uint64_t kSequenceBytes = sizeof(int32_t) + sizeof(int64_t);

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why,
      "the file is damaged, cut short, or no index of tokens: make it again with "
      "`megahost data prepare`",
      exit_code::data
  );
}

/// The counts, as far as the header alone can tell.
IndexedLayout read_header(std::span<const std::byte> index, const std::string& file) {
  if (index.size() < kHeaderBytes) {
    refuse(
        file,
        "only " + std::to_string(index.size()) + " bytes, expected at least the " +
            std::to_string(kHeaderBytes) + " of the header"
    );
  }
  if (std::memcmp(index.data(), kMagic.data(), kMagic.size()) != 0) {
    refuse(file, "it does not begin with \"MMIDIDX\"");
  }
  const std::byte* after = index.data() + kMagic.size();
  const auto version = packed<uint64_t>(after, 0);
  if (version != kVersion) {
    refuse(file, "format version " + std::to_string(version) + ", expected 1");
  }
  const auto code = packed<uint8_t>(after + 8, 0);
  const auto type = std::ranges::find(kTokenTypes, code, &TokenType::code);
  if (type == kTokenTypes.end()) {
    refuse(
        file,
        code == 6 || code == 7
            ? "it holds floating-point numbers (type code " + std::to_string(code) +
                  "), expected token ids"
            : "unknown type code " + std::to_string(code) + ", expected 1 to 5 or 8"
    );
  }
  IndexedLayout layout;
  layout.type = *type;
  layout.sequences = packed<uint64_t>(after + 9, 0);
  layout.documents = packed<uint64_t>(after + 17, 0);
  return layout;
}

void check_size(uint64_t bytes, const IndexedLayout& layout, const std::string& file) {
  uint64_t sequences = 0, documents = 0, expected = 0;
  const bool overflows = __builtin_mul_overflow(layout.sequences, kSequenceBytes, &sequences) ||
                         __builtin_mul_overflow(layout.documents, sizeof(int64_t), &documents) ||
                         __builtin_add_overflow(sequences, documents, &expected) ||
                         __builtin_add_overflow(expected, kHeaderBytes, &expected);
  const std::string counts = std::to_string(layout.sequences) + " sequences and " +
                             std::to_string(layout.documents) + " document bounds";
  if (!overflows && bytes == expected + layout.sequences && layout.sequences > 0) {
    refuse(file, "it holds a mode for each sequence, as multimodal corpora do, which is not read");
  }
  if (overflows || bytes != expected) {
    refuse(
        file,
        "it claims " + counts + ", which take " +
            (overflows ? "more than 2^64" : std::to_string(expected)) +
            " bytes, but the file has " + std::to_string(bytes)
    );
  }
  if (layout.documents == 0) {
    refuse(file, "it has no document bounds, expected at least one");
  }
}

/// Returns the number of tokens.
uint64_t check_sequences(
    const IndexedLayout& layout, std::optional<uint64_t> bin_bytes, const std::string& file
) {
  uint64_t tokens = 0;
  const uint64_t most = bin_bytes.value_or(std::numeric_limits<int64_t>::max()) / layout.type.bytes;
  for (uint64_t i = 0; i < layout.sequences; ++i) {
    const auto length = packed<int32_t>(layout.lengths, i);
    const auto offset = packed<int64_t>(layout.offsets, i);
    const auto which = [&] { return "sequence " + std::to_string(i); };
    if (length < 0) {
      refuse(file, which() + " has the length " + std::to_string(length));
    }
    if (offset < 0 || static_cast<uint64_t>(offset) != tokens * layout.type.bytes) {
      refuse(
          file,
          which() + " begins at byte " + std::to_string(offset) + " of the .bin file, expected " +
              std::to_string(tokens * layout.type.bytes) + ", where the one before it ends"
      );
    }
    tokens += static_cast<uint64_t>(length);
    if (tokens > most) {
      refuse(
          file,
          which() + " ends at token " + std::to_string(tokens) + ", but the .bin file has only " +
              std::to_string(bin_bytes.value_or(0)) + " bytes (" + std::string(layout.type.name) +
              ")"
      );
    }
  }
  if (bin_bytes && tokens * layout.type.bytes != *bin_bytes) {
    refuse(
        file,
        "it describes " + std::to_string(tokens) + " tokens (" + std::string(layout.type.name) +
            "), but the .bin file has " + std::to_string(*bin_bytes) + " bytes, expected " +
            std::to_string(tokens * layout.type.bytes)
    );
  }
  return tokens;
}

void check_documents(
    const std::byte* starts, uint64_t count, uint64_t sequences, const std::string& file
) {
  int64_t before = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const auto start = packed<int64_t>(starts, i);
    if ((i == 0 && start != 0) || start < before || static_cast<uint64_t>(start) > sequences) {
      refuse(
          file,
          "document bound " + std::to_string(i) + " is sequence " + std::to_string(start) +
              ", expected " +
              (i == 0 ? "0" : std::to_string(before) + " to " + std::to_string(sequences))
      );
    }
    before = start;
  }
  if (static_cast<uint64_t>(before) != sequences) {
    refuse(
        file,
        "the last document ends at sequence " + std::to_string(before) + ", expected " +
            std::to_string(sequences)
    );
  }
}

template <class T>
void append_as(std::span<const int32_t> ids, std::vector<std::byte>& ret_bytes) {
  const size_t before = ret_bytes.size();
  ret_bytes.resize(before + ids.size() * sizeof(T));
  std::byte* to = ret_bytes.data() + before;
  for (const int32_t id : ids) {
    const T value = static_cast<T>(id);
    std::memcpy(to, &value, sizeof(T));
    to += sizeof(T);
  }
}

template <class T>
void read_as(const std::byte* tokens, std::span<int64_t> ret_ids) {
  for (size_t i = 0; i < ret_ids.size(); ++i) {
    ret_ids[i] = static_cast<int64_t>(packed<T>(tokens, i));
  }
}

} // namespace

const TokenType& token_type_for(int64_t vocab) {
  constexpr int64_t kMostInTwoBytes = 65500;
  const uint8_t code = vocab < kMostInTwoBytes ? 8 : 4;
  return *std::ranges::find(kTokenTypes, code, &TokenType::code);
}

IndexedLayout read_index(
    std::span<const std::byte> index, std::optional<uint64_t> bin_bytes, const std::string& file
) {
  IndexedLayout layout = read_header(index, file);
  check_size(index.size(), layout, file);
  layout.lengths = index.data() + kHeaderBytes;
  layout.offsets = layout.lengths + layout.sequences * sizeof(int32_t);
  layout.starts = layout.offsets + layout.sequences * sizeof(int64_t);
  layout.tokens = check_sequences(layout, bin_bytes, file);
  check_documents(layout.starts, layout.documents, layout.sequences, file);
  --layout.documents; // the last bound begins none
  return layout;
}

void write_index_header(
    const TokenType& type,
    uint64_t sequences,
    uint64_t entries,
    const std::function<void(std::span<const std::byte>)>& write
) {
  std::array<std::byte, kHeaderBytes> header{};
  const std::array<uint64_t, 2> counts{sequences, entries};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + 9, &kVersion, sizeof(kVersion));
  header[17] = static_cast<std::byte>(type.code);
  std::memcpy(header.data() + 18, counts.data(), sizeof(counts));
  write(header);
}

void write_index(
    const TokenType& type,
    std::span<const int32_t> lengths,
    std::span<const int64_t> starts,
    const std::function<void(std::span<const std::byte>)>& write
) {
  write_index_header(type, lengths.size(), starts.size(), write);
  write(std::as_bytes(lengths));

  constexpr size_t kBlock = 1 << 16;
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (size_t begin = 0; begin < lengths.size(); begin += kBlock) {
    offsets.clear();
    for (const int32_t length : lengths.subspan(begin, std::min(kBlock, lengths.size() - begin))) {
      offsets.push_back(offset);
      offset += int64_t{length} * type.bytes;
    }
    write(std::as_bytes(std::span(offsets)));
  }
  write(std::as_bytes(starts));
}

std::optional<int32_t> append_tokens(
    const TokenType& type, std::span<const int32_t> ids, std::vector<std::byte>& ret_bytes
) {
  const int64_t values = type.bytes < 8 ? int64_t{1} << (8 * type.bytes) : 0;
  const int64_t least = type.is_signed ? -values / 2 : 0;
  for (const int32_t id : ids) {
    if (values != 0 && (id < least || id >= least + values)) {
      return id;
    }
  }
  switch (type.bytes) {
  case 1:
    append_as<uint8_t>(ids, ret_bytes);
    break;
  case 2:
    append_as<uint16_t>(ids, ret_bytes);
    break;
  case 4:
    append_as<int32_t>(ids, ret_bytes);
    break;
  default:
    append_as<int64_t>(ids, ret_bytes);
  }
  return std::nullopt;
}

void read_tokens(const TokenType& type, const std::byte* tokens, std::span<int64_t> ret_ids) {
  switch (type.code) {
  case 1:
    return read_as<uint8_t>(tokens, ret_ids);
  case 2:
    return read_as<int8_t>(tokens, ret_ids);
  case 3:
    return read_as<int16_t>(tokens, ret_ids);
  case 4:
    return read_as<int32_t>(tokens, ret_ids);
  case 5:
    return read_as<int64_t>(tokens, ret_ids);
  default:
    return read_as<uint16_t>(tokens, ret_ids);
  }
}

} // namespace mh
