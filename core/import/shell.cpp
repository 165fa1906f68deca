#include "core/import/shell.hpp"

#include "core/import/shell_reader.hpp"
#include "megahost/error.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

namespace mh {

namespace {

using shell::joined;
using shell::ShellWords;
using shell::Variables;
using shell::Word;
using shell::WordReader;

/// The truth of a test as far as it is known, and with it of the commands that depend on it.
enum class Truth : uint8_t { no, yes, unknown };

Truth negated(Truth truth) {
  return truth == Truth::yes ? Truth::no : truth == Truth::no ? Truth::yes : truth;
}

Truth both(Truth a, Truth b) {
  return a == Truth::no || b == Truth::no             ? Truth::no
         : a == Truth::unknown || b == Truth::unknown ? Truth::unknown
                                                      : Truth::yes;
}

Truth truth_of(std::optional<bool> known) {
  return !known ? Truth::unknown : *known ? Truth::yes : Truth::no;
}

/// "pretrain_gpt.py" at the end of a path.
bool is_program(const std::string& word) {
  const std::string file = word.substr(word.rfind('/') + 1);
  return file.starts_with("pretrain_") && file.ends_with(".py") &&
         file.find_first_of(" \t\n") == std::string::npos;
}

bool holds_program(const std::string& word) {
  const size_t found = word.find("pretrain_");
  return found != std::string::npos && word.find(".py", found) != std::string::npos &&
         word.find_first_of(" \t\n") != std::string::npos;
}

/// Goes through a script until the training command.
class Script {
public:
  Script(
      std::string_view text,
      const std::string& name,
      Variables& variables,
      const ShellEnvironment& environment,
      int depth
  )
      : reader_(text, name, variables, environment, depth)
      , name_(name)
      , variables_(variables)
      , environment_(environment) {}

  std::optional<ShellCommand> run() {
    while (!reader_.at_end() && !found_) {
      command();
    }
    return std::move(found_);
  }

private:
  /// if ... fi, or another block.
  struct Block {
    Truth runs = Truth::yes;
    Truth taken = Truth::no; ///< whether an earlier branch of an `if` or `case` ran
    std::string loop{};      ///< "while" or "until" before its `do`
    ShellWords subject{};    ///< word that a `case` compares
    bool is_case = false;
    bool wants_pattern = false; ///< a branch's pattern of a `case` comes next

    /// A branch that runs where `test` holds and no branch before it did.
    void branch(Truth test) {
      runs = taken == Truth::yes ? Truth::no : both(test, negated(taken));
      taken = taken == Truth::yes || test == Truth::yes           ? Truth::yes
              : taken == Truth::unknown || test == Truth::unknown ? Truth::unknown
                                                                  : Truth::no;
    }
  };

  [[nodiscard]] Truth mode() const {
    Truth truth = chain_;
    for (const Block& block : blocks_) {
      truth = both(truth, block.runs);
    }
    return truth;
  }

  /// Up to the next separator.
  void command() {
    if (!blocks_.empty() && blocks_.back().wants_pattern) {
      pattern();
      return;
    }
    ShellWords words;
    bool declares = false, assigned = false;
    while (true) {
      reader_.skip_blanks();
      const std::string sign = reader_.take_operator();
      if (sign == "<" || sign == ">" || sign == "<<" || sign == ">>" || sign == ">&" ||
          sign == "<&" || sign == ">|" || sign == "&>") {
        reader_.drop_redirection(sign);
        continue;
      }
      if (sign == "(" && !words.empty()) { // name() { ... }
        function_ = true;
        words.clear();
        continue;
      }
      if (!sign.empty()) {
        finish(words, assigned, sign);
        return;
      }
      if (words.empty() || declares) {
        bool adds = false;
        const std::string name = reader_.take_assignment(adds);
        if (!name.empty()) {
          assign(name, adds);
          assigned = true;
          continue;
        }
      }
      bool plain = false;
      const ShellWords more = reader_.take_words(plain);
      if (words.empty() && plain && more.size() == 1) {
        if (more.front().text == "case") {
          case_of();
          return;
        }
        if (keyword(more.front().text)) {
          continue;
        }
      }
      words.insert(words.end(), more.begin(), more.end());
      const std::string& first = words.empty() ? std::string() : words.front().text;
      declares = first == "declare" || first == "export" || first == "local" ||
                 first == "readonly" || first == "typeset";
    }
  }

