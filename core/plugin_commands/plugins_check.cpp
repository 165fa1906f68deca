#include "core/conformance/check.hpp"
#include "core/draw/terminal.hpp"
#include "core/plugin_commands/commands.hpp"
#include "core/plugin_commands/plugin_tests.hpp"
#include "core/recipe/load.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

namespace mh {

namespace {

using Is = CheckResult::Is;

struct PaintedWord {
  const char* text;
  Paint paint;
};

constexpr std::array<PaintedWord, 3> kWords{{
    {"passed", Paint::green},
    {"failed", Paint::red},
    {"left out", Paint::dim},
}};

const PaintedWord& word(Is is) {
  return kWords[static_cast<size_t>(is)];
}

size_t count(const std::vector<CheckResult>& results, Is is) {
  return static_cast<size_t>(std::count_if(results.begin(), results.end(), [is](const auto& r) {
    return r.is == is;
  }));
}

void print_table(const std::vector<CheckResult>& results, const Terminal& terminal) {
  size_t width = 0;
  for (const CheckResult& result : results) {
    width = std::max(width, result.name.size());
  }
  for (const CheckResult& result : results) {
    std::string mark = word(result.is).text;
    mark += std::string(10 - mark.size(), ' ');
    std::printf(
        "  %s%s  %s\n",
        terminal.paint(word(result.is).paint, mark).c_str(),
        (result.name + std::string(width - result.name.size(), ' ')).c_str(),
        (result.is == Is::not_applicable ? terminal.paint(Paint::dim, result.why) : result.about)
            .c_str()
    );
    if (result.is == Is::failed) {
      std::printf("            why: %s\n", result.why.c_str());
      if (!result.help.empty()) {
        std::printf("            help: %s\n", result.help.c_str());
      }
    }
  }
  std::printf(
      "%zu passed, %zu failed, %zu left out\n",
      count(results, Is::passed),
      count(results, Is::failed),
      count(results, Is::not_applicable)
  );
}

void print_json(
    const std::string& file,
    const std::vector<std::string>& sizes,
    const std::vector<CheckResult>& results
) {
  nlohmann::ordered_json tests = nlohmann::ordered_json::array();
  for (const CheckResult& result : results) {
    tests.push_back(
        {{"name", result.name}, {"about", result.about}, {"result", word(result.is).text}}
    );
    if (result.is != Is::passed) {
      tests.back()["why"] = result.why;
    }
    if (!result.help.empty()) {
      tests.back()["help"] = result.help;
    }
  }
  const nlohmann::ordered_json all{
      {"file", file},
      {"sizes", sizes},
      {"passed", count(results, Is::passed)},
      {"failed", count(results, Is::failed)},
      {"left_out", count(results, Is::not_applicable)},
      {"tests", tests}};
  std::puts(all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

} // namespace

Value check_settings(const std::vector<std::string>& sets) {
  Value options = Table();
  for (const std::string& set : sets) {
    options = merge(options, set_layer(set).tree);
  }
  return options;
}

void check_before_install(const std::filesystem::path& file, const std::vector<std::string>& sets) {
  auto results = check_plugin(file, {.options = check_settings(sets)});
  const size_t failed = count(results, Is::failed);
  if (failed == 0) {
    std::printf(
        "  %zu tests passed, %zu left out\n",
        count(results, Is::passed),
        count(results, Is::not_applicable)
    );
    return;
  }
  std::erase_if(results, [](const CheckResult& result) { return result.is != Is::failed; });
  print_table(results, Terminal::of(STDOUT_FILENO));
  throw Error(
      std::to_string(failed) + (failed == 1 ? " test" : " tests") +
          " of megahost plugins check failed, and nothing was installed",
      "mend what they name, or give --no-check",
      exit_code::other
  );
}

namespace {

/// "a,b" and "c" as three.
std::vector<std::string> names_of(const std::vector<std::string>& lists) {
  std::vector<std::string> names;
  for (const std::string& list : lists) {
    std::istringstream some(list);
    names.emplace_back();
    std::getline(some, names.back(), ',');
    for (std::string name; std::getline(some >> std::ws, name, ',');) {
      names.push_back(name);
    }
  }
  return names;
}

} // namespace

int command_plugins_check(const Invocation& invocation, Host&) {
  const std::string& file = invocation.arguments.front();
  const CheckOptions options{
      .include = names_of(invocation.all("--include")),
      .in_process = invocation.has("--in-process"),
      .options = check_settings(invocation.all("--set"))};
  // The dynamic linker searches its own folders for a name without a slash.
  const std::filesystem::path path = file;
  const std::filesystem::path named = path.has_parent_path() ? path : "." / path;
  const auto results = check_plugin(named, options);
  const auto sizes = check_sizes(named, options);
  if (invocation.has("--json")) {
    print_json(file, sizes, results);
  } else {
    for (const std::string& line : sizes) {
      std::printf("%s\n", line.c_str());
    }
    print_table(results, Terminal::of(STDOUT_FILENO));
  }
  return count(results, Is::failed) > 0 ? exit_code::other : 0;
}

} // namespace mh
