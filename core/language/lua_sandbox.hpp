#pragma once
/// One Lua 5.4 state in which a recipe is evaluated: no files, no clock, no chance, bounded time
/// and memory.
///
/// A recipe sees string, table, math (without random), utf8, and assert, error, ipairs, pairs (in
/// sorted order), select, tonumber, tostring, type, print (to the standard error), require (recipe
/// modules inside the roots) and merge(a, b, ...), which merges tables as `extends` does. This
/// keeps recipes reproducible and stops accidents; plugins are native code anyway.

#include "core/language/read.hpp"

#include <lua.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

class LuaSandbox {
public:
  explicit LuaSandbox(const ReadOptions& options);
  ~LuaSandbox();
  LuaSandbox(const LuaSandbox&) = delete;
  LuaSandbox& operator=(const LuaSandbox&) = delete;

  /// Compiles a chunk and does not run it.
  ///
  /// Throws:  RecipeError with the place for syntax errors
  void check(const SourcePtr& source);

  /// Runs a chunk and leaves its result on the stack.
  ///
  /// Throws:  RecipeError with the place for syntax errors, errors while running and used-up limits
  lua_State* run(const SourcePtr& source);

  /// Calls `body` where Lua may raise errors (memory), with the stack as it is left by `run`.
  ///
  /// Throws:  what `body` throws; RecipeError for Lua's errors
  void protect(const std::function<void(lua_State*)>& body);

  /// The text of a module that was required, by its name; null if there was none.
  [[nodiscard]] SourcePtr module(const std::string& name) const;
  /// Names of all files read by `run`.
  [[nodiscard]] std::vector<std::string> files() const;

private:
  struct Module {
    SourcePtr source;
    bool loading = false;
    int result = LUA_NOREF;
  };

  static void* allocate(void* self, void* block, size_t old_size, size_t new_size);
  static void watch(lua_State* state, lua_Debug* record);
  template <int (LuaSandbox::*Function)(lua_State*)>
  static int guarded(lua_State* state) noexcept(false);

  void open();
  int load(const SourcePtr& source);
  int call_require(lua_State* state);
  int call_print(lua_State* state);
  int unknown_name(lua_State* state);
  [[nodiscard]] SourcePtr find_module(const std::string& name) const;
  [[noreturn]] void fail(int status);

  ReadOptions options_;
  size_t used_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  std::vector<SourcePtr> sources_; ///< chunk i is named "=#i" inside Lua
  std::map<std::string, Module> modules_;
  std::vector<std::string> loading_;
  lua_State* state_ = nullptr;
};

} // namespace mh
