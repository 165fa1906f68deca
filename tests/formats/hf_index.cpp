#include "core/formats/hf_index.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

namespace hf_index_tests {

using mh::test::contains;
using mh::test::refusal;

namespace {

std::string why(const std::string& text) {
  return refusal([&] { (void)mh::read_hf_index(text, "i.json"); });
}

} // namespace

TEST_CASE("an index names tensors and files") {
  const auto index = mh::read_hf_index(
      R"({"metadata": {"total_size": 8}, "weight_map": {"b": "1.safetensors", "a": "2.safetensors",
          "c": "1.safetensors"}})",
      "i.json"
  );
  CHECK(index.files == std::vector<std::string>{"1.safetensors", "2.safetensors"});
  CHECK(index.file_of.at("c") == "1.safetensors");
}

TEST_CASE("an index cannot name a file elsewhere") {
  for (const char* file : {"../x", "/etc/passwd", "a/b", "", ".", "..", "a\\u0000b", "a\\n"}) {
    CAPTURE(file);
    const std::string text = R"({"weight_map": {"w": ")" + std::string(file) + "\"}}";
    CHECK(why(text) == "i.json: the file of tensor \"w\" is no bare file name");
  }
  CHECK(contains(why(R"({"weight_map": {"w": 1}})"), "no bare file name"));
}

TEST_CASE("what is no index") {
  CHECK(contains(why("{}"), "`weight_map` is missing"));
  CHECK(contains(why("[]"), "expected an object"));
  CHECK(contains(why(R"({"weight_map": {}})"), "at least one tensor"));
  CHECK(contains(why(R"({"weight_map": "x"})"), "at least one tensor"));
  CHECK(contains(why(R"({"weight_map": {"w": "a", "w": "b"}})"), "given twice"));
}

TEST_CASE("the files hold exactly what the index says") {
  const auto index = mh::read_hf_index(R"({"weight_map": {"a": "1", "b": "2"}})", "i.json");
  const auto check = [&index](const std::map<std::string, std::vector<std::string>>& tensors_of) {
    return refusal([&] { mh::check_hf_index(index, tensors_of, "i.json"); });
  };
  CHECK(check({{"1", {"a"}}, {"2", {"b"}}}) == "");
  CHECK(check({{"1", {"a"}}, {"2", {}}}) == "i.json: tensor \"b\" is not in \"2\"");
  CHECK(
      check({{"1", {"a", "c"}}, {"2", {"b"}}}) ==
      "i.json: tensor \"c\" of \"1\" is not in the index"
  );
  CHECK(
      check({{"1", {"a", "b"}}, {"2", {}}}) ==
      "i.json: tensor \"b\" should be in \"2\" but is in \"1\""
  );
}

} // namespace hf_index_tests
