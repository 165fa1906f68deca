#include "core/formats/safetensors.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

namespace safetensors_tests {

using mh::Dtype;
using mh::Safetensors;
using mh::TensorInfo;
using mh::test::contains;
using mh::test::refusal;

namespace {

Safetensors read(const std::string& bytes) {
  const auto read_at = [&bytes](uint64_t offset, std::span<std::byte> into) {
    REQUIRE(offset <= bytes.size());
    REQUIRE(into.size() <= bytes.size() - offset);
    std::copy_n(
        std::as_bytes(std::span(bytes)).begin() + static_cast<int64_t>(offset),
        into.size(),
        into.begin()
    );
  };
  return mh::read_safetensors(read_at, bytes.size(), "m.safetensors");
}

std::string why(const std::string& bytes) {
  return refusal([&] { (void)read(bytes); });
}

std::string length_prefix(uint64_t length) {
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text += static_cast<char>(length >> (8 * i) & 0xFF);
  }
  return text;
}

/// A file with this JSON header and as many bytes of data.
std::string file(const std::string& json, size_t data) {
  return length_prefix(json.size()) + json + std::string(data, 'd');
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// Why a file with a single tensor "w" is refused.
std::string why_one(
    const std::string& dtype, const std::string& shape, const std::string& offsets, size_t data
) {
  return why(file(R"({"w":)" + entry(dtype, shape, offsets) + "}", data));
}

TensorInfo tensor(std::string name, Dtype dtype, std::vector<int64_t> shape) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}

std::string small_file() {
  const Safetensors layout = mh::lay_out_safetensors(
      {tensor("a", Dtype::f32, {2, 2}), tensor("b", Dtype::bf16, {3}), tensor("c", Dtype::u8, {})},
      {{"format", "pt"}}
  );
  return layout.header + std::string(layout.file_bytes - layout.header.size(), 'd');
}

} // namespace

TEST_CASE("a file as the reference implementation writes it") {
  const std::string bytes = file(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[1,3],"data_offsets":[8,14]}}     )",
      14
  );
  const Safetensors read_back = read(bytes);
  CHECK(read_back.metadata == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(read_back.tensors.size() == 2);
  const TensorInfo* a = read_back.find("a");
  REQUIRE(a != nullptr);
  CHECK(a->dtype == Dtype::bf16);
  CHECK(a->shape == std::vector<int64_t>{1, 3});
  CHECK(a->offset == bytes.size() - 6);
  CHECK(a->bytes == 6);
  CHECK(read_back.find("c") == nullptr);
}

TEST_CASE("every legal oddity is read") {
  CHECK(read(file("{}", 0)).tensors.empty());
  CHECK(read(file(R"({"__metadata__":null})", 0)).metadata.empty());
  CHECK(why_one("F32", "[]", "[0,4]", 4) == "");
  CHECK(why_one("F32", "[0]", "[0,0]", 0) == "");
  CHECK(why_one("F4", "[2,3]", "[0,3]", 3) == "");
  CHECK(why_one("F6_E2M3", "[4]", "[0,3]", 3) == "");
  // Names are any text; empty tensors may share an offset with others.
  const std::string names = R"({"":)" + entry("U8", "[1]", "[0,1]") + R"(,"../../x\u0000\n":)" +
                            entry("U8", "[0]", "[1,1]") + R"(,"y":)" + entry("U8", "[2]", "[1,3]") +
                            "}";
  CHECK(read(file(names, 3)).find(std::string("../../x\0\n", 9)) != nullptr);
}

