#pragma once
/// The settings that a plugin lets `megahost plan` try: `searched` and `changes` of an entry.

#include "megahost/registry.hpp"

#include <string>
#include <vector>

namespace mh {

/// The fault of a plugin's settings: "tries parallel.zebra, a key that it does not declare", or a
/// value that a key does not take. Its keys are its own and those of `others`. Empty if there is
/// none.
[[nodiscard]] std::string
tried_fault(const Registry::Entry& entry, const std::vector<Table>& tried, const Schema& others);

/// Throws:  mh::Error naming the plugin, `call` and the fault
void require_tried(
    const Registry::Entry& entry,
    const char* call,
    const std::vector<Table>& tried,
    const Schema& others
);

} // namespace mh
