#include "core/formats/mds.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace mds_tests {

namespace {

std::string word(uint32_t number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

/// A shard with the columns "id" (8 bytes) and "text".
std::string shard(const std::vector<std::string>& texts) {
  const std::string columns =
      R"({"column_names": ["id", "text"], "column_encodings": ["int", "str"],
    "column_sizes": [8, null], "format": "mds", "version": 2})";
  std::string table = word(static_cast<uint32_t>(texts.size())), data;
  auto place = static_cast<uint32_t>(4 * (texts.size() + 2) + columns.size());
  for (const std::string& text : texts) {
    table += word(place + static_cast<uint32_t>(data.size()));
    data += word(static_cast<uint32_t>(text.size())) + "12345678" + text;
  }
  return table + word(place + static_cast<uint32_t>(data.size())) + columns + data;
}

std::string lines(const std::string& bytes) {
  return mh::mds_json_lines(std::as_bytes(std::span(bytes)), "a.mds");
}

} // namespace

TEST_CASE("the texts of a shard") {
  CHECK(
      lines(shard({"one", "", "t\"w\no"})) ==
      "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"t\\\"w\\no\"}\n"
  );
  CHECK(lines(shard({})).empty());
}

TEST_CASE("shards that are none are refused") {
  const std::string good = shard({"one", "two"});
  for (size_t length = 0; length < good.size(); ++length) {
    CHECK(!mh::test::refusal([&] { (void)lines(good.substr(0, length)); }).empty());
  }
  for (size_t at = 0; at < good.size(); ++at) { // no broken byte leads outside
    std::string broken = good;
    broken[at] = static_cast<char>(broken[at] ^ 0x5a);
    (void)mh::test::refusal([&] { (void)lines(broken); });
  }
  std::string far = good; // the columns would end beyond the file
  far.replace(4, 4, word(0xffff'0000));
  CHECK(mh::test::refusal([&] { (void)lines(far); }).starts_with("a.mds: its samples end at"));
  CHECK(mh::test::refusal([&] {
          (void)lines(good.substr(0, good.size() - 1));
        }) == "a.mds: its samples end at " + std::to_string(good.size()) + ", not with the file");
}

} // namespace mds_tests
