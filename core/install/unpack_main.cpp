// megahost-unpack ARCHIVE FOLDER: unpacks the sources of a plugin into an empty folder. A process
// of its own, without LibTorch: an archive may come from anywhere. Says on standard output what is
// wrong, and on a second line what to do.
// megahost-unpack --decompress FILE: writes what a compressed file holds to standard output; says
// on the standard error what is wrong.

#include "core/base/printable.hpp"
#include "core/base/text.hpp"
#include "core/install/sources.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <sys/resource.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>

namespace {

namespace fs = std::filesystem;

constexpr const char* kForms = "give a .tar.gz, .tar.xz, .tar.zst, .tar.bz2, .tar or .zip of a "
                               "plugin's folder";
constexpr const char* kYourself = "unpack it yourself, look at it, and give the folder";
constexpr rlim_t kMemory = 1 << 30, kSeconds = 120;

struct Close {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

class Unpacking {
public:
  Unpacking(std::string file, fs::path folder)
      : file_(std::move(file))
      , folder_(std::move(folder))
      , reader_(archive_read_new()) {}

  void run() {
    archive_read_support_format_tar(reader_.get());
    archive_read_support_format_zip(reader_.get());
    archive_read_support_filter_gzip(reader_.get());
    archive_read_support_filter_xz(reader_.get());
    archive_read_support_filter_zstd(reader_.get());
    archive_read_support_filter_bzip2(reader_.get());
    if (archive_read_open_filename(reader_.get(), file_.c_str(), 1 << 16) != ARCHIVE_OK) {
      refuse(" cannot be unpacked: " + said(), kForms);
    }
    archive_entry* entry = nullptr;
    while (true) {
      const int code = archive_read_next_header(reader_.get(), &entry);
      if (code == ARCHIVE_EOF) {
        break;
      }
      if (code != ARCHIVE_OK && code != ARCHIVE_WARN) {
        refuse((entries_ == 0 ? " cannot be unpacked: " : " is damaged: ") + said(), kForms);
      }
      take(entry);
    }
    if (entries_ == 0) {
      refuse(" is an archive with nothing in it", kForms);
    }
  }

private:
  [[noreturn]] void refuse(const std::string& why, const char* hint) const {
    throw mh::Error(file_ + why, hint);
  }

  [[nodiscard]] std::string said() const {
    const char* text = archive_error_string(reader_.get());
    return text == nullptr ? "no reason is known" : mh::terminal_text(text);
  }

  /// The name of an entry as a path that stays in the folder; empty for the folder itself.
  [[nodiscard]] fs::path path_of(archive_entry* entry) const {
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr || *name == '\0') {
      refuse(" is damaged: it holds an entry without a name", kForms);
    }
    fs::path path;
    for (const fs::path& part : fs::path(name)) {
      if (part == "." || part.empty()) {
        continue;
      }
      if (!mh::is_file_name(part.string())) {
        refuse(" holds " + mh::printable(name) + ", which leads out of its folder", kYourself);
      }
      path /= part;
    }
    return path;
  }

  void take(archive_entry* entry) {
    const fs::path path = path_of(entry);
    const std::string name = mh::printable(path.string());
    if (++entries_ > mh::kMostSourceFiles) {
      refuse(" holds more than " + std::to_string(mh::kMostSourceFiles) + " files", kYourself);
    }
    const auto type = archive_entry_filetype(entry);
    if (type == AE_IFLNK || archive_entry_hardlink(entry) != nullptr) {
      refuse(" holds a link, " + name + ", and links are not unpacked", kYourself);
    }
    if (type == AE_IFDIR) {
      make_folder(path);
    } else if (type == AE_IFREG && !path.empty()) {
      write_entry(path, name, (archive_entry_perm(entry) & 0100) != 0);
    } else {
      refuse(" holds " + name + ", which is neither a file nor a folder", kYourself);
    }
  }

  void make_folder(const fs::path& path) {
    if (path.empty() || !made_.insert(path).second) {
      return;
    }
    make_folder(path.parent_path());
    if (mh::file_system().kind(folder_ / path) != mh::FileSystem::Kind::none) {
      refuse(
          " holds " + mh::printable(path.string()) + " both as a file and as a folder", kYourself
      );
    }
    mh::file_system().make_directory(folder_ / path);
  }

