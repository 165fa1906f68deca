#include "core/formats/json.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace json_tests {

using mh::test::contains;
using mh::test::refusal;

namespace {

std::string why(std::string_view text, mh::JsonLimits limits = {}) {
  return refusal([&] { (void)mh::parse_json(text, "a.json", limits); });
}

} // namespace

TEST_CASE("what a lenient JSON parser lets pass") {
  CHECK(why(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]})") == "");
  CHECK(why(R"({"a": 1, "a": 1})") == "a.json: the key \"a\" is given twice in one JSON object");
  CHECK(contains(why(R"({"a": 1, "\u0061": 2})"), "given twice"));
  CHECK(contains(why(R"([{"x": {"a\n": 1, "a\n": 1}}])"), "\"a\\x0a\""));
  CHECK(contains(why(std::string_view("{}\0", 3)), "a NUL byte at byte 2"));
  CHECK(contains(why("\xEF\xBB\xBF{}"), "byte order mark"));
  CHECK(contains(why("{} {}"), "syntax error at byte 4"));
  CHECK(contains(why("{\"a\": 1e999}"), "out of range"));
  CHECK(contains(why("{\"\xFF\": 1}"), "syntax error"));
  CHECK(contains(why("{\"\xED\xA0\x80\": 1}"), "syntax error")); // a surrogate
  CHECK(contains(why("// a comment\n{}"), "syntax error"));
  CHECK(contains(why(""), "syntax error"));
}

TEST_CASE("JSON that is too deep or too large is refused while it is read") {
  CHECK(why("[[[1]]]", {.depth = 3}) == "");
  CHECK(contains(why("[[[[1]]]]", {.depth = 3}), "more than 3 levels"));
  CHECK(contains(why(std::string(1 << 20, '[')), "more than 64 levels"));
  CHECK(why("[1, 2]", {.values = 3}) == "");
  CHECK(contains(why("[1, 2, 3]", {.values = 3}), "more than 3 JSON values"));
}

TEST_CASE("sizes have no sign, fraction or exponent") {
  const auto object = nlohmann::json::parse(
      R"({"good": 9223372036854775807, "big": 9223372036854775808, "negative": -1, "fraction": 8.7,
          "exponent": 1e3, "text": "8", "null": null})"
  );
  CHECK(mh::json_size(object, "good", "x") == INT64_MAX);
  for (const char* key : {"big", "negative", "fraction", "exponent", "text", "null"}) {
    CAPTURE(key);
    const std::string expected = "x: `" + std::string(key) + "` is no integer from 0 to 2^63 - 1";
    CHECK(refusal([&] { (void)mh::json_size(object, key, "x"); }) == expected);
  }
  CHECK(refusal([&] { (void)mh::json_size(object, "none", "x"); }) == "x: `none` is missing");
  CHECK(refusal([&] {
          (void)mh::json_string(object, "good", "x");
        }) == "x: `good` is a JSON number, expected a string");
  CHECK(refusal([] {
          (void)mh::json_string(nlohmann::json::array(), "a", "x");
        }) == "x: found a JSON array, expected an object");
}

} // namespace json_tests
