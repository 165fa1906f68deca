#pragma once
/// `megahost plugins check`: named tests of a plugin, each in a child process.
///
/// ```cpp
/// const auto results = mh::check_plugin("build/optimizers-lion.so", {.options = given});
/// ```
///
/// A test returns where the plugin passes, and says otherwise by `fail` or `not_applicable`.
/// Tests of the file open nothing; tests of the plugin get it opened; tests of an offer run for
/// each of the kinds they are of.
///
/// Source:  the idea of clap-validator (one process for each test, one sentence for each failure)

#include "core/plugin/open.hpp"
#include "megahost/kind.hpp"
#include "megahost/registry.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct CheckOptions {
  std::vector<std::string> include{}; ///< names of tests; empty: all
  bool in_process = false;            ///< for debuggers: no child processes
  Value options = Table();            ///< by section, for fields that a plugin requires
};

struct CheckResult {
  enum class Is : uint8_t { passed, failed, not_applicable };

  std::string name, about;
  Is is = Is::passed;
  std::string why;  ///< one sentence, if it has not passed
  std::string help; ///< a sentence on what to do
};

/// Runs the tests, in the order of the table.
///
/// Throws:  mh::Error if the file is no shared library, or a name of `include` is no test
[[nodiscard]] std::vector<CheckResult>
check_plugin(const std::filesystem::path& file, const CheckOptions& options);

/// The sizes that the tests give the plugin's parts, a line each: "architecture shift: layers 2,
/// ...". Empty if it offers no model, or cannot be opened.
[[nodiscard]] std::vector<std::string>
check_sizes(const std::filesystem::path& file, const CheckOptions& options);

namespace check {

/// The subject of a test.
struct Case {
  const std::filesystem::path& file;
  const CheckOptions& given;
  const OpenedPlugin* plugin = nullptr;   ///< not for tests of the file
  const Registry::Entry* entry = nullptr; ///< only for tests of an offer
};

enum class Of : uint8_t { file, plugin, offer };

struct Test {
  std::string_view name;
  std::string_view about; ///< the property that holds if it passes
  Of of;
  void (*run)(const Case&);
  std::vector<Kind> kinds{}; ///< kinds of offers that it tests; empty: all
};

/// Every test there is: those that tests.hpp lists.
[[nodiscard]] const std::vector<Test>& tests();

struct Failed {
  std::string why, help;
};

struct NotApplicable {
  std::string why;
  std::string give; ///< options of `plugins check` with which the test would run; empty: none
};

[[noreturn]] void fail(std::string why, std::string help = "");
[[noreturn]] void not_applicable(std::string why, std::string give = "");

} // namespace check

} // namespace mh
