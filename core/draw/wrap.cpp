#include "core/draw/wrap.hpp"

#include "core/base/write_all.hpp"
#include "core/draw/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace mh {

namespace {

/// An escape sequence or a character, which may take several bytes.
std::string_view symbol_at(std::string_view text, size_t at) {
  size_t end = at + 1;
  if (text[at] == '\x1b') {
    end = std::min(text.find('m', at), text.size() - 1) + 1;
  } else {
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      ++end;
    }
  }
  return text.substr(at, end - at);
}

bool moves_the_cursor(std::string_view line) {
  for (size_t at = line.find('\x1b'); at != std::string_view::npos;
       at = line.find('\x1b', at + 1)) {
    const size_t end = line.find_first_not_of("[0123456789;", at + 1);
    if (end == std::string_view::npos || line[end] != 'm') {
      return true;
    }
  }
  return line.find('\r') != std::string_view::npos;
}

std::string without_escapes(std::string_view line) {
  std::string plain;
  for (size_t at = 0; at < line.size();) {
    const auto symbol = symbol_at(line, at);
    plain += symbol.front() == '\x1b' ? std::string_view() : symbol;
    at += symbol.size();
  }
  return plain;
}

/// Whether a plain line is a command, or begins with options of one.
bool is_command(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::string_view text = line.substr(begin);
  const std::string_view word = text.substr(0, text.find(' '));
  return word == "--set" || word == "megahost" || word.ends_with("/megahost");
}

/// Whether a plain line is data, or drawn.
bool is_kept(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const std::string_view text = line.substr(begin);
  const auto starts = [&](std::string_view word) { return text.starts_with(word); };
  const size_t number = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string_view behind_number = text.substr(number);
  constexpr std::array<std::string_view, 6> kData{"{", "}", "[", "]", "\"", "|"};
  return std::any_of(kData.begin(), kData.end(), starts) ||
         (number > 0 && behind_number.starts_with(" |")); // an excerpt of a file
}

/// The indentation of lines that go on: behind the name of a row, else a little further in.
int indent_of(std::string_view line, int width) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const size_t gap = line.find("  ", begin);
  const size_t text = gap == std::string_view::npos ? gap : line.find_first_not_of(' ', gap);
  if (text != std::string_view::npos) {
    const int column = cells(line.substr(0, text));
    if (2 * column <= width) {
      return column;
    }
  }
  return std::min(static_cast<int>(begin) + 2, width / 2);
}

class Wrapper {
public:
  Wrapper(int width, int indent, bool command)
      : width_(command ? width - 2 : width)
      , indent_(indent)
      , command_(command) {}

  std::string run(std::string_view line) && {
    add_all(line);
    return text_ + row_;
  }

private:
  /// A place where a row may end, and whether a shell has to be told that the command goes on.
  struct Break {
    size_t bytes = 0; ///< bytes of the row before the break, blank included; 0: no break
    bool behind_bar = false, command = false, comment = false;
    bool in_word = false; ///< in a word, such as a pipeline layout, that may be longer than a row
  };

  void add_all(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const auto symbol = symbol_at(text, at);
      at += symbol.size();
      add(symbol);
    }
  }

  void add(std::string_view symbol) {
    const bool blank = symbol == " ";
    if (symbol.front() != '\x1b') {
      if (column_ >= width_ && !blank) {
        break_row();
      }
      ++column_;
    }
    quoted_ = quoted_ != (command_ && !comment_ && symbol == "'");
    if (blank && command_) {
      comment_ = comment_ || row_.ends_with('#');
      command_ = !row_.ends_with(':'); // behind it: what the command does
    }
    row_ += symbol;
    const bool keeps_comment_whole = comment_ && break_.bytes != 0 && !break_.comment;
    if (blank && !quoted_ && column_ > indent_ + 1 && !keeps_comment_whole &&
        !row_.ends_with("# ")) {
      const bool behind_bar = row_.ends_with("| ");
      if (behind_bar || !break_.behind_bar || 2 * column_ < width_) {
        break_ = {row_.size(), behind_bar, command_, comment_};
      }
    }
    const bool in_word = symbol == "|" && !row_.ends_with(" |") && !command_ && !quoted_;
    if (in_word && (break_.bytes == 0 || break_.in_word)) {
      break_ = {.bytes = row_.size(), .in_word = true};
    }
  }

  /// Ends the row at the last place where that may be, if there is one.
  void break_row() {
    if (break_.bytes == 0) {
      return;
    }
    const std::string rest = (break_.comment ? "# " : "") + row_.substr(break_.bytes);
    row_.resize(break_.bytes);
    row_.erase(row_.find_last_not_of(' ') + 1);
    text_ += row_ + (break_.command && !rest.starts_with('#') ? " \\\n" : "\n");
    row_ = std::string(static_cast<size_t>(indent_), ' ');
    column_ = indent_;
    command_ = break_.command;
    quoted_ = comment_ = false; // rows end outside of both
    break_ = {};
    add_all(rest);
  }

  int width_, indent_;
  bool command_;
  bool quoted_ = false, comment_ = false;
  std::string text_, row_;
  int column_ = 0; // cells of the row
  Break break_;
};

struct Sink {
  int descriptor;
};

int width_of(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/// Whole lines are wrapped, pieces of lines go on as they are.
ssize_t write_wrapped(void* cookie, const char* data, size_t size) {
  const int descriptor = static_cast<const Sink*>(cookie)->descriptor;
  const int width = width_of(descriptor);
  const std::string_view text(data, size);
  std::string shown;
  for (size_t begin = 0; begin < size;) {
    const size_t end = text.find('\n', begin);
    const bool whole = end != std::string_view::npos;
    const auto line = text.substr(begin, whole ? end - begin : std::string_view::npos);
    shown += whole && width > 0 ? wrapped(line, width) : std::string(line);
    shown += whole ? "\n" : "";
    begin = whole ? end + 1 : size;
  }
  return write_all(descriptor, shown) ? static_cast<ssize_t>(size) : 0;
}

void wrap(FILE*& stream, int descriptor, int buffering) {
  static std::array<Sink, 3> sinks{{{0}, {1}, {2}}};
  if (!Terminal::of(descriptor).interactive) {
    return;
  }
  cookie_io_functions_t functions{};
  functions.write = write_wrapped;
  // The buffers are as large as the longest output at once: a line that a full buffer cuts is not
  // wrapped.
  static std::array<std::array<char, 1 << 16>, 3> buffers;
  FILE* wrapping = fopencookie(&sinks.at(static_cast<size_t>(descriptor)), "w", functions);
  if (wrapping != nullptr) {
    auto& buffer = buffers.at(static_cast<size_t>(descriptor));
    std::setvbuf(wrapping, buffer.data(), buffering, buffer.size());
    stream = wrapping;
  }
}

} // namespace

std::string wrapped(std::string_view line, int width) {
  const std::string plain = without_escapes(line);
  if (cells(plain) <= width || moves_the_cursor(line) || is_kept(plain)) {
    return std::string(line);
  }
  const bool command = is_command(plain);
  const auto begin = static_cast<int>(plain.find_first_not_of(' '));
  return Wrapper(width, command ? begin + 2 : indent_of(plain, width), command).run(line);
}

void wrap_terminals() {
  wrap(stdout, STDOUT_FILENO, _IOLBF);
  wrap(stderr, STDERR_FILENO, _IONBF);
}

} // namespace mh