TEST_CASE("every dtype has its name and size") {
  int64_t count = 0;
  std::set<std::string_view> names;
  for (int i = 0; mh::dtype_name(static_cast<Dtype>(i)) != "U64"; ++i, ++count) {
    const auto dtype = static_cast<Dtype>(i);
    names.insert(mh::dtype_name(dtype));
    CHECK(mh::dtype_from_name(mh::dtype_name(dtype)) == dtype);
    CHECK((i == 0 || mh::dtype_bits(dtype) <= mh::dtype_bits(static_cast<Dtype>(i + 1))));
  }
  CHECK(count == 21);
  CHECK(names.size() == 21);
  CHECK(mh::tensor_bytes(Dtype::f32, {2, 3}) == 24);
  CHECK(mh::tensor_bytes(Dtype::c64, {}) == 8);
  CHECK_FALSE(mh::tensor_bytes(Dtype::f32, {-1}));
  CHECK_FALSE(mh::tensor_bytes(Dtype::f4, {3}));
  CHECK_FALSE(mh::tensor_bytes(Dtype::u8, {INT64_MAX / 8 + 1}));
  CHECK_FALSE(mh::tensor_bytes(Dtype::u8, {1LL << 32, 1LL << 32}));
}

TEST_CASE("the length of the header") {
  CHECK(contains(why(""), "only 0 bytes"));
  CHECK(contains(why("1234567"), "only 7 bytes"));
  CHECK(contains(why(length_prefix(2)), "claims 2 bytes, but the file has only 8"));
  CHECK(contains(why(length_prefix(100'000'001) + "{}"), "expected at most 100000000"));
  CHECK(contains(why(length_prefix(UINT64_MAX) + "{}"), "expected at most 100000000"));
  CHECK(contains(why(length_prefix(0)), "no JSON object"));
}

TEST_CASE("the header is one JSON object, padded with blanks") {
  CHECK(why(file("{}    ", 0)) == "");
  for (const char* json : {" {}", "\n{}", "{}\n", "[]", "null", "\"{}\"", "    ", "{", "}"}) {
    CAPTURE(json);
    CHECK(why(file(json, 0)) != "");
  }
  CHECK(contains(why(file(std::string("{}\0", 3), 0)), "no JSON object"));
  CHECK(contains(why(file("{} {}", 0)), "syntax error"));
  CHECK(contains(why(file("{\"\xFF\":1}", 0)), "m.safetensors: header: no valid JSON"));
  CHECK(contains(why(file(R"({"a":{"shape":[[[1]]]}})", 0)), "levels"));
}

TEST_CASE("metadata are strings") {
  for (const char* value : {"1", "[]", "\"x\"", R"({"a":1})", R"({"a":null})", R"({"a":{}})"}) {
    CAPTURE(value);
    CHECK(contains(
        why(file(R"({"__metadata__":)" + std::string(value) + "}", 0)), "no object of strings"
    ));
  }
}

TEST_CASE("fields of an entry") {
  const auto why_entry = [](const std::string& text) {
    return why(file(R"({"w":)" + text + "}", 4));
  };
  CHECK(contains(why_entry("1"), "tensor \"w\": found a JSON number, expected an object"));
  CHECK(contains(why_entry("{}"), "`dtype` is missing"));
  CHECK(contains(why_entry(R"({"dtype":1})"), "expected a string"));
  CHECK(contains(why_entry(R"({"dtype":"F32"})"), "`shape` is missing"));
  CHECK(contains(why_entry(R"({"dtype":"F32","shape":[1]})"), "`data_offsets` is missing"));
  CHECK(contains(
      why_entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"strides":[1]})"),
      "fields other than"
  ));
  CHECK(contains(
      why_entry(R"({"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]})"), "given twice"
  ));
  CHECK(contains(why_one("F33", "[1]", "[0,4]", 4), "unknown dtype \"F33\""));
  CHECK(contains(why_one("f32", "[1]", "[0,4]", 4), "unknown dtype"));
  for (const char* shape :
       {"1", "[-1]", "[1.0]", "[1e0]", "[\"1\"]", "[null]", "[9223372036854775808]"}) {
    CAPTURE(shape);
    CHECK(contains(why_one("F32", shape, "[0,4]", 4), "`shape` is no array"));
  }
  for (const char* offsets :
       {"4", "[]", "[0]", "[0,4,4]", "[-4,0]", "[0,4.0]", "[4,0]", "[0,9223372036854775808]"}) {
    CAPTURE(offsets);
    CHECK(contains(why_one("F32", "[1]", offsets, 4), "`data_offsets` is no pair"));
  }
}

