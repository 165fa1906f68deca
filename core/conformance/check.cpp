#include "core/conformance/check.hpp"

#include "core/base/text.hpp"
#include "core/conformance/instance.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/plugin/child.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>

namespace mh {

namespace check {

void fail(std::string why, std::string help) {
  throw Failed{std::move(why), std::move(help)};
}

void not_applicable(std::string why, std::string give) {
  throw NotApplicable{std::move(why), std::move(give)};
}

namespace {

constexpr std::chrono::seconds kPatience{120};

using Is = CheckResult::Is;

bool concerns(const Test& test, Kind kind) {
  return test.kinds.empty() ||
         std::find(test.kinds.begin(), test.kinds.end(), kind) != test.kinds.end();
}

/// The result of a test for one part, or for the whole.
CheckResult outcome(const Test& test, const Case& subject) {
  CheckResult result{std::string(test.name), std::string(test.about), Is::passed, "", ""};
  try {
    test.run(subject);
  } catch (const Failed& failed) {
    result = {result.name, result.about, Is::failed, failed.why, failed.help};
  } catch (const NotApplicable& other) {
    result = {result.name, result.about, Is::not_applicable, other.why, ""};
  } catch (const Error& error) {
    result = {result.name, result.about, Is::failed, error.what(), error.hint()};
  } catch (const c10::Error& error) {
    result.is = Is::failed;
    result.why = std::string("it threw: ") + error.what_without_backtrace();
  } catch (const std::exception& error) {
    const std::string what = error.what(); // which may be empty
    result.is = Is::failed;
    result.why =
        "it threw " + c10::demangle(typeid(error).name()) + (what.empty() ? "" : ": " + what);
  } catch (...) {
    result.is = Is::failed;
    result.why = "it threw something that is no std::exception";
  }
  return result;
}

/// The test on each offer that it concerns: the first failure, else passed if one passed.
CheckResult offers_outcome(const Test& test, Case subject) {
  CheckResult result{std::string(test.name), std::string(test.about), Is::not_applicable, "", ""};
  std::vector<std::string> kinds;
  for (const Kind kind : test.kinds) {
    kinds.emplace_back(info(kind).name);
  }
  result.why = "for " + join(kinds);
  for (const auto& entry : subject.plugin->registry.entries()) {
    if (!concerns(test, entry.kind)) {
      continue;
    }
    subject.entry = &entry;
    CheckResult one = outcome(test, subject);
    if (one.is == Is::failed) {
      one.why = std::string(info(entry.kind).name) + " " + entry.name + ": " + one.why;
      return one;
    }
    if (one.is == Is::passed || result.is == Is::not_applicable) {
      result = std::move(one);
    }
  }
  return result;
}

CheckResult
run_here(const Test& test, const std::filesystem::path& file, const CheckOptions& given) {
  if (test.of == Of::file) {
    return outcome(test, {file, given});
  }
  try {
    const OpenedPlugin plugin = open_plugin(file);
    const Case subject{file, given, &plugin};
    return test.of == Of::plugin ? outcome(test, subject) : offers_outcome(test, subject);
  } catch (const Error& error) {
    return {
        std::string(test.name), std::string(test.about), Is::failed, error.what(), error.hint()};
  }
}

CheckResult
run_in_child(const Test& test, const std::filesystem::path& file, const CheckOptions& given) {
  const ChildResult child = in_child(
      [&] {
        const CheckResult result = run_here(test, file, given);
        return nlohmann::json{int(result.is), result.why, result.help}.dump(
            -1, ' ', false, nlohmann::json::error_handler_t::replace
        );
      },
      kPatience
  );
  CheckResult result{std::string(test.name), std::string(test.about), Is::failed, "", ""};
  const auto json = nlohmann::json::parse(child.text, nullptr, false);
  if (!child.ended.empty() || json.is_discarded()) {
    result.why = "the process that ran it ended: " + child.ended_and_printed();
    result.help = "megahost plugins check FILE --in-process --include " + result.name +
                  " runs it where a debugger can see it";
    return result;
  }
  result.is = static_cast<Is>(json[0].get<int>());
  result.why = json[1];
  result.help = json[2];
  return result;
}

std::vector<const Test*> chosen(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Test& test : tests()) {
    known.emplace_back(test.name);
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const auto meant = nearest(name, known);
      throw Error(
          "there is no test " + name,
          (meant ? "did you mean " + *meant + "? " : std::string()) + "there are " + join(known)
      );
    }
  }
  std::vector<const Test*> some;
  for (const Test& test : tests()) {
    if (names.empty() || std::find(names.begin(), names.end(), test.name) != names.end()) {
      some.push_back(&test);
    }
  }
  return some;
}

/// The options that the plugin's parts take, as keys of a recipe.
std::vector<std::string> keys_of(const Registry& registry) {
  std::vector<std::string> keys;
  for (const auto& entry : registry.entries()) {
    for (const Field& field : entry.schema.fields) {
      std::string key = option_path(entry.kind) + "." + field.name;
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        keys.push_back(std::move(key));
      }
    }
  }
  return keys;
}

