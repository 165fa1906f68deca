#include "core/formats/flat_tokens.hpp"

#include "core/formats/npy.hpp"
#include "refusal.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace flat_tokens_tests {

namespace {

template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

std::vector<int64_t> ids_of(const std::string& bytes, const std::string& type = "") {
  const auto tokens = mh::read_flat_tokens(std::as_bytes(std::span(bytes)), type, "a.bin");
  std::vector<int64_t> ids(tokens.count());
  mh::read_tokens(tokens.type, tokens.ids.data(), ids);
  return ids;
}

/// llm.c's header.
std::string header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> numbers(256);
  numbers[0] = magic;
  numbers[1] = version;
  numbers[2] = count;
  return bytes_of(numbers);
}

} // namespace

TEST_CASE("flat token files of four programs") {
  const std::vector<int64_t> ids{5, 50256, 7};
  const std::string two = bytes_of(std::vector<uint16_t>{5, 50256, 7});
  const std::string four = bytes_of(std::vector<uint32_t>{5, 50256, 7});
  CHECK(ids_of(two, "uint16") == ids); // nanoGPT; OLMo's .npy
  CHECK(ids_of(four, "uint32") == ids);
  CHECK(ids_of(header(20240520, 1, 3) + two) == ids);  // llm.c, GPT-2
  CHECK(ids_of(header(20240801, 7, 3) + four) == ids); // llm.c, Llama 3
  const std::vector<uint64_t> shape{3};
  CHECK(ids_of(mh::npy_header("<u2", shape) + two) == ids); // numpy.save
  CHECK(ids_of(mh::npy_header("<u4", shape) + four) == ids);
}

TEST_CASE("token files that are none") {
  const auto why = [](const std::string& bytes, const std::string& type = "") {
    return mh::test::refusal([&] { (void)ids_of(bytes, type); });
  };
  CHECK(why("abcd") == "a.bin: it has no header that says what its ids are");
  CHECK(why("abc", "uint16") == "a.bin: 3 bytes of ids are no whole number of uint16");
  CHECK(why("abcd", "float32") == "a.bin: its ids are of the type `float32`");
  CHECK(why(header(20240520, 1, 4) + "abcdef") == "a.bin: its header counts 4 ids, but 3 follow");
  const std::vector<uint64_t> shape{1};
  CHECK(why(mh::npy_header("<f4", shape) + "abcd") == "a.bin: its ids are of the type `<f4`");
  CHECK(
      why(mh::npy_header("<u16", shape) + std::string(16, 'a')) ==
      "a.bin: its ids are of the type `<u16`"
  );
}

} // namespace flat_tokens_tests
