// The program: parses the command line, checks a recipe's syntax, then opens libmegahost.so and
// with it LibTorch. --version, --help and mistakes up to there never load it.

#include "core/base/text.hpp"
#include "core/cli/help.hpp"
#include "core/cli/invocation.hpp"
#include "core/cli/main/parse.hpp"
#include "core/config.hpp"
#include "core/draw/report.hpp"
#include "core/draw/wrap.hpp"
#include "core/language/read.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <string>

namespace {

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

[[noreturn]] void refuse_command(const std::string& word) {
  std::vector<std::string> known;
  for (const mh::Command& command : mh::commands()) {
    known.push_back(command.name.substr(0, command.name.find(' ')));
  }
  // The commands' names in other programs.
  static const std::map<std::string, std::string> others{
      {"train", "run"},
      {"pretrain", "run"},
      {"finetune", "run"},
      {"evaluate", "eval"},
      {"sample", "generate"},
      {"inference", "generate"},
      {"estimate", "plan"},
      {"convert", "recipe import-args"},
      {"import-args", "recipe import-args"},
      {"from-hf", "recipe from-hf"}};
  const auto other = others.find(word);
  const auto meant = other == others.end() ? mh::nearest(word, known) : other->second;
  throw mh::Error(
      "there is no command " + word,
      (meant ? "did you mean " + *meant + "? " : std::string()) +
          "megahost --help lists the commands"
  );
}

int print_help(const std::vector<std::string>& words) {
  const mh::Terminal terminal = mh::Terminal::of(STDOUT_FILENO);
  if (words.empty()) {
    print(mh::overview(terminal));
  } else if (const mh::Named named = mh::named_command(words); named.command != nullptr) {
    const std::string group = mh::group_help(named.command->name, terminal);
    print(mh::help(*named.command, terminal) + (group.empty() ? "" : "\n" + group));
  } else if (const std::string group = mh::group_help(words.front(), terminal); !group.empty()) {
    print(group);
  } else {
    refuse_command(words.front());
  }
  return 0;
}

int run_heavy(const mh::Invocation& invocation);

/// Takes `--plugin FILE` out of the words of help, in which other options are topics.
std::vector<std::string> take_plugins(std::vector<std::string>& ret_words) {
  std::vector<std::string> files;
  for (auto word = ret_words.begin(); word != ret_words.end();) {
    if (*word == "--plugin" && word + 1 != ret_words.end()) {
      files.push_back(*(word + 1));
      word = ret_words.erase(word, word + 2);
    } else {
      ++word;
    }
  }
  return files;
}

/// Commands, groups, concepts and terms are known here; the library knows plugins and keys.
int print_topic(std::vector<std::string> words) {
  const std::vector<std::string> plugins = take_plugins(words);
  if (words.empty()) {
    return print_help(words);
  }
  const mh::Terminal terminal = mh::Terminal::of(STDOUT_FILENO);
  const std::string topic = mh::join(words, " ");
  std::vector<std::string> parts;
  if (const mh::Command* command = mh::find_command(topic)) {
    parts.push_back(mh::help(*command, terminal));
  }
  if (std::string group = mh::group_help(topic, terminal); !group.empty()) {
    parts.push_back(std::move(group));
  }
  if (const mh::Topic* concept_page = mh::find_topic(topic)) {
    parts.push_back(mh::topic_help(*concept_page, terminal));
  }
  const mh::Term* term = mh::find_term(topic);
  if (term != nullptr) {
    parts.push_back(mh::term_help(*term, terminal));
  }
  print(mh::join(parts, "\n"));
  const bool all = mh::recipe_schema().find(topic) == nullptr && term == nullptr;
  if (!parts.empty() && all && plugins.empty()) {
    return 0;
  }
  std::fflush(stdout);
  mh::Invocation invocation{"help", words, {}};
  if (!plugins.empty()) {
    invocation.options["--plugin"] = plugins;
  }
  return run_heavy(invocation);
}

int run_heavy(const mh::Invocation& invocation) {
  const std::filesystem::path here = std::filesystem::canonical("/proc/self/exe").parent_path();
  std::filesystem::path library = here / "libmegahost.so";
  if (!std::filesystem::exists(library)) {
    library = here / MH_LIB_FROM_BIN / "libmegahost.so";
  }
  // Threads that wait for one another spin for about 0.1 ms, enough between the operations of a
  // step, and then sleep: spinning forever makes steps ten times slower next to other programs,
  // sleeping at once makes them a tenth slower alone. Read once, when libgomp is loaded.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("GOMP_SPINCOUNT", "20000", /*overwrite=*/0);
  }
  // Global, as if it were linked: plugins and LibTorch then share one copy of every symbol.
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  if (handle == nullptr) {
    const std::string cause = dlerror();
    throw mh::Error(
        "libmegahost.so cannot be opened: " + cause,
        "unset LD_LIBRARY_PATH if it names another LibTorch, or build megahost again",
        mh::exit_code::other
    );
  }
  const auto run = reinterpret_cast<decltype(&mh_run_command)>(dlsym(handle, "mh_run_command"));
  if (run == nullptr) {
    throw mh::Error(
        library.string() + " is of another megahost: it lacks mh_run_command",
        "build megahost again",
        mh::exit_code::other
    );
  }
  return run(invocation);
}

