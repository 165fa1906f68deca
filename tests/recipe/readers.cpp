#include "core/language/read.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

namespace readers_tests {

using mh::Value;
using mh::test::Folder;

namespace {

/// "line:column+length" of a value, or of a key.
std::string value_at(const Value& tree, const char* path) {
  const mh::Origin& at = tree.find_path(path)->origin;
  return std::to_string(at.line) + ":" + std::to_string(at.column) + "+" +
         std::to_string(at.length);
}

std::string key_at(const Value& tree, const char* table, const char* key) {
  const mh::Origin& at = tree.find_path(table)->as_table().entry(key)->key_origin;
  return std::to_string(at.line) + ":" + std::to_string(at.column) + "+" +
         std::to_string(at.length);
}

Value read(const std::string& name, const std::string& text) {
  const Folder folder;
  return mh::evaluate(folder.write(name, text));
}

std::string why(const std::string& name, const std::string& text) {
  return mh::test::refusal([&] { static_cast<void>(read(name, text)); });
}

} // namespace

TEST_CASE("the three languages give one tree") {
  const Value lua =
      read("a.lua", "return { a = 1, b = 2.5, c = { d = 'x', e = { 1, 2 } }, f = true }");
  CHECK(lua == read("a.toml", "a = 1\nb = 2.5\nf = true\n[c]\nd = 'x'\ne = [1, 2]\n"));
  CHECK(lua == read("a.json", R"({"a": 1, "b": 2.5, "c": {"d": "x", "e": [1, 2]}, "f": true})"));
  CHECK(
      lua ==
      read(
          "bom.json",
          "\xEF\xBB\xBF{\"a\": 1, \"b\": 2.5, \"c\": {\"d\": \"x\", \"e\": [1, 2]}, \"f\": true}"
      )
  );
}

TEST_CASE("TOML values know their places") {
  const Value tree = read("a.toml", "[model]\nlayers = 12\n\"é\" = \"ü\"  # c\nlist = [1,\n  2]\n");
  CHECK(value_at(tree, "model.layers") == "2:10+2");
  CHECK(key_at(tree, "model", "layers") == "2:1+6");
  CHECK(value_at(tree, "model.é") == "3:8+4");
  CHECK(value_at(tree, "model.list") == "4:8+3");
}

TEST_CASE("JSON values know their places") {
  const Value tree =
      read("a.json", "{\n  \"a\\\"b\": -12,\n  \"c\": [true, {\"d\": \"x\\\\\"}], \"e\": 1.5e3}");
  CHECK(value_at(tree, "a\"b") == "2:11+3");
  CHECK(key_at(tree, "", "a\"b") == "2:3+6");
  CHECK(tree.find("c")->as_array()[0].origin.column == 9);
  CHECK(tree.find("c")->as_array()[1].find("d")->origin.length == 5);
  CHECK(value_at(tree, "e") == "3:35+5");
}

TEST_CASE("Lua values know their places") {
  const Value tree = read("a.lua", R"(-- { layers = 1 }
local Mi = 1024 * 1024
local model = { use = "llama", --[[ layers = 3 ]] layers = 2 + 2, ["hidden"] = Mi / 4 }
model.heads = 4
local recipe = {
  model = model,
  text = [==[ return { x = 1 } ]==],
  nested = { { a = 1 }, { a = 2 } };
  call = math.max(1, 2), last = "it's",
}
for i = 1, 3 do recipe["count"] = i end
if recipe.count == 3 then
  recipe.branch = tostring(3)
end
return recipe
)" + std::string());
  CHECK(value_at(tree, "model.layers") == "3:60+5");
  CHECK(key_at(tree, "model", "layers") == "3:51+6");
  CHECK(key_at(tree, "model", "hidden") == "3:68+8");
  CHECK(value_at(tree, "model.heads") == "4:15+1");
  CHECK(value_at(tree, "text") == "7:10+26");
  CHECK(tree.find("nested")->as_array()[1].find("a")->origin.column == 31);
  CHECK(value_at(tree, "call") == "9:10+14");
  CHECK(value_at(tree, "last") == "9:33+6");
  CHECK(key_at(tree, "", "count") == "11:24+7");
}

TEST_CASE("places follow merge and require") {
  const Folder folder;
  folder.write("parts/base.lua", "local m = { optimizer = { lr = 1, eps = 2 } }\nreturn m\n");
  const auto file = folder.write("a.lua", R"(local base = require("parts.base")
return merge(base, { optimizer = { lr = 5 } }, require "parts.more")
)");
  folder.write("parts/more.lua", "return { train = { iters = 3 } }\n");
  const mh::ParsedFile document = mh::read_recipe(file, "recipe", {});
  const Value& tree = document.tree;
  CHECK(tree.find_path("optimizer.lr")->as_integer() == 5);
  CHECK(value_at(tree, "optimizer.lr") == "2:41+1");
  CHECK(
      tree.find_path("optimizer.eps")->origin.where() ==
      (folder.path() / "parts/base.lua").string() + ":1:41"
  );
  CHECK(
      tree.find_path("train.iters")->origin.where() ==
      (folder.path() / "parts/more.lua").string() + ":1:28"
  );
  CHECK(document.files.size() == 3);
}

TEST_CASE("files that are no recipe") {
  CHECK(why("a.txt", "").ends_with("ends in \".txt\", expected a recipe: .lua, .toml or .json"));
  for (const char* name : {"a.lua", "a.toml", "a.json"}) {
    CAPTURE(name);
    CHECK(why(name, std::string("a\0b", 3)).starts_with("byte 0 is no text"));
    CHECK(why(name, "a = \xff").starts_with("byte 255 is no text"));
    CHECK(why(name, "\xED\xA0\x80").starts_with("byte 237 is no text")); // a surrogate
    CHECK(why(name, std::string(2 << 20, ' ')).ends_with("is larger than 1 MiB, expected a recipe")
    );
  }
  const Folder folder;
  std::filesystem::create_directory(folder.path() / "a.lua");
  CHECK(mh::test::refusal([&] { static_cast<void>(mh::evaluate(folder.path() / "a.lua")); }
  ).ends_with("is a folder, expected a recipe file (.lua, .toml or .json)"));
}

TEST_CASE("malformed TOML and JSON") {
  CHECK(why("a.toml", "a = 1\na = 2\n").starts_with("this is no TOML: "));
  CHECK(why("a.toml", "a = 1979-05-27").starts_with("a recipe holds no dates or times"));
  CHECK(why("a.toml", "a = " + std::string(100000, '[')).starts_with("this is no TOML: "));
  CHECK(why("a.toml", "a = " + std::string(100, '[') + std::string(100, ']'))
            .starts_with("tables nested deeper than 64"));
  CHECK(why("a.toml", "a = 99999999999999999999").starts_with("this is no TOML: "));
  CHECK(why("a.json", "{\"a\": 1,}").starts_with("this is no JSON: "));
  CHECK(why("a.json", "{\"a\": 1, \"a\": 2}").starts_with("the key `a` is given twice"));
  CHECK(why("a.json", "{\"a\": null}").starts_with("null is no value of a recipe"));
  CHECK(why("a.json", "{\"a\": 18446744073709551615}")
            .starts_with("this integer needs more than 64 bits"));
  CHECK(why("a.json", "{\"a\": 1e999}").starts_with("this is no JSON: "));
  CHECK(why("a.json", std::string(500000, '[')).starts_with("tables nested deeper than 64"));
  CHECK(why("a.json", "[1]").starts_with("the file holds a list, expected a table"));
  CHECK(why("a.json", "").starts_with("this is no JSON: "));
}

} // namespace readers_tests
