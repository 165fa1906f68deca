#include "core/language/lua_sandbox.hpp"

#include "core/base/text.hpp"
#include "core/language/lua_prelude.hpp"
#include "core/language/problem.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace mh {

namespace {

/// The token that a message is about: "... near 'token'", "unknown name `token`".
std::string named_token(const std::string& message) {
  if (const size_t near = message.rfind(" near '"); near != std::string::npos) {
    return message.substr(near + 7, message.size() - near - 8);
  }
  const size_t open = message.find('`');
  const size_t close = open == std::string::npos ? open : message.find('`', open + 1);
  return close == std::string::npos ? "" : message.substr(open + 1, close - open - 1);
}

LuaSandbox& self_of(lua_State* state) {
  return **static_cast<LuaSandbox**>(lua_getextraspace(state));
}

} // namespace

void* LuaSandbox::allocate(void* self, void* block, size_t old_size, size_t new_size) {
  auto& sandbox = *static_cast<LuaSandbox*>(self);
  const size_t held = block ? old_size : 0;
  if (new_size == 0) {
    std::free(block);
    sandbox.used_ -= held;
    return nullptr;
  }
  if (new_size > held && new_size - held > sandbox.options_.lua.bytes - sandbox.used_) {
    return nullptr;
  }
  void* moved = std::realloc(block, new_size);
  if (moved) {
    sandbox.used_ += new_size - held;
  }
  return moved;
}

void LuaSandbox::watch(lua_State* state, lua_Debug* record) {
  const LuaSandbox& sandbox = self_of(state);
  if (std::chrono::steady_clock::now() < sandbox.deadline_) {
    return;
  }
  lua_getinfo(state, "Sl", record);
  luaL_error(
      state,
      "%s:%d: the recipe ran longer than %f seconds: does a loop never end?",
      record->short_src,
      record->currentline,
      sandbox.options_.lua.seconds
  );
}

/// Lets no C++ exception of ours into Lua: it becomes a Lua error with the caller's place.
template <int (LuaSandbox::*Function)(lua_State*)>
int LuaSandbox::guarded(lua_State* state) noexcept(false) {
  try {
    return (self_of(state).*Function)(state);
  } catch (const RecipeError& error) {
    lua_pushstring(state, error.problems().front().message.c_str());
  } catch (const std::exception& error) {
    lua_pushstring(state, error.what());
  }
  luaL_where(state, 1);
  lua_insert(state, -2);
  lua_concat(state, 2);
  return lua_error(state);
}

LuaSandbox::LuaSandbox(const ReadOptions& options)
    : options_(options) {
  state_ = lua_newstate(&LuaSandbox::allocate, this);
  if (!state_) {
    throw Error("no memory for a Lua state", "", exit_code::memory);
  }
  *static_cast<LuaSandbox**>(lua_getextraspace(state_)) = this;
  try {
    open();
  } catch (...) {
    lua_close(state_);
    throw;
  }
}

LuaSandbox::~LuaSandbox() {
  lua_close(state_);
}