TEST_CASE("sizes match offsets, without overflow") {
  CHECK(contains(why_one("F32", "[2]", "[0,4]", 4), "takes 8 bytes, but its data_offsets span 4"));
  CHECK(contains(why_one("F4", "[3]", "[0,1]", 1), "no whole number of bytes"));
  CHECK(contains(why_one("U8", "[4294967296,4294967296]", "[0,0]", 0), "overflows"));
  CHECK(contains(why_one("F64", "[2305843009213693952]", "[0,0]", 0), "overflows"));
  CHECK(contains(why_one("U8", "[4294967296,4294967296,0]", "[0,0]", 0), "overflows"));
  CHECK(contains(
      why_one("U8", "[1152921504606846975]", "[0,1152921504606846975]", 4), "the file has only"
  ));
}

TEST_CASE("the tensors fill the file: no hole, overlap, missing or trailing byte") {
  const auto two = [](const std::string& first, const std::string& second, size_t data) {
    return why(file(
        R"({"a":)" + entry("U8", "[4]", first) + R"(,"b":)" + entry("U8", "[4]", second) + "}", data
    ));
  };
  CHECK(two("[0,4]", "[4,8]", 8) == "");
  CHECK(two("[4,8]", "[0,4]", 8) == "");
  CHECK(contains(two("[0,4]", "[5,9]", 9), "tensor \"b\" leaves a hole before it"));
  CHECK(contains(two("[1,5]", "[5,9]", 9), "tensor \"a\" leaves a hole before it"));
  CHECK(contains(two("[0,4]", "[3,7]", 7), "tensor \"b\" overlaps"));
  CHECK(contains(two("[0,4]", "[0,4]", 4), "overlaps"));
  CHECK(contains(two("[0,4]", "[4,8]", 7), "tensor \"b\" ends at byte"));
  CHECK(contains(two("[0,4]", "[4,8]", 9), "1 bytes after the last tensor"));
  CHECK(contains(two("[0,4]", "[0,4]", 8), "overlaps"));
}

TEST_CASE("duplicate names are refused, identical or not") {
  const std::string w = entry("U8", "[1]", "[0,1]");
  CHECK(contains(why(file(R"({"w":)" + w + R"(,"w":)" + w + "}", 1)), "\"w\" is given twice"));
  CHECK(contains(why(file(R"({"w":)" + w + R"(,"\u0077":)" + w + "}", 1)), "\"w\" is given twice"));
}

TEST_CASE("a raw name never reaches a message") {
  const std::string json = R"({"\u001b[31m\nred":)" + entry("F32", "[2]", "[0,4]") + "}";
  const std::string message = why(file(json, 4));
  CHECK(contains(message, "\"\\x1b[31m\\x0ared\""));
  CHECK(std::none_of(message.begin(), message.end(), [](char c) { return c < 0x20; }));
}

TEST_CASE("cut at any byte, the file is refused with a sentence") {
  const std::string whole = small_file();
  CHECK(why(whole) == "");
  for (size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(contains(why(whole.substr(0, length)), "m.safetensors: "));
  }
  CHECK(contains(why(whole + " "), "1 bytes after the last tensor"));
}

TEST_CASE("a flipped bit in the header: a sentence, or a file that still keeps every rule") {
  const std::string whole = small_file();
  const size_t header = read(whole).header.size();
  for (size_t at = 0; at < header; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 1 << bit);
      CAPTURE(at);
      CAPTURE(bit);
      if (why(bytes).empty()) {
        uint64_t sum = 0;
        for (const TensorInfo& info : read(bytes).tensors) {
          CHECK(mh::tensor_bytes(info.dtype, info.shape) == info.bytes);
          sum += info.bytes;
        }
        CHECK(header + sum == whole.size());
      }
    }
  }
}

