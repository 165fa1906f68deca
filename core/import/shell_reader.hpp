#pragma once
/// A shell script's words, with what its variables and quotes make of them.

#include "core/import/shell.hpp"
#include "core/import/shell_value.hpp"

#include <string>
#include <string_view>

namespace mh::shell {

/// Reads words from a text. Lines are counted for messages.
class WordReader {
public:
  WordReader(
      std::string_view text,
      std::string name,
      Variables& variables,
      const ShellEnvironment& environment,
      int depth = 0
  );

  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }

  [[nodiscard]] int line() const { return line_; }

  /// Skips blanks, continued lines and a comment.
  void skip_blanks();
  /// Takes the operator that comes next, "" if a word does: ; ;; & && | || |& ( ) < > or the end of
  /// the line, behind which here-documents are read.
  std::string take_operator();
  /// Takes the word behind a redirection; nothing is written or read.
  void drop_redirection(const std::string& sign);

  /// The here-documents behind the last line's end, with what variables make of them.
  ShellWords take_here_documents();

  /// The name of a variable that is assigned to here, "" if it is none: `NAME=`, `NAME+=`. It is
  /// taken; `ret_adds` is true for +=.
  std::string take_assignment(bool& ret_adds);
  /// Takes the value that is assigned: an array in parentheses, or one word.
  ShellWords take_value();
  /// The words that come next: several where an unquoted variable holds blanks. `ret_plain` is
  /// true if it was written as it is, without quotes and variables.
  ShellWords take_words(bool& ret_plain);

  /// "train.sh:12".
  [[nodiscard]] std::string where() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& hint = "") const;

  [[nodiscard]] int depth() const { return depth_; }

private:
  /// Words that grow piece by piece.
  struct Building {
    ShellWords done{};
    Word word{};
    bool started = false;

    void add(const Word& piece);
    void next();
    ShellWords finish();
  };

  [[nodiscard]] char peek(size_t ahead = 0) const;
  char take();
  /// The character, or the home folder where it is a ~ that a word begins with.
  std::string home_or(char c, bool inside);
  void single_quotes(Building& building);
  void double_quotes(Building& building);
  /// False if it is an array, or words, of which there are none.
  bool expand(Building& building, bool quoted);
  std::string until_closing(char open, char close);
  ShellWords variable(const std::string& name);
  /// Reads the text between the braces of ${...}.
  ShellWords parameter(const std::string& inside, bool& ret_several);
  Word text_of(const std::string& text);
  void read_here_documents();

  std::string_view text_;
  std::string name_;
  Variables& variables_;
  const ShellEnvironment& environment_;
  int depth_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<std::string> here_ends_; ///< ends of documents that begin behind this line
  ShellWords here_documents_;
};

/// All words as one, with blanks between them.
[[nodiscard]] Word joined(const ShellWords& words);

} // namespace mh::shell
