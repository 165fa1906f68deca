#include "core/formats/npy.hpp"

#include "core/base/printable.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace mh {

namespace {

constexpr std::string_view kNpyMagic("\x93NUMPY", 6);
constexpr size_t kAlignment = 64;

[[noreturn]] void refuse_npy(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why,
      "the file is damaged, cut short, or no array of integers as numpy.save writes it",
      exit_code::data
  );
}

/// Reads the dictionary of a header, which is Python, and a small part of it only.
class NpyHeader {
public:
  NpyHeader(std::string_view text, const std::string& file)
      : rest_(text)
      , file_(file) {}

  void read(NpyLayout& ret_layout) {
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        ret_layout.type = quoted();
      } else if (key == "shape") {
        ret_layout.shape = shape();
      } else if (key == "fortran_order") {
        if (word() != "False") {
          refuse_npy(file_, "its numbers are in Fortran's order, expected C's");
        }
      } else {
        refuse_npy(file_, "its header has an unknown key " + printable(key));
      }
      if (!accept(',')) {
        expect('}');
        return;
      }
    }
  }

private:
  void skip_blanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
  }

  bool accept(char c) {
    skip_blanks();
    if (!rest_.starts_with(c)) {
      return false;
    }
    rest_.remove_prefix(1);
    return true;
  }

  void expect(char c) {
    if (!accept(c)) {
      refuse_npy(file_, "its header lacks a '" + std::string(1, c) + "'");
    }
  }

  std::string quoted() {
    expect('\'');
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) {
      refuse_npy(file_, "its header has a text without end");
    }
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::string_view word() {
    skip_blanks();
    const std::string_view text = rest_.substr(0, rest_.find_first_of(",} "));
    rest_.remove_prefix(text.size());
    return text;
  }

  std::vector<uint64_t> shape() {
    std::vector<uint64_t> sizes;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      uint64_t size = 0;
      const auto [end, failure] = std::from_chars(rest_.begin(), rest_.end(), size);
      if (failure != std::errc()) {
        refuse_npy(file_, "its header has a shape that is no list of sizes");
      }
      rest_.remove_prefix(static_cast<size_t>(end - rest_.begin()));
      sizes.push_back(size);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return sizes;
  }

  std::string_view rest_;
  const std::string& file_;
};

} // namespace

uint64_t NpyLayout::count() const {
  uint64_t product = 1;
  for (const uint64_t size : shape) {
    product *= size;
  }
  return product;
}

bool is_npy(std::span<const std::byte> bytes) {
  return bytes.size() >= kNpyMagic.size() &&
         std::memcmp(bytes.data(), kNpyMagic.data(), kNpyMagic.size()) == 0;
}

NpyLayout read_npy(std::span<const std::byte> bytes, const std::string& file) {
  if (!is_npy(bytes)) {
    refuse_npy(file, "it does not begin as an array of numpy");
  }
  const auto byte = [&](size_t at) {
    return at < bytes.size() ? std::to_integer<size_t>(bytes[at]) : 0;
  };
  const size_t version = byte(6);
  if (version != 1 && version != 2) {
    refuse_npy(file, "format version " + std::to_string(version) + ", expected 1 or 2");
  }
  const size_t text_begin = version == 1 ? 10 : 12;
  const size_t length =
      byte(8) | byte(9) << 8 | (version == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (bytes.size() < text_begin || length > bytes.size() - text_begin) {
    refuse_npy(file, "its header does not fit into its " + std::to_string(bytes.size()) + " bytes");
  }
  NpyLayout layout;
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + text_begin;
  NpyHeader(std::string_view(text, length), file).read(layout);
  layout.begin = text_begin + length;

  uint64_t width = 0;
  if (layout.type.size() < 3 || !std::strchr("<|", layout.type[0]) ||
      std::from_chars(layout.type.data() + 2, layout.type.data() + layout.type.size(), width).ptr !=
          layout.type.data() + layout.type.size() ||
      width == 0) {
    refuse_npy(file, "its numbers are of the type " + printable(layout.type));
  }
  uint64_t expected = width;
  bool overflows = false;
  for (const uint64_t size : layout.shape) {
    overflows |= __builtin_mul_overflow(expected, size, &expected);
  }
  if (overflows || expected != bytes.size() - layout.begin) {
    refuse_npy(
        file,
        "its header counts " + (overflows ? "more than 2^64" : std::to_string(expected)) +
            " bytes of numbers, but " + std::to_string(bytes.size() - layout.begin) + " follow"
    );
  }
  return layout;
}

std::string npy_header(std::string_view type, std::span<const uint64_t> shape) {
  std::string sizes;
  for (const uint64_t size : shape) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  std::string text = "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': (" +
                     sizes + (shape.size() == 1 ? ",), }" : "), }");
  text.append(kAlignment - 1 - (kNpyMagic.size() + 4 + text.size()) % kAlignment, ' ');
  text += '\n';
  std::string header(kNpyMagic);
  header += '\1';
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

} // namespace mh
