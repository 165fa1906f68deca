#pragma once
/// The tables of Unicode 16.0 as they are written: runs and lists, which unicode.cpp unfolds.

#include <cstddef>
#include <cstdint>

namespace mh::text::data {

/// Runs of code points of one Category: first << 8 | category. The last goes to U+10FFFF.
extern const uint32_t kCategories[];
extern const size_t kCategoriesSize;

/// Runs of one canonical combining class: first << 8 | class.
extern const uint32_t kCombiningClasses[];
extern const size_t kCombiningClassesSize;

/// For each code point with a decomposition: code << 8 | kind << 6 | length, and its parts. Kind 0 is
/// composed again from its two parts, kind 1 is not, kind 2 is a compatibility decomposition.
extern const uint32_t kDecompositions[];
extern const size_t kDecompositionsSize;

/// First, last, step and difference of code points whose lower case is one code point.
extern const uint32_t kLower[];
extern const size_t kLowerSize;

/// Runs of code points of one script: first << 8 | its place in the names. The last goes to U+10FFFF.
extern const uint32_t kScripts[];
extern const size_t kScriptsSize;

/// The names of each script, in capitals and digits alone: "HAN HANI".
extern const char* const kScriptNames[];
extern const size_t kScriptNamesSize;

} // namespace mh::text::data
