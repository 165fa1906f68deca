#include "core/formats/plugin_file.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <string_view>
#include <vector>

namespace mh {

namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
#error "add this machine's ELF number"
#endif

class ElfReader {
public:
  explicit ElfReader(const std::filesystem::path& file)
      : in_(file, std::ios::binary) {
    if (in_) {
      in_.seekg(0, std::ios::end);
      size_ = static_cast<uint64_t>(std::max<std::streamoff>(0, in_.tellg()));
    }
  }

  [[nodiscard]] bool opened() const { return in_.is_open(); }

  [[nodiscard]] uint64_t size() const { return size_; }

  /// `count` elements at `offset`; nothing if the file is too short for them.
  template <class T>
  std::vector<T> read(uint64_t offset, uint64_t count) {
    std::vector<T> result;
    if (offset <= size_ && count <= (size_ - offset) / sizeof(T)) {
      result.resize(count);
      in_.clear();
      in_.seekg(static_cast<std::streamoff>(offset));
      in_.read(
          reinterpret_cast<char*>(result.data()), static_cast<std::streamsize>(count * sizeof(T))
      );
      if (!in_) {
        result.clear();
      }
    }
    return result;
  }

private:
  std::ifstream in_;
  uint64_t size_ = 0;
};

std::string beginning(ElfReader& reader) {
  const auto bytes = reader.read<char>(0, std::min<uint64_t>(reader.size(), 24));
  if (bytes.empty()) {
    return "is no shared library: it is empty";
  }
  std::string text;
  for (const char c : bytes) {
    if (c == '\n') {
      break;
    }
    text += c >= ' ' && c < 127 ? c : '?';
  }
  return "is no shared library: it begins with \"" + text + "\"";
}

std::string_view string_at(const std::vector<char>& strings, uint32_t offset) {
  if (offset >= strings.size()) {
    return {};
  }
  const char* start = strings.data() + offset;
  return {start, strnlen(start, strings.size() - offset)};
}

void read_symbols(
    ElfReader& reader,
    const Elf64_Shdr& section,
    const std::vector<char>& strings,
    PluginFile& ret_file
) {
  const auto symbols =
      reader.read<Elf64_Sym>(section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
  for (const Elf64_Sym& symbol : symbols) {
    const std::string_view name = string_at(strings, symbol.st_name);
    const bool defined = symbol.st_shndx != SHN_UNDEF;
    if (!defined && name.starts_with("mh_abi_")) {
      ret_file.pin = name;
    }
    const bool strong = ELF64_ST_BIND(symbol.st_info) == STB_GLOBAL;
    const bool linkers = name.starts_with("_") && !name.starts_with("_Z"); // _edata
    if (defined && !linkers && !name.empty()) {
      (strong ? ret_file.exports : ret_file.inlines).emplace_back(name);
    }
    ret_file.has_entry = ret_file.has_entry || (defined && name == "mh_plugin_entry");
  }
}

void read_dynamic(
    ElfReader& reader,
    const Elf64_Shdr& section,
    const std::vector<char>& strings,
    PluginFile& ret_file
) {
  const auto items = reader.read<Elf64_Dyn>(section.sh_offset, section.sh_size / sizeof(Elf64_Dyn));
  for (const Elf64_Dyn& item : items) {
    const std::string text(string_at(strings, static_cast<uint32_t>(item.d_un.d_val)));
    if (item.d_tag == DT_NEEDED) {
      ret_file.needed.push_back(text);
    } else if (item.d_tag == DT_RUNPATH || item.d_tag == DT_RPATH) {
      std::istringstream folders(text);
      for (std::string folder; std::getline(folders, folder, ':');) {
        ret_file.run_path.push_back(folder);
      }
    }
  }
}

struct Tag {
  std::string api, torch, variant, cxx11, library, headers;
  bool debug = false;
  bool known = false;
};

Tag parse(const std::string& pin) {
  static const std::regex form(
      "mh_abi_([0-9]+)_torch_(.+)_([a-z]+[0-9]*)_cxx11_([01])_([a-z]+)_([0-9a-f]+)(_debug)?"
  );
  std::smatch match;
  if (!std::regex_match(pin, match, form)) {
    return {};
  }
  std::string torch = match[2];
  std::replace(torch.begin(), torch.end(), '_', '.');
  return {match[1], torch, match[3], match[4], match[5], match[6], match[7].matched, true};
}

} // namespace

PluginFile read_plugin_file(const std::filesystem::path& file) {
  PluginFile result;
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    result.refusal = "is a folder";
    return result;
  }
  ElfReader reader(file);
  if (!reader.opened()) {
    result.refusal = std::string("cannot be read: ") + std::strerror(errno);
    return result;
  }
  const auto headers = reader.read<Elf64_Ehdr>(0, 1);
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0) {
    result.refusal = beginning(reader);
    return result;
  }
  const Elf64_Ehdr& header = headers[0];
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    result.refusal = "is a shared library for another processor";
    return result;
  }
  if (header.e_type != ET_DYN) {
    result.refusal = "is no shared library but another kind of ELF file (link it with -shared)";
    return result;
  }
  const auto sections = reader.read<Elf64_Shdr>(header.e_shoff, header.e_shnum);
  bool symbols = false;
  for (const Elf64_Shdr& section : sections) {
    const bool wanted = section.sh_type == SHT_DYNSYM || section.sh_type == SHT_DYNAMIC;
    if (!wanted || section.sh_link >= sections.size()) {
      continue;
    }
    const Elf64_Shdr& names = sections[section.sh_link];
    const auto strings = reader.read<char>(names.sh_offset, names.sh_size);
    if (section.sh_type == SHT_DYNAMIC) {
      read_dynamic(reader, section, strings, result);
    } else {
      read_symbols(reader, section, strings, result);
      symbols = true;
    }
  }
  if (!symbols) {
    result.refusal = "is damaged: it is cut short, or has no table of dynamic symbols";
  }
  return result;
}

std::string pin_difference(const std::string& plugin_pin, const std::string& host_pin) {
  const Tag plugin = parse(plugin_pin), host = parse(host_pin);
  if (!plugin.known || !host.known) {
    return "was built for " + plugin_pin + ", this megahost is " + host_pin;
  }
  if (plugin.torch != host.torch || plugin.variant != host.variant) {
    return "was built for LibTorch " + plugin.torch + " (" + plugin.variant +
           "), this megahost has LibTorch " + host.torch + " (" + host.variant + ")";
  }
  if (plugin.api != host.api) {
    return "was built for plugin SDK " + plugin.api + ", this megahost has plugin SDK " + host.api;
  }
  if (plugin.library != host.library || plugin.cxx11 != host.cxx11) {
    return "was built with the C++ library " + plugin.library + " (C++11 ABI " + plugin.cxx11 +
           "), this megahost with " + host.library + " (C++11 ABI " + host.cxx11 + ")";
  }
  if (plugin.headers != host.headers) {
    return "was built with other headers of plugin SDK " + plugin.api + " (hash " + plugin.headers +
           ") than this megahost (hash " + host.headers + ")";
  }
  return "was compiled without -DNDEBUG, this megahost and its LibTorch with it, and some types "
         "have "
         "another layout without it";
}

} // namespace mh
