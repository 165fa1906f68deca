#include "files.hpp"

#include <megahost/error.hpp>

#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

namespace mh::text {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTorchHeaders = "@torch-headers";

Error data_error(const std::string& message, const std::string& hint) {
  return Error(message, hint, exit_code::data);
}

std::string reason(int error) {
  return std::generic_category().message(error);
}

bool has_extension(std::string_view name, const std::vector<std::string>& extensions) {
  return extensions.empty() || std::ranges::any_of(extensions, [&](const std::string& extension) {
           return name.ends_with(extension);
         });
}

// Device and inode: a file's identity, under whatever names.
using Identity = std::pair<dev_t, ino_t>;

class FileFinder {
public:
  explicit FileFinder(const std::vector<std::string>& extensions)
      : extensions_(extensions) {}

  void path(const std::string& path) {
    struct stat status {};

    if (::stat(path.c_str(), &status) != 0) {
      throw data_error(
          "data.paths: cannot open " + path + ": " + reason(errno),
          "check the path: a relative one is meant from the folder of the recipe file that says "
          "it, on the command line from the working directory"
      );
    }
    if (S_ISDIR(status.st_mode)) {
      folder(path);
    } else {
      add(path, fs::path(path).filename().string(), status);
    }
  }

  std::vector<TextFile> files;

private:
  void folder(const std::string& root) {
    std::vector<std::pair<std::string, std::string>> found; // name, path
    try {
      for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
        const std::string name = it->path().filename().string();
        if (name.starts_with('.')) {
          it.disable_recursion_pending();
        } else if (has_extension(name, extensions_) && it->is_regular_file()) {
          found.emplace_back(it->path().lexically_relative(root).generic_string(), it->path());
        }
      }
    } catch (const fs::filesystem_error& error) {
      throw data_error(
          "data.paths: cannot list " + error.path1().string() + ": " + error.code().message(),
          "make the folder readable, or name its parts that are"
      );
    }
    std::ranges::sort(found);
    for (const auto& [name, path] : found) {
      struct stat status {};

      if (::stat(path.c_str(), &status) != 0) {
        throw data_error("cannot open " + path + ": " + reason(errno), "run again");
      }
      add(path, name, status);
    }
  }

  void add(const std::string& path, const std::string& name, const struct stat& status) {
    if (seen_.emplace(status.st_dev, status.st_ino).second) {
      files.push_back({path, name, static_cast<uint64_t>(status.st_size)});
    }
  }

  const std::vector<std::string>& extensions_;
  std::set<Identity> seen_;
};

class FileDescriptor {
public:
  explicit FileDescriptor(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}

  ~FileDescriptor() {
    if (number_ >= 0) {
      ::close(number_);
    }
  }

  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int number() const { return number_; }

private:
  int number_;
};

} // namespace

std::vector<std::string> usual_extensions() {
  return {
      ".txt",
      ".md",
      ".rst",
      ".tex",
      ".h",
      ".hpp",
      ".cuh",
      ".c",
      ".cc",
      ".cpp",
      ".cu",
      ".py",
      ".lua"};
}

std::vector<TextFile>
find_text_files(const std::vector<std::string>& paths, const std::vector<std::string>& extensions) {
  FileFinder finder(extensions);
  std::string list;
  for (const std::string& path : paths) {
    list += (list.empty() ? "" : ", ") + path;
    if (path == kTorchHeaders) {
      finder.path(torch_headers());
    } else if (path.starts_with('@')) {
      throw data_error(
          "data.paths: `" + path + "` is unknown; the only path with a meaning of its own is `" +
              std::string(kTorchHeaders) + "`",
          "write ./" + path + " for a file of that name"
      );
    } else {
      finder.path(path);
    }
  }
  if (paths.empty()) {
    throw data_error("data.paths names no file", "name files or folders");
  }
  if (finder.files.empty()) {
    std::string endings;
    for (const std::string& extension : extensions) {
      endings += (endings.empty() ? "" : " ") + extension;
    }
    throw data_error(
        "data.paths: no text file in " + list,
        endings.empty() ? "name files, or folders that hold some"
                        : "name files, or set data.extensions: looked for " + endings
    );
  }
  return std::move(finder.files);
}

std::string read_text_file(const std::string& path, std::optional<uint64_t> first) {
  const FileDescriptor file(path);
  if (file.number() < 0) {
    throw data_error(
        "cannot open " + path + ": " + reason(errno), "make it readable, or leave it out"
    );
  }

  struct stat status {};

  ::fstat(file.number(), &status);
  const uint64_t most = first.value_or(std::numeric_limits<uint64_t>::max());
  std::string text(std::min(static_cast<uint64_t>(status.st_size) + 1, most), '\0');
  size_t length = 0;
  while (length < most) {
    if (length == text.size()) {
      text.resize(std::min(uint64_t{text.size()} * 2, most));
    }
    const ssize_t count = ::read(file.number(), text.data() + length, text.size() - length);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw data_error(
          "cannot read " + path + ": " + reason(errno), "make it readable, or leave it out"
      );
    }
    if (count == 0) {
      break;
    }
    length += static_cast<size_t>(count);
  }
  text.resize(length);
  return text;
}

std::string torch_headers() {
  std::string library;
  const auto visit = [](dl_phdr_info* info, size_t, void* library) {
    const std::string_view path = info->dlpi_name;
    const bool found = path.ends_with("/libc10.so") || path.ends_with("/libtorch_cpu.so");
    if (found) {
      *static_cast<std::string*>(library) = path;
    }
    return found ? 1 : 0;
  };
  dl_iterate_phdr(visit, &library);
  if (library.empty()) {
    throw data_error(
        "data.paths: `@torch-headers` needs LibTorch, which this program has not loaded",
        "name other files"
    );
  }
  const fs::path folder = fs::weakly_canonical(fs::path(library).parent_path() / "../include");
  if (!fs::is_directory(folder)) {
    throw data_error(
        "data.paths: `@torch-headers` finds no headers: LibTorch lies in " + library +
            " and there is no " + folder.string(),
        "use a LibTorch that comes with its headers, or name other files"
    );
  }
  return folder.string();
}

} // namespace mh::text