  void write_entry(const fs::path& path, const std::string& name, bool executable) {
    make_folder(path.parent_path());
    if (mh::file_system().kind(folder_ / path) != mh::FileSystem::Kind::none) {
      refuse(" holds " + name + " twice", kYourself);
    }
    const auto file = mh::file_system().create(folder_ / path);
    std::array<std::byte, 1 << 16> buffer{};
    while (true) {
      const la_ssize_t count = archive_read_data(reader_.get(), buffer.data(), buffer.size());
      if (count == 0) {
        break;
      }
      if (count < 0) {
        refuse(" is damaged: " + name + ": " + said(), kForms);
      }
      bytes_ += static_cast<uint64_t>(count);
      if (bytes_ > mh::kMostSourceBytes) {
        refuse(
            " holds more than " + std::to_string(mh::kMostSourceBytes >> 20) +
                " MiB when it is unpacked",
            "give an archive of the plugin's sources alone"
        );
      }
      mh::write_all(*file, std::span(buffer).first(static_cast<size_t>(count)), folder_ / path);
    }
    if (executable) {
      fs::permissions(
          folder_ / path,
          fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
          fs::perm_options::add
      );
    }
  }

  std::string file_;
  fs::path folder_;
  std::unique_ptr<archive, Close> reader_;
  std::set<fs::path> made_;
  uint64_t entries_ = 0, bytes_ = 0;
};

bool is_gzip(const char* file) {
  std::array<unsigned char, 2> magic{};
  if (std::FILE* input = std::fopen(file, "rb")) {
    (void)std::fread(magic.data(), 1, magic.size(), input);
    std::fclose(input);
  }
  return magic[0] == 0x1F && magic[1] == 0x8B;
}

constexpr const char* kNotWritten = "what it holds cannot be written";

/// Like `decompress`, for gzip: libarchive does not compare its checksums.
std::string decompress_gzip(const char* file) {
  const gzFile input = gzopen(file, "rb");
  if (input == nullptr) {
    return "it cannot be opened";
  }
  std::array<char, 1 << 18> buffer{};
  std::string wrong;
  for (int count = 1; count > 0 && wrong.empty();) {
    count = gzread(input, buffer.data(), buffer.size());
    const auto bytes = static_cast<size_t>(std::max(count, 0));
    int code = Z_OK;
    (void)gzerror(input, &code);
    if (count < 0) {
      wrong = "damaged gzip input";
    } else if (std::fwrite(buffer.data(), 1, bytes, stdout) != bytes) {
      wrong = kNotWritten;
    } else if (count == 0 && code == Z_BUF_ERROR) {
      wrong = "truncated gzip input";
    }
  }
  gzclose(input);
  return wrong;
}

/// The reason why a file cannot be decompressed further; empty at its end.
std::string decompress(const char* file) {
  if (is_gzip(file)) {
    return decompress_gzip(file);
  }
  const std::unique_ptr<archive, Close> reader(archive_read_new());
  archive_read_support_format_raw(reader.get());
  archive_read_support_format_empty(reader.get());
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_filter_xz(reader.get());
  archive_read_support_filter_zstd(reader.get());
  archive_read_support_filter_bzip2(reader.get());
  archive_entry* entry = nullptr;
  const auto said = [&] {
    const char* text = archive_error_string(reader.get());
    return text == nullptr ? std::string("no reason is known") : mh::terminal_text(text);
  };
  if (archive_read_open_filename(reader.get(), file, 1 << 18) != ARCHIVE_OK) {
    return said();
  }
  const int found = archive_read_next_header(reader.get(), &entry);
  if (found != ARCHIVE_OK && found != ARCHIVE_EOF) {
    return said();
  }
  if (archive_filter_count(reader.get()) < 2) { // its name only says so: raw takes any file
    return "it is not compressed";
  }
  if (found == ARCHIVE_EOF) {
    return "";
  }
  const void* block = nullptr; // archive_read_data would lose what comes before a damage
  size_t bytes = 0;
  la_int64_t offset = 0;
  while (true) {
    const int code = archive_read_data_block(reader.get(), &block, &bytes, &offset);
    if (code != ARCHIVE_OK) {
      return code == ARCHIVE_EOF ? "" : said();
    }
    if (std::fwrite(block, 1, bytes, stdout) != bytes) {
      return kNotWritten;
    }
  }
}

void limit(decltype(RLIMIT_AS) what, rlim_t most) {
  const rlimit values{most, most};
  setrlimit(what, &values);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::puts("megahost-unpack takes an archive and a folder\n");
    return mh::exit_code::recipe;
  }
  limit(RLIMIT_AS, kMemory);
  if (std::string(argv[1]) == "--decompress") {
    const std::string wrong = decompress(argv[2]);
    std::fputs(wrong.c_str(), stderr);
    return wrong.empty() && std::fflush(stdout) == 0 ? 0 : mh::exit_code::data;
  }
  limit(RLIMIT_CPU, kSeconds);
  std::setlocale(LC_CTYPE, "C.UTF-8"); // names in archives are converted to it
  try {
    Unpacking(argv[1], argv[2]).run();
  } catch (const mh::Error& error) {
    std::printf("%s\n%s\n", error.what(), error.hint().c_str());
    return mh::exit_code::recipe;
  } catch (const std::exception& error) {
    std::printf("%s cannot be unpacked: %s\n\n", argv[1], error.what());
    return mh::exit_code::recipe;
  }
  return 0;
}
