#pragma once

/// The part of a recipe's environment that is written in Lua: pairs, tostring, merge.

namespace mh {

/// Functions that are shorter in Lua. `env` is the recipe's environment, `next` is not in it.
inline constexpr const char* kPrelude = R"lua(
local env, next, type, sort, error = ...
local rank = { number = 1, string = 2 }

function env.pairs(t)
  if type(t) ~= "table" then
    error("pairs takes a table, not a " .. type(t), 2)
  end
  local keys = {}
  for key in next, t do
    keys[#keys + 1] = key
  end
  sort(keys, function(a, b)
    local x, y = rank[type(a)] or 3, rank[type(b)] or 3
    if x ~= y then
      return x < y
    end
    return x < 3 and a < b
  end)
  local i = 0
  return function()
    i = i + 1
    if keys[i] ~= nil then
      return keys[i], t[keys[i]]
    end
  end
end

local tostring = env.tostring
function env.tostring(value)  -- no addresses: they differ from run to run
  local kind = type(value)
  return (kind == "table" or kind == "function") and kind or tostring(value)
end

local function copy(value, depth)
  if type(value) ~= "table" then
    return value
  end
  if depth > 64 then
    error("a table nested deeper than 64: does it hold itself?", 0)
  end
  local result = {}
  for key, member in next, value do
    result[key] = copy(member, depth + 1)
  end
  return result
end

local function merge(base, over, depth)
  if type(base) ~= "table" or type(over) ~= "table" or base[1] ~= nil or over[1] ~= nil then
    return copy(over, depth)
  end
  local result = copy(base, depth)
  for key, member in next, over do
    result[key] = merge(base[key], member, depth + 1)
  end
  return result
end

function env.merge(...)
  local result = {}
  for i, part in env.ipairs({ ... }) do
    if type(part) ~= "table" then
      error("merge takes tables, argument " .. i .. " is a " .. type(part), 2)
    end
    result = merge(result, part, 1)
  end
  return result
end

return function(value)
  return copy(value, 1)
end
)lua";

} // namespace mh