  void assign(const std::string& name, bool adds) {
    const int line = reader_.line();
    ShellWords value = reader_.take_value();
    const Truth truth = mode();
    if (truth == Truth::no) {
      return;
    }
    ShellWords& variable = variables_[name];
    if (truth == Truth::unknown) {
      variable = {
          {"",
           name_ + ":" + std::to_string(line) + ": " + name +
               " is set in a branch or loop that is not followed: write its value there"}};
    } else if (!adds) {
      variable = std::move(value);
    } else if (value.size() == 1 && variable.size() == 1) {
      variable.front().append(value.front());
    } else {
      variable.insert(variable.end(), value.begin(), value.end());
    }
  }

  /// Handles a word that begins or ends a block; false if it is none.
  bool keyword(const std::string& word) {
    if (word == "if") {
      blocks_.push_back({});
    } else if (word == "then" && !blocks_.empty()) {
      blocks_.back().branch(last_);
    } else if (word == "elif" && !blocks_.empty()) {
      blocks_.back().runs = Truth::yes; // its test is read
    } else if (word == "else" && !blocks_.empty()) {
      blocks_.back().runs = negated(blocks_.back().taken);
    } else if (word == "for" || word == "select") {
      blocks_.push_back({Truth::unknown});
    } else if (word == "while" || word == "until") {
      blocks_.push_back({.loop = word}); // its test is read
    } else if (word == "do" && !blocks_.empty() && !blocks_.back().loop.empty()) {
      Block& block = blocks_.back();
      const Truth enters = std::exchange(block.loop, {}) == "while" ? last_ : negated(last_);
      block.runs = enters == Truth::no ? Truth::no : Truth::unknown; // it may run many times
    } else if (word == "function") {
      function_ = true;
    } else if (word == "{") {
      blocks_.push_back({std::exchange(function_, false) ? Truth::unknown : mode()});
    } else if (word == "fi" || word == "done" || word == "esac" || word == "}") {
      if (blocks_.empty()) {
        reader_.refuse("`" + word + "` without its beginning");
      }
      blocks_.pop_back();
    } else {
      return word == "do" || word == "time" || word == "!" || word == "exec";
    }
    return true;
  }

  /// case WORD in
  void case_of() {
    Block block{.is_case = true, .wants_pattern = true};
    bool plain = false;
    reader_.skip_blanks();
    block.subject = reader_.take_words(plain);
    reader_.skip_blanks();
    if (joined(reader_.take_words(plain)).text != "in") {
      reader_.refuse("`case` without its `in`");
    }
    blocks_.push_back(std::move(block));
  }

  /// "pattern | pattern)" of a `case`, or its `esac`.
  void pattern() {
    Block& block = blocks_.back();
    const Word subject = joined(block.subject);
    Truth matches = Truth::no;
    while (true) {
      reader_.skip_blanks();
      const std::string sign = reader_.take_operator();
      if (sign == ")") {
        block.wants_pattern = false;
        block.branch(matches);
        return;
      }
      if (reader_.at_end()) {
        reader_.refuse("`case` without its `esac`");
      }
      if (!sign.empty()) { // a line's end, (, |
        continue;
      }
      bool plain = false;
      const Word word = joined(reader_.take_words(plain));
      if (plain && word.text == "esac") {
        blocks_.pop_back();
        return;
      }
      const bool known = (subject.unknown.empty() || subject.unset) && word.unknown.empty();
      const bool equal = plain ? fnmatch(word.text.c_str(), subject.text.c_str(), 0) == 0
                               : word.text == subject.text;
      matches = matches == Truth::yes       ? matches
                : plain && word.text == "*" ? Truth::yes
                : !known                    ? Truth::unknown
                : equal                     ? Truth::yes
                                            : matches;
    }
  }

  void finish(const ShellWords& words, bool assigned, const std::string& sign) {
    const ShellWords documents = reader_.take_here_documents();
    if (!words.empty() && mode() != Truth::no) {
      look_at(words);
      look_into(words.front().text, documents);
    }
    if (!words.empty() && mode() == Truth::yes) {
      const std::string& first = words.front().text;
      const bool is_test = first == "[" || first == "[[" || first == "test";
      last_ = is_test ? truth_of(shell::test_of(words)) : truth_of(first != "false");
    } else if (!words.empty() && mode() == Truth::unknown) {
      last_ = Truth::unknown;
    } else if (assigned && words.empty()) {
      last_ = Truth::yes;
    }
    if (sign == ";;" && !blocks_.empty() && blocks_.back().is_case) {
      blocks_.back().wants_pattern = true;
    }
    chain_ = sign == "&&" ? last_ : sign == "||" ? negated(last_) : Truth::yes;
  }

