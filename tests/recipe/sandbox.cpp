#include "core/language/read.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace sandbox_tests {

using mh::Value;
using mh::test::Folder;

namespace {

mh::ReadOptions limits() {
  mh::ReadOptions options;
  options.lua.seconds = 0.2;
  return options;
}

Value run(const std::string& text, const mh::ReadOptions& options = limits()) {
  const Folder folder;
  return mh::evaluate(folder.write("a.lua", text), options);
}

std::string why(const std::string& text, const mh::ReadOptions& options = limits()) {
  return mh::test::refusal([&] { static_cast<void>(run(text, options)); });
}

} // namespace

TEST_CASE("the syntax of a Lua recipe is checked without running it") {
  const mh::test::Folder folder;
  mh::check_syntax(folder.write("a.lua", "error('it ran')"));
  CHECK(mh::test::refusal([&] {
          mh::check_syntax(folder.write("b.lua", "return { model = "));
        }).find("unexpected symbol") != std::string::npos);
}

TEST_CASE("a recipe may ask what the machine has") {
  mh::ReadOptions options = limits();
  options.facts.bf16 = true;
  const std::string recipe = "return { iters = machine.bf16 and 640 or 320 }";
  CHECK(run(recipe, options).find_path("iters")->as_integer() == 640);
  CHECK(run(recipe).find_path("iters")->as_integer() == 320);
  CHECK(why("return { a = machine.fp8 }").starts_with("unknown name `fp8`"));
}

TEST_CASE("what a recipe may use") {
  const Value tree = run(R"(
    local keys = {}
    for key in pairs({ b = 1, a = 2, c = 3 }) do keys[#keys + 1] = key end
    local shout = ("x"):rep(3):upper()
    local base = { list = { 1, 2 }, deep = { a = 1, b = 2 } }
    local merged = merge(base, { list = { 3 }, deep = { b = 5 } })
    merged.deep.a = 7
    return { keys = table.concat(keys), shout = shout, root = math.floor(math.sqrt(17)), big = 1 << 40,
             list = merged.list, b = merged.deep.b, untouched = base.deep.a, what = tostring({}),
             length = utf8.len("é"), n = select("#", 1, 2), kind = type(math.pi), s = string.format("%.2f", 2) })"
  );
  CHECK(tree.find("keys")->as_string() == "abc");
  CHECK(tree.find("shout")->as_string() == "XXX");
  CHECK(tree.find("root")->as_integer() == 4);
  CHECK(tree.find("big")->as_integer() == int64_t{1} << 40);
  CHECK(tree.find("list")->as_array().size() == 1);
  CHECK(tree.find("b")->as_integer() == 5);
  CHECK(tree.find("untouched")->as_integer() == 1);
  CHECK(tree.find("what")->as_string() == "table");
  CHECK(tree.find("length")->as_integer() == 1);
}

TEST_CASE("doors that are closed") {
  for (const char* name :
       {"io",
        "os",
        "debug",
        "package",
        "coroutine",
        "load",
        "loadfile",
        "dofile",
        "loadstring",
        "collectgarbage",
        "setmetatable",
        "getmetatable",
        "rawset",
        "rawget",
        "pcall",
        "xpcall",
        "next",
        "_G"}) {
    CAPTURE(name);
    CHECK(why(std::string("return { a = ") + name + " }")
              .starts_with("`" + std::string(name) + "` is not there in recipes"));
  }
  CHECK(
      why("return { a = string.dump(tostring) }").find("attempt to call a nil value") !=
      std::string::npos
  );
  CHECK(why("return { a = (''):dump() }").find("attempt to call a nil value") != std::string::npos);
  CHECK(
      why("return { a = math.random() }").find("attempt to call a nil value") != std::string::npos
  );
  CHECK(why("return { a = _ENV.os }").starts_with("`os` is not there"));
  CHECK(why("\x1bLua\x54").starts_with("this is compiled Lua, expected its text"));
}

// lua_globals.txt is the allow-list: a name that is added to the sandbox is added there, too.
TEST_CASE("a recipe sees the names of lua_globals.txt and no others") {
  const Value tree = run(R"(
    local names = {}
    local function add(prefix, t)
      for name, value in pairs(t) do
        names[#names + 1] = prefix .. name
        if type(value) == "table" then add(prefix .. name .. ".", value) end
      end
    end
    add("", _ENV)
    return { names = names })");
  std::set<std::string> seen;
  for (const Value& name : tree.find("names")->as_array()) {
    seen.insert(name.as_string());
  }
  std::set<std::string> allowed;
  std::ifstream file(
      std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "tests/recipe/lua_globals.txt"
  );
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') {
      allowed.insert(line);
    }
  }
  for (const std::string& name : seen) {
    CHECK_MESSAGE(allowed.count(name) == 1, name << " is in the sandbox, and not on the list");
  }
  for (const std::string& name : allowed) {
    CHECK_MESSAGE(seen.count(name) == 1, name << " is on the list, and not in the sandbox");
  }
}

