#include "core/formats/indexed.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

#include <random>

namespace indexed_tests {

using mh::test::contains;
using mh::test::refusal;

namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

template <class T>
std::string little(T value) {
  std::string text(sizeof(T), '\0');
  std::memcpy(text.data(), &value, sizeof(T));
  return text;
}

/// An .idx file by hand.
struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  uint64_t version = 1;
  uint8_t code = 8;
  std::vector<int32_t> lengths{3, 0, 2};
  std::vector<int64_t> offsets{0, 6, 6};
  std::vector<int64_t> starts{0, 1, 1, 3};
  std::string more{};

  [[nodiscard]] std::string text() const {
    std::string text = magic + little(version) + little(code) +
                       little(static_cast<uint64_t>(lengths.size())) +
                       little(static_cast<uint64_t>(starts.size()));
    for (const int32_t length : lengths) {
      text += little(length);
    }
    for (const int64_t offset : offsets) {
      text += little(offset);
    }
    for (const int64_t start : starts) {
      text += little(start);
    }
    return text + more;
  }
};

std::string why(const std::string& text, uint64_t bin_bytes = 10) {
  const Bytes bytes =
      bytes_of(text); // exactly as long as the file: a sanitizer sees a step too far
  return refusal([&] { (void)mh::read_index(bytes, bin_bytes, "c.idx"); });
}

std::string why(const Index& index, uint64_t bin_bytes = 10) {
  return why(index.text(), bin_bytes);
}

} // namespace

TEST_CASE("the bytes of an index, by hand") {
  std::string written;
  mh::write_index(
      mh::token_type_for(50257),
      std::vector<int32_t>{3, 0, 2},
      std::vector<int64_t>{0, 1, 1, 3},
      [&](std::span<const std::byte> bytes) {
        written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      }
  );
  using namespace std::string_literals;
  CHECK(
      written == "MMIDIDX\0\0"
                 "\1\0\0\0\0\0\0\0"
                 "\x08"
                 "\3\0\0\0\0\0\0\0"
                 "\4\0\0\0\0\0\0\0"
                 "\3\0\0\0"
                 "\0\0\0\0"
                 "\2\0\0\0"
                 "\0\0\0\0\0\0\0\0"
                 "\6\0\0\0\0\0\0\0"
                 "\6\0\0\0\0\0\0\0"
                 "\0\0\0\0\0\0\0\0"
                 "\1\0\0\0\0\0\0\0"
                 "\1\0\0\0\0\0\0\0"
                 "\3\0\0\0\0\0\0\0"s
  );
  CHECK(written == Index().text());
  const Bytes bytes = bytes_of(written);
  const mh::IndexedLayout layout = mh::read_index(bytes, 10, "c.idx");
  CHECK(layout.type.name == "uint16");
  CHECK(layout.sequences == 3);
  CHECK(layout.documents == 3);
  CHECK(layout.tokens == 5);
  CHECK(mh::packed<int32_t>(layout.lengths, 2) == 2);
  CHECK(mh::packed<int64_t>(layout.offsets, 2) == 6);
  CHECK(mh::packed<int64_t>(layout.starts, 3) == 3);
}

