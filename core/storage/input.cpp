#include "core/storage/input.hpp"

#include "megahost/storage.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <vector>

namespace mh {

namespace {

constexpr std::array<std::string_view, 5> kCompressedEndings{".gz", ".zst", ".zstd", ".xz", ".bz2"};

class FileInput final : public InputStream {
public:
  explicit FileInput(const std::string& path)
      : path_(path == "-" ? "standard input" : path)
      , file_(path == "-" ? stdin : std::fopen(path.c_str(), "rbe"), std::fclose) {
    if (!file_) {
      throw StorageError("open", path_, errno);
    }
  }

  size_t read(std::span<char> ret_buffer) override {
    const size_t got = std::fread(ret_buffer.data(), 1, ret_buffer.size(), file_.get());
    if (got < ret_buffer.size() && std::ferror(file_.get()) != 0) {
      throw StorageError("read", path_, errno);
    }
    return got;
  }

  void skip(uint64_t bytes) override {
    if (::fseeko(file_.get(), static_cast<off_t>(bytes), SEEK_CUR) != 0) {
      InputStream::skip(bytes);
    }
  }

private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

} // namespace

InputStream::~InputStream() = default;

void InputStream::skip(uint64_t bytes) {
  std::vector<char> buffer(1 << 20);
  while (bytes > 0) {
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(buffer.size(), bytes));
    const size_t got = read(std::span(buffer).first(wanted));
    if (got == 0) {
      return;
    }
    bytes -= got;
  }
}

std::unique_ptr<InputStream> open_file_input(const std::string& path) {
  return std::make_unique<FileInput>(path);
}

bool is_compressed_name(const std::string& name) {
  return without_compression(name).size() < name.size();
}

bool is_columns_name(const std::string& name) {
  return name.ends_with(".parquet") || name.ends_with(".arrow");
}

std::string without_compression(const std::string& name) {
  const auto ending = std::ranges::find_if(kCompressedEndings, [&](std::string_view ending) {
    return name.ends_with(ending) && name.size() > ending.size();
  });
  return ending == kCompressedEndings.end() ? name : name.substr(0, name.size() - ending->size());
}

} // namespace mh
