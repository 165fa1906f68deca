#pragma once
/// The reference pages (docs/reference) and the manual page, made from what the program itself
/// reads: the table of commands, the schemas, the SDK's headers.

#include "core/editor/editor.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// One Markdown file.
struct Page {
  std::string file;      ///< "commands/run.md", within the folder of the pages
  std::string title;     ///< "megahost run"
  std::string text;      ///< all of the file
  std::string summary{}; ///< one line for lists of pages; may be empty
};

/// First line of every page: how to recognise one.
inline constexpr std::string_view kPageMark = "<!-- Written by `megahost docs`: do not edit. -->";

/// Every page, the index first. `headers` is the SDK's folder (`.../megahost`).
[[nodiscard]] std::vector<Page>
reference_pages(const RecipeCatalogue& catalogue, const std::filesystem::path& headers);

/// The contract of a header of the SDK: its file comment, then each declaration with its comment;
/// declarations that are private or in namespace detail are left out.
///
/// Returns: Markdown without a title
[[nodiscard]] std::string header_text(std::string_view header);

/// megahost(1), as troff.
///
/// Source:  man-pages(7)
[[nodiscard]] std::string manual_page(std::string_view version);

} // namespace mh