/// The launcher says how it was called; else the first word of the command line is it.
std::string program_name(const std::string& first_word) {
  const char* launcher = std::getenv("MEGAHOST_LAUNCHER");
  return launcher != nullptr && *launcher != '\0' ? launcher : first_word;
}

/// `words`: those of the command line that are the command's.
int run(const std::vector<std::string>& words, const std::vector<std::string>& command_line) {
  const mh::Named named = mh::named_command(words);
  if (named.command == nullptr) {
    if (!mh::group_help(words.front(), {}).empty()) {
      throw mh::Error(
          words.size() < 2 ? "megahost " + words[0] + " needs another word"
                           : "there is no command " + words[0] + " " + words[1],
          "megahost " + words[0] + " --help lists them"
      );
    }
    refuse_command(words.front());
  }
  mh::Invocation invocation =
      mh::parse(*named.command, {words.begin() + static_cast<ptrdiff_t>(named.words), words.end()});
  invocation.program = program_name(command_line.front());
  invocation.command_line = command_line;
  for (size_t i = 0; i < named.command->arguments.size(); ++i) {
    const std::string& name = named.command->arguments[i].name;
    if (name == "RECIPE" || name == "OTHER") {
      // One that is named without its folder or extension is left to the library, and a rank that
      // a command starts is handed what that command has read.
      if (const std::string& recipe = invocation.arguments[i];
          std::getenv("MEGAHOST_HANDED_FD") == nullptr &&
          std::filesystem::is_regular_file(recipe)) {
        mh::check_syntax(recipe);
      }
    }
  }
  return run_heavy(invocation);
}

/// `command_line`: the program first.
int answer(const std::vector<std::string>& command_line) {
  std::vector<std::string> words(command_line.begin() + 1, command_line.end());
  mh::wrap_terminals();
  try {
    if (std::erase(words, "--no-color") > 0) {
      setenv("NO_COLOR", "1", /*overwrite=*/1);
    }
    if (!words.empty() && words.front() == "--version") {
      print("megahost " MH_VERSION " (" MH_BUILT_FOR ")\n");
      return 0;
    }
    if (words.empty()) {
      return print_help(words);
    }
    for (const std::string& word : words) {
      if (word == "--help" || word == "-h") {
        std::erase_if(words, [](const std::string& other) { return other.starts_with("-"); });
        return print_help(words);
      }
    }
    if (words.front() == "help") {
      return print_topic({words.begin() + 1, words.end()});
    }
    return run(words, command_line);
  } catch (const std::exception& error) {
    return mh::report(error);
  }
}

/// Ends the process without the destructors of what libraries hold forever: LibTorch would take
/// its thousands of operators away one by one, a quarter of the time of a short command. The
/// address sanitizer looks for leaks after them.
[[noreturn]] void leave(int status) {
  std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
  std::exit(status);
#else
  _exit(status);
#endif
}

} // namespace

int main(int argc, char** argv) {
  leave(answer(
      argc > 0 ? std::vector<std::string>(argv, argv + argc) : std::vector<std::string>{"megahost"}
  ));
}
