#include "core/base/folders.hpp"
#include "core/cli/reference/reference.hpp"
#include "core/commands/commands.hpp"
#include "core/config.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/storage/file_system.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace mh {

namespace {

namespace fs = std::filesystem;

/// Pages of an earlier time that nothing belongs to any more.
void remove_old(const fs::path& folder, const std::vector<Page>& pages) {
  std::vector<fs::path> old;
  for (const auto& item : fs::recursive_directory_iterator(folder)) {
    const std::string name = item.path().lexically_relative(folder).string();
    const bool kept = std::any_of(pages.begin(), pages.end(), [&](const Page& page) {
      return page.file == name;
    });
    if (!kept && item.is_regular_file() && item.path().extension() == ".md" &&
        read_file(item.path(), uint64_t{1} << 24).starts_with(kPageMark)) {
      old.push_back(item.path());
    }
  }
  for (const fs::path& file : old) {
    file_system().remove(file);
  }
}

} // namespace

int command_docs(const Invocation& invocation, Host& host) {
  if (invocation.has("--man")) {
    std::fputs(manual_page(MH_VERSION).c_str(), stdout);
    return 0;
  }
  const fs::path folder = invocation.value("-o", "docs/reference");
  const std::vector<Page> pages = reference_pages(recipe_catalogue(host), header_folder());
  for (const Page& page : pages) {
    make_directories((folder / page.file).parent_path());
    replace_file(folder / page.file, page.text);
  }
  remove_old(folder, pages);
  std::printf("%zu pages in %s\n", pages.size(), folder.c_str());
  return 0;
}

} // namespace mh