void LuaSandbox::open() {
  lua_pushcfunction(state_, [](lua_State* state) {
    luaL_requiref(state, LUA_GNAME, luaopen_base, 1);
    luaL_requiref(state, LUA_STRLIBNAME, luaopen_string, 1);
    luaL_requiref(state, LUA_TABLIBNAME, luaopen_table, 1);
    luaL_requiref(state, LUA_MATHLIBNAME, luaopen_math, 1);
    luaL_requiref(state, LUA_UTF8LIBNAME, luaopen_utf8, 1);
    lua_settop(state, 0);
    const auto drop = [state](const char* library, const char* name) {
      lua_getglobal(state, library);
      lua_pushnil(state);
      lua_setfield(state, -2, name);
      lua_pop(state, 1);
    };
    drop("string", "dump");
    drop("math", "random");
    drop("math", "randomseed");
    for (const char*
             old : // some builds of Lua keep these of Lua 5.2, and recipes run on others, too
         {"atan2", "cosh", "frexp", "ldexp", "log10", "pow", "sinh", "tanh"}) {
      drop("math", old);
    }

    lua_newtable(state);
    for (const char* name :
         {"string",
          "table",
          "math",
          "utf8",
          "assert",
          "error",
          "ipairs",
          "select",
          "tonumber",
          "tostring",
          "type"}) {
      lua_getglobal(state, name);
      lua_setfield(state, 1, name);
    }
    lua_pushcfunction(state, &LuaSandbox::guarded<&LuaSandbox::call_require>);
    lua_setfield(state, 1, "require");
    lua_pushcfunction(state, &LuaSandbox::guarded<&LuaSandbox::call_print>);
    lua_setfield(state, 1, "print");
    lua_newtable(state); // metatable of the environment and of `machine`: other names are errors
    lua_pushcfunction(state, &LuaSandbox::guarded<&LuaSandbox::unknown_name>);
    lua_setfield(state, -2, "__index");
    lua_newtable(state);
    lua_pushboolean(state, self_of(state).options_.facts.bf16);
    lua_setfield(state, -2, "bf16");
    lua_pushvalue(state, -2);
    lua_setmetatable(state, -2);
    lua_setfield(state, 1, "machine");
    lua_setmetatable(state, 1);
    lua_pushvalue(state, 1);
    lua_setfield(state, LUA_REGISTRYINDEX, "mh.env");

    if (luaL_loadbufferx(state, kPrelude, std::string_view(kPrelude).size(), "=prelude", "t") !=
        LUA_OK) {
      return lua_error(state);
    }
    lua_pushvalue(state, 1);
    lua_getglobal(state, "next");
    lua_getglobal(state, "type");
    lua_getglobal(state, "table");
    lua_getfield(state, -1, "sort");
    lua_remove(state, -2);
    lua_getglobal(state, "error");
    lua_call(state, 5, 1);
    lua_setfield(state, LUA_REGISTRYINDEX, "mh.copy");
    return 0;
  });
  if (lua_pcall(state_, 0, 0, 0) != LUA_OK) {
    const char* message = lua_tostring(state_, -1);
    throw Error(std::string("the Lua state does not start: ") + (message ? message : "no message"));
  }
}

int LuaSandbox::load(const SourcePtr& source) {
  const std::string chunk = "=#" + std::to_string(sources_.size());
  sources_.push_back(source);
  const int status =
      luaL_loadbufferx(state_, source->text.data(), source->text.size(), chunk.c_str(), "t");
  if (status == LUA_OK) {
    lua_getfield(state_, LUA_REGISTRYINDEX, "mh.env");
    lua_setupvalue(state_, -2, 1);
  }
  return status;
}

void LuaSandbox::check(const SourcePtr& source) {
  if (const int status = load(source); status != LUA_OK) {
    fail(status);
  }
}

lua_State* LuaSandbox::run(const SourcePtr& source) {
  check(source);
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::microseconds(static_cast<int64_t>(options_.lua.seconds * 1e6));
  constexpr int kInstructionsPerLook = 100'000;
  lua_sethook(state_, &LuaSandbox::watch, LUA_MASKCOUNT, kInstructionsPerLook);
  const int status = lua_pcall(state_, 0, 1, 0);
  lua_sethook(state_, nullptr, 0, 0);
  if (status != LUA_OK) {
    fail(status);
  }
  return state_;
}

void LuaSandbox::protect(const std::function<void(lua_State*)>& body) {
  struct Call {
    const std::function<void(lua_State*)>& body;
    std::exception_ptr thrown;
  } call{body, nullptr};

  lua_pushcfunction(state_, [](lua_State* state) {
    auto& inner = *static_cast<Call*>(lua_touserdata(state, 2));
    lua_settop(state, 1);
    try {
      inner.body(state);
    } catch (const std::exception&) { // Lua would swallow it
      inner.thrown = std::current_exception();
    }
    return 0;
  });
  lua_pushvalue(state_, -2);
  lua_pushlightuserdata(state_, &call);
  const int status = lua_pcall(state_, 2, 0, 0);
  if (call.thrown) {
    std::rethrow_exception(call.thrown);
  }
  if (status != LUA_OK) {
    fail(status);
  }
}

SourcePtr LuaSandbox::module(const std::string& name) const {
  const auto found = modules_.find(name);
  return found == modules_.end() ? nullptr : found->second.source;
}

std::vector<std::string> LuaSandbox::files() const {
  std::vector<std::string> names;
  for (const SourcePtr& source : sources_) {
    names.push_back(source->name);
  }
  return names;
}

int LuaSandbox::call_require(lua_State* state) {
  const std::string name = luaL_checkstring(state, 1);
  Module& module = modules_[name];
  if (module.loading) {
    throw Error("recipe modules require one another: " + join(loading_, " -> ") + " -> " + name);
  }
  if (!module.source) {
    module.source = find_module(name);
    module.loading = true;
    loading_.push_back(name);
    if (load(module.source) != LUA_OK) {
      return lua_error(state);
    }
    lua_call(state, 0, 1);
    module.result = luaL_ref(state, LUA_REGISTRYINDEX);
    module.loading = false;
    loading_.pop_back();
  }
  lua_getfield(state, LUA_REGISTRYINDEX, "mh.copy");
  lua_rawgeti(state, LUA_REGISTRYINDEX, module.result);
  lua_call(state, 1, 1);
  return 1;
}

