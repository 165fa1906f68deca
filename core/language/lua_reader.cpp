#include "core/base/text.hpp"
#include "core/language/lua_positions.hpp"
#include "core/language/lua_sandbox.hpp"
#include "core/language/problem.hpp"
#include "core/language/read.hpp"

#include <algorithm>

namespace mh {

namespace {

/// Lua values to ours. Keys of a table come in the order in which the text has them.
class Converter {
public:
  explicit Converter(lua_State* state)
      : state_(state) {}

  /// Takes the value on top of the stack; it stays there.
  Value convert(const Spot& spot, const std::string& path, int depth) {
    const Origin& at = spot.value;
    if (depth > kDeepest) {
      refuse(
          at, "a table nested deeper than " + std::to_string(kDeepest) + ": does it hold itself?"
      );
    }
    Value value = contents(spot, path, depth);
    value.origin = at;
    return value;
  }

private:
  [[noreturn]] static void refuse(const Origin& at, const std::string& message) {
    throw RecipeError({{at, "", message, "", ""}});
  }

  Value contents(const Spot& spot, const std::string& path, int depth) {
    switch (lua_type(state_, -1)) {
    case LUA_TBOOLEAN:
      return lua_toboolean(state_, -1) != 0;
    case LUA_TNUMBER:
      if (lua_isinteger(state_, -1)) {
        return static_cast<int64_t>(lua_tointeger(state_, -1));
      }
      return lua_tonumber(state_, -1);
    case LUA_TSTRING:
      return text(spot.value, path);
    case LUA_TTABLE:
      return table(spot, path, depth);
    default:
      refuse(
          spot.value,
          path + " is a " + luaL_typename(state_, -1) +
              ", expected a boolean, a number, a string or a table"
      );
    }
  }

  std::string text(const Origin& at, const std::string& path) {
    size_t length = 0;
    const char* bytes = lua_tolstring(state_, -1, &length);
    std::string string(bytes, length);
    if (valid_utf8(string) != string) {
      refuse(at, path + " is a string that is no UTF-8 text");
    }
    return string;
  }

  Value table(const Spot& spot, const std::string& path, int depth) {
    luaL_checkstack(state_, 3, "a deep recipe");
    const auto length = static_cast<int64_t>(lua_rawlen(state_, -1));
    int64_t elements = 0;
    std::vector<std::string> keys;
    lua_pushnil(state_);
    while (lua_next(state_, -2)) {
      lua_pop(state_, 1);
      if (lua_type(state_, -1) == LUA_TSTRING) {
        keys.push_back(text(spot.value, "a key of " + path));
      } else if (lua_isinteger(state_, -1)) {
        ++elements;
      } else {
        refuse(spot.value, path + " has a key that is neither a string nor a position in a list");
      }
    }
    if (elements == 0) {
      return members(std::move(keys), spot, path, depth);
    }
    if (!keys.empty()) {
      refuse(
          spot.value,
          path + " mixes a list with the key `" + *std::min_element(keys.begin(), keys.end()) +
              "`, expected one or the other"
      );
    }
    if (elements != length) {
      refuse(spot.value, path + " is a list with holes, expected elements 1, 2, 3, ...");
    }
    return list(length, spot, path, depth);
  }

  Value list(int64_t length, const Spot& spot, const std::string& path, int depth) {
    Value::Array result;
    for (int64_t i = 1; i <= length; ++i) {
      lua_rawgeti(state_, -1, i);
      const std::string name = std::to_string(i);
      result.push_back(convert(member(spot, name), path + "[" + name + "]", depth + 1));
      lua_pop(state_, 1);
    }
    return result;
  }

  Value
  members(std::vector<std::string> keys, const Spot& spot, const std::string& path, int depth) {
    const auto place = [&spot](const std::string& key) {
      const auto found = spot.members.find(key);
      const Origin at = found == spot.members.end() ? Origin{} : found->second.key;
      return std::tuple(at.source == nullptr, at.line, at.column, key);
    };
    std::sort(keys.begin(), keys.end(), [&place](const std::string& a, const std::string& b) {
      return place(a) < place(b);
    });
    Table result;
    for (const std::string& key : keys) {
      lua_pushlstring(state_, key.data(), key.size());
      lua_rawget(state_, -2);
      const Spot at = member(spot, key);
      result.set(
          key, convert(at, path == "the recipe" ? key : path + "." + key, depth + 1), at.key
      );
      lua_pop(state_, 1);
    }
    return result;
  }

  /// A member's spot; where the text does not show it, the table's own.
  static Spot member(const Spot& spot, const std::string& name) {
    const auto found = spot.members.find(name);
    return found == spot.members.end() ? Spot{spot.value, spot.value, {}} : found->second;
  }

  lua_State* state_;
};

Spot module_positions(const LuaSandbox& sandbox, const std::string& name, int depth) {
  const SourcePtr source = sandbox.module(name);
  if (!source || depth > kDeepest) {
    return {};
  }
  return lua_positions(source, [&sandbox, depth](const std::string& inner) {
    return module_positions(sandbox, inner, depth + 1);
  });
}

} // namespace

ParsedFile read_lua(const SourcePtr& source, const ReadOptions& options) {
  LuaSandbox sandbox(options);
  lua_State* state = sandbox.run(source);
  Spot spot = lua_positions(source, [&sandbox](const std::string& name) {
    return module_positions(sandbox, name, 0);
  });
  if (!spot.value.source) {
    spot.value = {source};
  }
  if (!lua_istable(state, -1)) {
    throw RecipeError(
        {{spot.value,
          "",
          std::string("the recipe returns ") +
              (lua_isnil(state, -1) ? "nothing" : std::string("a ") + luaL_typename(state, -1)) +
              ", expected a table",
          "",
          "a recipe ends in: return { name = \"...\", model = { ... }, ... }"}}
    );
  }
  Value tree;
  sandbox.protect([&](lua_State* inner) { tree = Converter(inner).convert(spot, "the recipe", 0); }
  );
  return {std::move(tree), sandbox.files()};
}

} // namespace mh
