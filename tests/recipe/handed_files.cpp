// The parts of a recipe that ranks are given: every value, its bits and its place.

#include "core/recipe/handed_files.hpp"

#include "core/recipe/commands.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <limits>

namespace handed_files_tests {

using mh::Table;
using mh::Value;

namespace {

void check_same(const Value& a, const Value& b) {
  CHECK(a.origin.where() == b.origin.where());
  CHECK(a.origin.layer() == b.origin.layer());
  CHECK(a.origin.length == b.origin.length);
  REQUIRE((a.type() == b.type()));
  if (a.type() == Value::Type::number) {
    CHECK(std::bit_cast<uint64_t>(a.as_number()) == std::bit_cast<uint64_t>(b.as_number()));
  } else if (a.is_array()) {
    REQUIRE(a.as_array().size() == b.as_array().size());
    for (size_t i = 0; i < a.as_array().size(); ++i) {
      check_same(a.as_array()[i], b.as_array()[i]);
    }
  } else if (a.is_table()) {
    REQUIRE(a.as_table().size() == b.as_table().size());
    for (size_t i = 0; i < a.as_table().size(); ++i) {
      const auto &left = a.as_table().begin()[i], &right = b.as_table().begin()[i];
      CHECK(left.key == right.key);
      CHECK(left.key_origin.where() == right.key_origin.where());
      check_same(left.value, right.value);
    }
  } else {
    CHECK(a == b);
  }
}

} // namespace

TEST_CASE("ranks are handed what a command has read, to the last bit") {
  const mh::test::Folder folder;
  folder.write("base.toml", "[optimizer]\nlr = 0.1\nbetas = [ 0.9, 1e-3 ]\n");
  const auto file = folder.write(
      "a.lua",
      "return { extends = \"base.toml\", model = { use = \"llama\", layers = 2 },\n"
      "  optimizer = { lr = 1 / 3 }, parallel = { data = \"auto\", overlap = false } }\n"
  );
  const auto read = mh::read_recipe_files(file, mh::test::options());
  const std::string bytes = mh::pack_files("a", read);
  const auto handed = mh::unpack_files("a", bytes);
  REQUIRE(handed.has_value());
  CHECK(handed->file == read.file);
  CHECK(handed->files == read.files);
  REQUIRE(handed->layers.size() == read.layers.size());
  for (size_t i = 0; i < read.layers.size(); ++i) {
    CHECK(handed->layers[i].name == read.layers[i].name);
    check_same(handed->layers[i].tree, read.layers[i].tree);
  }
  CHECK_FALSE(mh::unpack_files("b", bytes).has_value());
}

TEST_CASE("numbers that no text has are handed on") {
  mh::RecipeFiles files{"a.lua", {}, {}};
  files.layers.push_back(
      {"recipe",
       Table{
           {"whole", std::numeric_limits<int64_t>::max()},
           {"tiny", std::numeric_limits<double>::denorm_min()},
           {"none", std::numeric_limits<double>::quiet_NaN()},
           {"all", std::numeric_limits<double>::infinity()},
           {"null", Value()},
           {"empty", Table{}}}}
  );
  const auto handed = mh::unpack_files("a", mh::pack_files("a", files));
  REQUIRE(handed.has_value());
  check_same(handed->layers.front().tree, files.layers.front().tree);
}

} // namespace handed_files_tests