/// The first value of `given` that is none of these keys; empty if there is none.
std::string
first_unknown(const Value& given, const std::vector<std::string>& keys, const std::string& path) {
  if (std::find(keys.begin(), keys.end(), path) != keys.end()) {
    return "";
  }
  if (!given.is_table()) {
    return path;
  }
  for (const auto& entry : given.as_table()) {
    std::string found =
        first_unknown(entry.value, keys, path.empty() ? entry.key : path + "." + entry.key);
    if (!found.empty()) {
      return found;
    }
  }
  return "";
}

/// Throws:  mh::Error for an option that no part of the plugin takes
void require_taken(const std::filesystem::path& file, const CheckOptions& given) {
  const auto find = [&] {
    const OpenedPlugin plugin = open_plugin(file);
    const auto keys = keys_of(plugin.registry);
    const std::string unknown = first_unknown(given.options, keys, "");
    const auto same = std::find_if(keys.begin(), keys.end(), [&](const std::string& key) {
      return key.ends_with("." + unknown); // the section is missing
    });
    const std::string meant = same != keys.end() ? *same : nearest(unknown, keys).value_or("");
    return nlohmann::json{unknown, meant, join(keys)}.dump();
  };
  const std::string text = given.in_process ? find() : in_child(find, kPatience).text;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array() || json[0].get<std::string>().empty()) { // or the tests say that it is shut
    return;
  }
  const std::string unknown = json[0], meant = json[1], keys = json[2];
  throw Error(
      "--set " + unknown + ": nothing in " + file.string() + " takes it",
      (meant.empty() ? "" : "did you mean " + meant + "? ") +
          (keys.empty() ? "it has no options" : "its options are " + keys)
  );
}

} // namespace

} // namespace check

std::vector<std::string>
check_sizes(const std::filesystem::path& file, const CheckOptions& options) {
  const auto lines = [&] {
    nlohmann::json all = nlohmann::json::array();
    const OpenedPlugin plugin = open_plugin(file);
    for (const auto& entry : plugin.registry.entries()) {
      const check::Case c{file, options, &plugin, &entry};
      if (entry.kind == Kind::architecture) {
        all.push_back(
            "architecture " + entry.name + ": " + check::sizes_of(c) + "; " +
            std::to_string(check::kBatch) + " samples of " + std::to_string(check::kSeq) +
            " tokens below " + std::to_string(check::kVocab)
        );
      }
    }
    return all.dump();
  };
  try {
    const std::string text = options.in_process ? lines() : in_child(lines, check::kPatience).text;
    const auto json = nlohmann::json::parse(text, nullptr, false);
    return json.is_array() ? json.get<std::vector<std::string>>() : std::vector<std::string>();
  } catch (const Error&) { // the tests say so
    return {};
  }
}

std::vector<CheckResult>
check_plugin(const std::filesystem::path& file, const CheckOptions& options) {
  const PluginFile read = read_plugin_file(file);
  if (!read.refusal.empty()) {
    throw Error(
        file.string() + " " + read.refusal, "name the .so file that the plugin's build made"
    );
  }
  const auto wanted = check::chosen(options.include);
  // A plugin that cannot be opened fails one test of that, not all of them.
  const std::string closed = options.in_process ? "" : probe_plugin(file).skipped;
  if (closed.empty() && !options.options.as_table().empty()) {
    check::require_taken(file, options);
  }
  std::vector<CheckResult> results;
  bool explained = false;
  for (const check::Test* test : wanted) {
    const bool file_only = test->of == check::Of::file;
    if (!file_only && !closed.empty() && explained) {
      results.push_back(
          {std::string(test->name),
           std::string(test->about),
           CheckResult::Is::not_applicable,
           "the plugin cannot be opened",
           ""}
      );
      continue;
    }
    results.push_back(
        options.in_process ? check::run_here(*test, file, options)
                           : check::run_in_child(*test, file, options)
    );
    explained = explained || (!closed.empty() && results.back().is == CheckResult::Is::failed);
  }
  return results;
}

} // namespace mh
