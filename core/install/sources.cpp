#include "core/install/sources.hpp"

#include "core/install/open_input.hpp"
#include "core/install/program.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <vector>

namespace mh {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kLongestAnswer = 1 << 16;

/// Left out of a copy: what builds and runs have made, and what version control and editors keep.
bool is_left_out(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename();
  return name.starts_with(".") ||
         (fs::is_directory(path, error) &&
          (name == "runs" || name == "__pycache__" || fs::exists(path / "meson-private", error)));
}

struct SourceCopy {
  const fs::path& root;
  uint64_t bytes = 0, files = 0;

  void folder(const fs::path& from, const fs::path& to) {
    file_system().make_directory(to);
    for (const auto& item : fs::directory_iterator(from)) {
      if (is_left_out(item.path())) {
        continue;
      }
      if (item.is_directory() && item.is_symlink()) {
        throw Error(
            item.path().string() + " is a link to a folder, which is not copied",
            "put the folder itself there, or give an archive"
        );
      }
      item.is_directory() ? folder(item.path(), to / item.path().filename())
                          : file(item, to / item.path().filename());
    }
  }

  void file(const fs::directory_entry& from, const fs::path& to) {
    if (!from.is_regular_file()) {
      throw Error(from.path().string() + " is neither a file nor a folder", "remove it");
    }
    bytes += from.file_size();
    if (bytes > kMostSourceBytes || ++files > kMostSourceFiles) {
      throw Error(
          root.string() + " holds more than " + std::to_string(kMostSourceBytes >> 20) +
              " MiB or " + std::to_string(kMostSourceFiles) + " files, up to " +
              from.path().string(),
          "give a folder or an archive that holds the plugin's sources alone"
      );
    }
    write_file(to, read_file(from.path(), kMostSourceBytes));
    fs::permissions(to, from.status().permissions());
  }
};

} // namespace

void copy_sources(const fs::path& from, const fs::path& to) {
  SourceCopy{from}.folder(from, to);
}

void unpack(const fs::path& archive, const fs::path& to) {
  file_system().make_directory(to);
  const fs::path answer = to.string() + ".answer";
  const int status = run_program({unpacker(), archive.string(), to.string()}, {.log = answer});
  if (status == 0) {
    return;
  }
  const std::string text = read_file(answer, kLongestAnswer);
  const size_t end = text.find('\n');
  if (status != exit_code::recipe || end == std::string::npos) {
    throw Error(
        archive.string() + " ended the program that unpacks it (status " + std::to_string(status) +
            ")",
        "it may be damaged: unpack it yourself, and give the folder"
    );
  }
  throw Error(text.substr(0, end), text.substr(end + 1, text.find('\n', end + 1) - end - 1));
}

fs::path project_folder(const fs::path& folder, const fs::path& given) {
  if (fs::is_regular_file(folder / "meson.build")) {
    return folder;
  }
  std::vector<fs::path> folders;
  for (const auto& item : fs::directory_iterator(folder)) {
    folders.push_back(item.path());
  }
  if (folders.size() == 1 && fs::is_regular_file(folders.front() / "meson.build")) {
    return folders.front();
  }
  throw Error(
      given.string() + " holds no plugin: there is no meson.build at its top",
      "give the folder that holds it; megahost plugins new DIR --kind KIND makes one"
  );
}

} // namespace mh