  /// Takes the training command if this is it.
  void look_at(const ShellWords& words) {
    const std::string& first = words.front().text;
    if (first == "echo" || first == "printf" || first == "[" || first == "[[" || first == "test") {
      return;
    }
    if (first == "shift" && mode() == Truth::yes) {
      shift(words);
    }
    for (size_t i = 0; i < words.size() && !found_; ++i) {
      if (is_program(words[i].text)) {
        take(words, i);
      } else if (holds_program(words[i].text)) {
        if (!words[i].unknown.empty()) {
          refuse_unknown(words[i]);
        }
        found_ =
            Script(words[i].text, reader_.where(), variables_, environment_, reader_.depth() + 1)
                .run();
      }
    }
  }

  /// Takes the training command of a script that a shell or a scheduler reads: `sbatch << EOF`.
  void look_into(const std::string& reader, const ShellWords& documents) {
    const std::string file = reader.substr(reader.rfind('/') + 1);
    for (const Word& document : documents) {
      const bool script = file == "sbatch" || file == "srun" || file == "bash" || file == "sh";
      if (script && !found_ && holds_program(document.text)) {
        found_ =
            Script(document.text, reader_.where(), variables_, environment_, reader_.depth() + 1)
                .run();
      }
    }
  }

  /// Drops words of the script's command line.
  void shift(const ShellWords& words) {
    const auto count =
        words.size() > 1 ? shell::arithmetic(words[1].text) : std::optional<int64_t>(1);
    ShellWords left = variables_["@"];
    const auto dropped = std::clamp<int64_t>(count.value_or(1), 0, std::ssize(left));
    left.erase(left.begin(), left.begin() + dropped);
    shell::set_command_line(variables_, left);
  }

  [[noreturn]] static void refuse_unknown(const Word& word) {
    throw Error(
        word.unknown, "or let bash find out, with --run, or give the whole command in quotes"
    );
  }

  void take(const ShellWords& words, size_t program) {
    ShellCommand command;
    command.program = words[program].text;
    for (size_t i = 0; i < program; ++i) {
      command.launcher.push_back(words[i].text); // what is not known of it is missing
    }
    for (size_t i = program + 1; i < words.size(); ++i) {
      if (!words[i].unknown.empty()) {
        refuse_unknown(words[i]);
      }
      command.arguments.push_back(words[i].text);
    }
    found_ = std::move(command);
  }

  WordReader reader_;
  std::string name_;
  Variables& variables_;
  const ShellEnvironment& environment_;
  std::vector<Block> blocks_;
  Truth last_ = Truth::yes;  // result of the command before
  Truth chain_ = Truth::yes; // whether this command runs, behind && or ||
  bool function_ = false;    // the next brace is a function's
  std::optional<ShellCommand> found_;
};

} // namespace

std::optional<ShellCommand> training_command(
    const std::vector<std::string>& words,
    const std::string& name,
    const ShellEnvironment& environment
) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (is_program(words[i])) {
      const auto program = words.begin() + static_cast<ptrdiff_t>(i);
      return ShellCommand{{words.begin(), program}, *program, {program + 1, words.end()}};
    }
    if (holds_program(words[i])) {
      Variables variables;
      return Script(words[i], name, variables, environment, 0).run();
    }
  }
  return std::nullopt;
}

ShellCommand find_training_command(
    const std::string& text,
    const std::string& name,
    const ShellEnvironment& environment,
    const std::vector<std::string>& words
) {
  Variables variables;
  variables["0"] = {{name}};
  shell::set_command_line(variables, {words.begin(), words.end()});
  const size_t begin = text.find_first_not_of(" \t\n");
  const bool bare = begin != std::string::npos && text.substr(begin, 2) == "--";
  const std::string script = bare ? "pretrain_gpt.py " + text.substr(begin) : text;
  const auto found = Script(script, name, variables, environment, 0).run();
  if (!found) {
    throw Error(
        name + " has no command that runs a pretrain_gpt.py",
        "give the command in quotes: megahost recipe import-args 'pretrain_gpt.py --num-layers 2 "
        "...'"
    );
  }
  return *found;
}

} // namespace mh
