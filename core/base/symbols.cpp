#include "core/base/symbols.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

namespace mh {

namespace {

constexpr size_t kLongest = 160; // names of templates have no end

/// A function's name and first address, from the file's beginning in memory.
struct Function {
  std::string name;
  uint64_t begin = 0;
};

/// A file that is read through memory; every offset in it is checked.
class SymbolFile {
public:
  explicit SymbolFile(const char* name) {
    const int fd = open(name, O_RDONLY | O_CLOEXEC);

    struct stat file {};

    if (fd >= 0 && fstat(fd, &file) == 0 && file.st_size > 0) {
      void* const at =
          mmap(nullptr, static_cast<size_t>(file.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (at != MAP_FAILED) {
        bytes_ = static_cast<const char*>(at);
        size_ = static_cast<size_t>(file.st_size);
      }
    }
    if (fd >= 0) {
      close(fd);
    }
  }

  ~SymbolFile() {
    if (bytes_ != nullptr) {
      munmap(const_cast<char*>(bytes_), size_);
    }
  }

  SymbolFile(const SymbolFile&) = delete;
  SymbolFile& operator=(const SymbolFile&) = delete;

  /// `count` values at an offset; null if the file ends before.
  template <class T>
  [[nodiscard]] const T* at(uint64_t offset, uint64_t count = 1) const {
    const bool there = offset <= size_ && count <= (size_ - offset) / sizeof(T);
    return there ? reinterpret_cast<const T*>(bytes_ + offset) : nullptr;
  }

  /// The text at an offset, up to its zero; empty if there is none.
  [[nodiscard]] std::string text(uint64_t offset) const {
    return offset < size_ ? std::string(bytes_ + offset, strnlen(bytes_ + offset, size_ - offset))
                          : "";
  }

private:
  const char* bytes_ = nullptr;
  size_t size_ = 0;
};

/// The function of a library's own table of symbols, which has those that it does not export.
std::optional<Function> local_function(const char* library, uint64_t address) {
  const SymbolFile file(library);
  const auto* head = file.at<Elf64_Ehdr>(0);
  if (head == nullptr || std::memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 ||
      head->e_shentsize != sizeof(Elf64_Shdr)) {
    return std::nullopt;
  }
  const auto* sections = file.at<Elf64_Shdr>(head->e_shoff, head->e_shnum);
  for (size_t i = 0; sections != nullptr && i < head->e_shnum; ++i) {
    const Elf64_Shdr& table = sections[i];
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= head->e_shnum) {
      continue;
    }
    const uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    const auto* symbols = file.at<Elf64_Sym>(table.sh_offset, count);
    for (uint64_t s = 0; symbols != nullptr && s < count; ++s) {
      const Elf64_Sym& symbol = symbols[s];
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && address >= symbol.st_value &&
          address - symbol.st_value < symbol.st_size) {
        return Function{
            file.text(sections[table.sh_link].sh_offset + symbol.st_name), symbol.st_value};
      }
    }
  }
  return std::nullopt;
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free
  );
  std::string text = status == 0 ? plain.get() : name;
  if (text.size() > kLongest) {
    text.resize(kLongest);
    text += "...";
  }
  return text;
}

std::string hex(uint64_t number) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(number));
  return text.data();
}

} // namespace

std::string frame_text(const void* address, bool called) {
  const auto at = reinterpret_cast<uint64_t>(address);
  const uint64_t inside = at - (called ? 1 : 0);
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(inside), &info) == 0 || info.dli_fname == nullptr) {
    return hex(at);
  }
  const auto base = reinterpret_cast<uint64_t>(info.dli_fbase);
  const std::string place =
      std::filesystem::path(info.dli_fname).filename().string() + " + " + hex(at - base);
  std::optional<Function> function;
  if (info.dli_sname != nullptr) {
    function = Function{info.dli_sname, reinterpret_cast<uint64_t>(info.dli_saddr) - base};
  } else {
    function = local_function(info.dli_fname, inside - base);
  }
  return function ? demangled(function->name) + " + " + hex(at - base - function->begin) + " (" +
                        place + ")"
                  : place;
}

} // namespace mh