TEST_CASE("offsets of more sequences than one block") {
  const std::vector<int32_t> lengths(200'000, 7);
  Bytes written;
  mh::write_index(
      mh::token_type_for(100'000),
      lengths,
      std::vector<int64_t>{0, 200'000},
      [&](std::span<const std::byte> bytes) {
        written.insert(written.end(), bytes.begin(), bytes.end());
      }
  );
  const mh::IndexedLayout layout = mh::read_index(written, 200'000 * 7 * 4, "c.idx");
  CHECK(mh::packed<int64_t>(layout.offsets, 199'999) == 199'999LL * 28);
}

TEST_CASE("an empty corpus") {
  const Index empty{.lengths = {}, .offsets = {}, .starts = {0}};
  CHECK(why(empty, 0) == "");
}

TEST_CASE("every rule of an index") {
  CHECK(why(Index()) == "");
  CHECK(contains(why(""), "c.idx: only 0 bytes, expected at least the 34"));
  CHECK(contains(why(Index{.magic = std::string("MMIDIDX\0\1", 9)}), "does not begin with"));
  CHECK(contains(why(Index{.version = 2}), "format version 2, expected 1"));
  CHECK(contains(why(Index{.code = 7}), "floating-point"));
  CHECK(contains(why(Index{.code = 0}), "unknown type code 0"));
  CHECK(contains(why(Index{.code = 9}), "unknown type code 9"));
  CHECK(contains(why(Index{.more = "x"}), "which take 102 bytes, but the file has 103"));
  CHECK(contains(why(Index{.more = "xxx"}), "multimodal"));
  CHECK(contains(why(Index{.lengths = {3, -1, 3}}), "sequence 1 has the length -1"));
  CHECK(contains(
      why(Index{.offsets = {0, 4, 6}}), "sequence 1 begins at byte 4 of the .bin file, expected 6"
  ));
  CHECK(contains(why(Index{.offsets = {-2, 6, 6}}), "begins at byte -2"));
  CHECK(contains(why(Index(), 9), "ends at token 5, but the .bin file has only 9 bytes"));
  CHECK(contains(why(Index(), 12), "describes 5 tokens (uint16), but the .bin file has 12 bytes"));
  CHECK(contains(why(Index{.starts = {1, 1, 1, 3}}), "document bound 0 is sequence 1, expected 0"));
  CHECK(contains(
      why(Index{.starts = {0, 2, 1, 3}}), "document bound 2 is sequence 1, expected 2 to 3"
  ));
  CHECK(contains(why(Index{.starts = {0, 1, 4, 3}}), "document bound 2 is sequence 4"));
  CHECK(contains(why(Index{.starts = {0, -1, 1, 3}}), "document bound 1 is sequence -1"));
  CHECK(contains(why(Index{.starts = {0, 1, 1, 2}}), "the last document ends at sequence 2"));
  CHECK(contains(why(Index{.starts = {}}), "no document bounds"));
}

TEST_CASE("counts that overflow") {
  for (const uint64_t count :
       {UINT64_MAX, UINT64_MAX / 12 + 2, UINT64_MAX / 8, uint64_t{1} << 61}) {
    std::string text = Index().text();
    CAPTURE(count);
    text.replace(18, 8, little(count));
    CHECK(contains(why(text), "but the file has 102"));
    text = Index().text();
    text.replace(26, 8, little(count));
    CHECK(contains(why(text), "but the file has 102"));
  }
  Index tokens{.code = 4, .lengths = {INT32_MAX, INT32_MAX}, .offsets = {0, 0}, .starts = {0, 2}};
  tokens.offsets[1] = int64_t{4} * INT32_MAX;
  CHECK(contains(why(tokens, 40), "sequence 0 ends at token 2147483647"));
  CHECK(why(tokens, uint64_t{8} * INT32_MAX) == "");
}

TEST_CASE("cut anywhere, an index is refused; with a flipped bit it is refused or still consistent"
) {
  const std::string whole = Index().text();
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(why(whole.substr(0, size)) != "");
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const Bytes bytes = bytes_of(flipped);
    try {
      const mh::IndexedLayout layout = mh::read_index(bytes, 10, "c.idx");
      CHECK(layout.tokens * layout.type.bytes == 10);
      CHECK(layout.sequences == 3);
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
    }
  }
}

TEST_CASE("random bytes after a right header") {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text = Index().text();
    for (size_t at = 17; at < text.size(); ++at) {
      if (random() % 8 == 0) {
        text[at] = static_cast<char>(random());
      }
    }
    (void)why(text, random() % 64);
  }
}

TEST_CASE("tokens of every type come back; ids that do not fit are named") {
  const std::vector<int32_t> ids{0, 1, 100, 127};
  for (const mh::TokenType& type : mh::kTokenTypes) {
    CAPTURE(type.name);
    Bytes bytes;
    CHECK_FALSE(mh::append_tokens(type, ids, bytes));
    CHECK(bytes.size() == ids.size() * type.bytes);
    std::vector<int64_t> back(ids.size());
    mh::read_tokens(type, bytes.data(), back);
    CHECK(std::vector<int32_t>(back.begin(), back.end()) == ids);
    const std::vector<int32_t> negative{-1};
    CHECK(mh::append_tokens(type, negative, bytes).has_value() == !type.is_signed);
  }
  const auto refused = [](size_t type, int32_t id) {
    Bytes bytes;
    const std::vector<int32_t> ids{0, id};
    return mh::append_tokens(mh::kTokenTypes[type], ids, bytes) == id && bytes.empty();
  };
  CHECK((refused(0, 256) && !refused(0, 255)));
  CHECK((refused(1, 128) && refused(1, -129) && !refused(1, -128)));
  CHECK((refused(2, 32768) && !refused(2, 32767)));
  CHECK((refused(5, 65536) && !refused(5, 65535)));
  CHECK_FALSE(refused(3, INT32_MAX));
  CHECK_FALSE(refused(4, INT32_MIN));
}

TEST_CASE("Megatron's choice of a type") {
  CHECK(mh::token_type_for(256).name == "uint16");
  CHECK(mh::token_type_for(65499).name == "uint16");
  CHECK(mh::token_type_for(65500).name == "int32");
}

} // namespace indexed_tests
