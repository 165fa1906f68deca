#pragma once
/// The places of a Lua recipe's keys and values. Lua's tables do not remember them, so the text is
/// read a second time: constructors, `local name = {...}`, `name.key = value`, `return`, `merge`
/// and `require` are understood, anything else is only a span of text.

#include "core/language/source.hpp"

#include <functional>
#include <map>
#include <string>

namespace mh {

/// The place of one value and of the members of the table it makes.
struct Spot {
  Origin key;
  Origin value;
  std::map<std::string, Spot> members; ///< list elements under "1", "2", ...
};

/// The returned value's spots. `module` gives the spots of a required module.
[[nodiscard]] Spot
lua_positions(const SourcePtr& source, const std::function<Spot(const std::string& name)>& module);

} // namespace mh