TEST_CASE("an environment that a recipe spoils is gone with it") {
  CHECK(run("string.format = nil; math.pi = 3; return { a = 1 }").find("a")->as_integer() == 1);
  CHECK(run("return { a = string.format('%d', 4), b = math.pi > 3.1 }").find("b")->as_boolean());
}

TEST_CASE("time ends") {
  const auto start = std::chrono::steady_clock::now();
  CHECK(why("while true do end").starts_with("the recipe ran longer than 0.2 seconds"));
  CHECK(why("local function f() return f() end return f()").starts_with("the recipe ran longer"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("memory ends") {
  mh::ReadOptions small;
  small.lua.bytes = size_t{8} << 20;
  for (const char* text :
       {"local t = {} while true do t[#t + 1] = { 1, 2, 3 } end",
        "return { a = ('x'):rep(1 << 30) }",
        "local s = 'x' while true do s = s .. s end",
        "local function f() return 1 + f() end return f()"}) {
    CAPTURE(text);
    CHECK(why(text, small).starts_with("the recipe uses more than 8 MiB"));
  }
  CHECK(
      run("local t = {} for i = 1, 1e4 do t[i] = i end return { a = t }", small)
          .find("a")
          ->as_array()
          .size() == 10000
  );
}

TEST_CASE("what is no data") {
  CHECK(why("return { a = print }").starts_with("a is a function, expected a boolean"));
  CHECK(why("return { 1, a = 2 }").starts_with("the recipe mixes a list with the key `a`"));
  CHECK(why("return { a = { 1, nil, 3 } }").starts_with("a is a list with holes"));
  CHECK(why("return { a = { [0] = 1 } }").starts_with("a is a list with holes"));
  CHECK(why("return { a = { [1.5] = 1 } }").starts_with("a has a key that is neither"));
  CHECK(why("return { a = { [true] = 1 } }").starts_with("a has a key that is neither"));
  CHECK(why("return { a = '\\xff' }").starts_with("a is a string that is no UTF-8 text"));
  CHECK(why("local t = {} t.t = t return t")
            .starts_with("a table nested deeper than 64: does it hold itself?"));
  CHECK(why("local t = {} t.t = t return merge(t, {})").starts_with("a table nested deeper than 64")
  );
  CHECK(why("return " + std::string(300, '{') + std::string(300, '}'))
            .starts_with("tables, calls or expressions"));
  CHECK(why("return 3").starts_with("the recipe returns a number, expected a table"));
  CHECK(why("").starts_with("the recipe returns nothing, expected a table"));
  CHECK(why("error({})").starts_with("an error that is no text"));
  CHECK(why("error('stop')").starts_with("stop\n"));
  CHECK(why("return { a = nil_name }").starts_with("unknown name `nil_name`"));
}

TEST_CASE("require stays inside the recipe folders") {
  const Folder folder;
  const Folder outside;
  outside.write("secret.lua", "return { a = 1 }");
  folder.write("link.lua", "");
  std::filesystem::remove(folder.path() / "link.lua");
  std::filesystem::create_symlink(outside.path() / "secret.lua", folder.path() / "link.lua");
  folder.write("one.lua", "return require 'two'");
  folder.write("two.lua", "return require 'one'");
  folder.write("wrong.lua", "return {\n  a = = 1,\n}");
  folder.write("sub/good.lua", "return { a = { b = 1 } }");
  const auto with = [&](const std::string& text) {
    return mh::evaluate(folder.write("a.lua", text), limits());
  };
  const auto refused = [&](const std::string& text) {
    return mh::test::refusal([&] { static_cast<void>(with(text)); });
  };
  CHECK(
      with("local m = require 'sub.good'; m.a.b = 2; return { m = m, again = require 'sub.good' }")
          .find_path("again.a.b")
          ->as_integer() == 1
  );
  for (const char* name : {"../x", "/etc/passwd", "..", ".x", "x.", "a..b", "A", "", "a b"}) {
    CAPTURE(name);
    CHECK(
        refused("return require \"" + std::string(name) + "\"").find("expected a name of a-z") !=
        std::string::npos
    );
  }
  CHECK(
      refused("return require 'link'").find("leads out of its recipe folder") != std::string::npos
  );
  CHECK(refused("return require 'one'")
            .starts_with("recipe modules require one another: one -> two -> one"));
  CHECK(refused("return require 'nothing'").starts_with("no recipe module \"nothing\"; looked for ")
  );
  const std::string wrong = refused("return require 'wrong'");
  CHECK(wrong.starts_with("unexpected symbol near '='"));
  CHECK(wrong.find("wrong.lua:2:7\n") != std::string::npos);
}

} // namespace sandbox_tests