SourcePtr LuaSandbox::find_module(const std::string& name) const {
  const bool plain =
      !name.empty() && name.find("..") == std::string::npos && name.front() != '.' &&
      name.back() != '.' && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
      });
  if (!plain) {
    throw Error(
        "module " + string_text(name) +
        ": expected a name of a-z, 0-9 and _ in parts joined by dots, such as \"presets.base\""
    );
  }
  std::string relative = name;
  std::replace(relative.begin(), relative.end(), '.', '/');
  std::vector<std::filesystem::path> roots = options_.roots;
  roots.insert(roots.begin(), std::filesystem::path(sources_.front()->name).parent_path());
  std::vector<std::string> tried;
  for (const auto& root : roots) {
    const std::filesystem::path file = root / (relative + ".lua");
    std::error_code error;
    const auto real = std::filesystem::canonical(file, error);
    if (error) {
      tried.push_back(file.string());
      continue;
    }
    const auto inside = std::filesystem::canonical(root.empty() ? "." : root, error);
    if (std::mismatch(inside.begin(), inside.end(), real.begin(), real.end()).first !=
        inside.end()) {
      throw Error("module \"" + name + "\": " + file.string() + " leads out of its recipe folder");
    }
    return read_source(file, "module " + name);
  }
  throw Error("no recipe module \"" + name + "\"; looked for " + join(tried));
}

int LuaSandbox::call_print(lua_State* state) {
  std::string line;
  const int count = lua_gettop(state);
  for (int i = 1; i <= count; ++i) {
    line += (i > 1 ? "\t" : "") + std::string(luaL_tolstring(state, i, nullptr));
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return 0;
}

int LuaSandbox::unknown_name(lua_State* state) {
  const std::string name = lua_type(state, 2) == LUA_TSTRING ? lua_tostring(state, 2) : "?";
  for (const char* taken :
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
    if (name == taken) {
      throw Error("`" + name + "` is not there in recipes: they only compute a table");
    }
  }
  std::vector<std::string> known;
  lua_pushnil(state);
  while (lua_next(state, 1) != 0) {
    lua_pop(state, 1);
    if (lua_type(state, -1) == LUA_TSTRING) {
      known.emplace_back(lua_tostring(state, -1));
    }
  }
  std::sort(known.begin(), known.end());
  const auto meant = nearest(name, known);
  throw Error("unknown name `" + name + "`" + (meant ? "; did you mean `" + *meant + "`?" : ""));
}

/// Turns the error on the stack, "#0:12: text", into a problem with a place.
void LuaSandbox::fail(int status) {
  size_t length = 0;
  const char* bytes = lua_tolstring(state_, -1, &length);
  std::string text = bytes ? std::string(bytes, length) : "an error that is no text";
  Origin at{sources_.back()};
  if (status == LUA_ERRMEM) {
    text = "the recipe uses more than " + std::to_string(options_.lua.bytes >> 20) + " MiB";
    at = {sources_.front()};
  }
  if (text.find("attempt to load a binary chunk") != std::string::npos) {
    text = "this is compiled Lua, expected its text";
  } else if (text.find("C stack overflow") != std::string::npos) {
    text = "tables, calls or expressions are nested too deep (" + text + ")";
  }
  // An error in a module that another requires carries both places, the inner one last.
  while (text.starts_with("#")) {
    char* end = nullptr;
    const size_t chunk = std::strtoul(text.c_str() + 1, &end, 10);
    const int line = static_cast<int>(*end == ':' ? std::strtol(end + 1, &end, 10) : 0);
    if (*end != ':' || chunk >= sources_.size()) {
      break;
    }
    at = LineIndex(sources_[chunk]).whole_line(line);
    text = text.substr(std::min(text.size(), static_cast<size_t>(end - text.c_str()) + 2));
  }
  if (at.line > 0) {
    at = LineIndex(at.source).last_on_line(at.line, named_token(text));
  }
  const bool cut_off = text.ends_with("near <eof>");
  throw RecipeError(
      {{at, "", text, "", cut_off ? "the file ends before a table, call or block is closed" : ""}}
  );
}

} // namespace mh
