#pragma once
/// Options that no schema knows, and what they were meant to be.

#include "megahost/conditions.hpp"
#include "megahost/schema.hpp"

#include <string>
#include <vector>

namespace mh {

/// Reports an option that `schema` lacks: with the key that another program's name for it means,
/// the section that has it, or the nearest name. Each key in a section of another program is
/// reported.
///
/// `path`: of the table, "" for the recipe itself; `known`: sections in which keys are looked up
void report_unknown(
    const Schema& schema,
    const Table::Entry& entry,
    const std::string& path,
    const SectionSchemas& known,
    std::vector<Problem>& ret_problems
);

} // namespace mh