TEST_CASE("random damage never crashes") {
  std::mt19937 random(7);
  const std::string whole = small_file();
  const std::string alphabet = "{}[]\",:0123456789-.eE\\u \n\xFF"
                               "FUBIshapedtyoffsets_";
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      const char value = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
      case 0:
        bytes[at] = value;
        break;
      case 1:
        bytes.insert(at, 1, value);
        break;
      default:
        bytes.erase(at, 1 + random() % 3);
      }
    }
    (void)why(bytes); // anything but an mh::Error ends the test
  }
}

TEST_CASE("the writer's layout: widest first, then names, aligned, reproducible") {
  std::vector<TensorInfo> tensors{
      tensor("z", Dtype::u8, {3}),
      tensor("b", Dtype::f32, {2}),
      tensor("a", Dtype::f32, {1}),
      tensor("y", Dtype::bf16, {5}),
      tensor("x", Dtype::i64, {}),
      tensor("e", Dtype::f32, {0, 4}),
  };
  const Safetensors layout = mh::lay_out_safetensors(tensors, {{"b", "2"}, {"a", "1"}});
  std::string order;
  for (const TensorInfo& info : layout.tensors) {
    order += info.name;
    CHECK(info.offset % static_cast<uint64_t>(mh::dtype_bits(info.dtype) / 8) == 0);
  }
  CHECK(order == "xabeyz");
  CHECK(layout.header.size() % 8 == 0);
  CHECK(contains(
      layout.header,
      R"({"__metadata__":{"a":"1","b":"2"},"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
  ));

  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(tensors.begin(), tensors.end(), random);
    CHECK(mh::lay_out_safetensors(tensors, {{"a", "1"}, {"b", "2"}}).header == layout.header);
  }
  const std::string bytes =
      layout.header + std::string(layout.file_bytes - layout.header.size(), 0);
  const Safetensors read_back = read(bytes);
  CHECK(read_back.metadata == layout.metadata);
  REQUIRE(read_back.tensors.size() == layout.tensors.size());
  for (const TensorInfo& info : layout.tensors) {
    const TensorInfo* same = read_back.find(info.name);
    REQUIRE(same != nullptr);
    CHECK(
        std::tie(same->dtype, same->shape, same->offset, same->bytes) ==
        std::tie(info.dtype, info.shape, info.offset, info.bytes)
    );
  }
}

TEST_CASE("what the writer refuses") {
  const auto why_not = [](std::vector<TensorInfo> tensors) {
    return refusal([&] { (void)mh::lay_out_safetensors(std::move(tensors)); });
  };
  CHECK(contains(
      why_not({tensor("w", Dtype::f32, {1}), tensor("w", Dtype::u8, {1})}),
      "two tensors named \"w\""
  ));
  CHECK(contains(why_not({tensor("__metadata__", Dtype::f32, {1})}), "named __metadata__"));
  CHECK(contains(why_not({tensor("w", Dtype::f32, {-1})}), "of shape [-1]"));
  CHECK(contains(why_not({tensor("\xFF", Dtype::f32, {1})}), "no valid UTF-8"));
  std::vector<TensorInfo> huge;
  for (char name = 'a'; name < 'j'; ++name) { // nine of 2^60 - 1 bytes
    huge.push_back(tensor(std::string(1, name), Dtype::u8, {(1LL << 60) - 1}));
  }
  CHECK(contains(why_not(huge), "tensor \"i\" of shape [1152921504606846975]"));
}

TEST_CASE("a name of any text survives the round trip") {
  const std::string name("\"\\\n\0\x1b ü../", 12);
  const Safetensors layout =
      mh::lay_out_safetensors({tensor(name, Dtype::u8, {2})}, {{name, name}});
  const Safetensors read_back = read(layout.header + "dd");
  CHECK(read_back.find(name) != nullptr);
  CHECK(read_back.metadata.at(name) == name);
}

} // namespace safetensors_tests
