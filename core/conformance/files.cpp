// Tests of the file: what a shared library says of itself, and how it opens.

#include "core/base/text.hpp"
#include "core/conformance/tests.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/plugin/child.hpp"
#include "megahost/error.hpp"
#include "megahost/plugin.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <regex>

extern "C" uint64_t aoti_torch_abi_version();

namespace mh::check {

namespace fs = std::filesystem;

namespace {

/// Whether a mangled name is of the C++ library, LibTorch or the SDK, whose inline functions every
/// library that uses them has, visible by attributes of their own: a special name's prefix, then
/// qualifiers of type, constness and reference (built without optimisation all of them are there),
/// then the outermost namespace.
///
/// Source:  Itanium C++ ABI, 5.1
bool in_shared_namespace(const std::string& name) {
  static const std::regex form(
      "_Z(T[VTIS]|T[hv]n?[0-9]+_(n?[0-9]+_)?|GV|GR)?[PKFvZ]*N?[rKVRO]*"
      "(S[tabsiod]|9__gnu_cxx|10__cxxabiv1|2mh|2at|3c10|5torch|6caffe2|4c10d|[a-z]).*"
  );
  return std::regex_match(name, form);
}

} // namespace

void entry_only_export(const Case& c) {
  const PluginFile read = read_plugin_file(c.file);
  std::vector<std::string> others = read.exports;
  std::erase(others, "mh_plugin_entry");
  const std::string visible = "mh_plugin_visible"; // then whatever is inline is
  const bool all =
      std::find(read.inlines.begin(), read.inlines.end(), visible) != read.inlines.end();
  for (const std::string& name : read.inlines) {
    if (name != visible && (all || !in_shared_namespace(name))) {
      others.push_back(name);
    }
  }
  if (!others.empty()) {
    const std::string more =
        others.size() > 1 ? " and " + std::to_string(others.size() - 1) + " more" : "";
    fail(
        "it exports " + c10::demangle(others.front().c_str()) + more +
            ", which other plugins and LibTorch may have too",
        "compile with -fvisibility=hidden (meson: gnu_symbol_visibility: 'hidden')"
    );
  }
}

void pin_present(const Case& c) {
  const PluginFile read = read_plugin_file(c.file);
  if (!read.has_entry) {
    fail("it exports no mh_plugin_entry", "end one of its sources with MH_PLUGIN");
  }
  if (read.pin.empty()) {
    fail(
        "its entry names no pin, so another LibTorch or SDK would go unnoticed",
        "make its entry with MH_PLUGIN (megahost/plugin.hpp)"
    );
  }
  if (read.pin != MH_ABI_TAG) {
    fail("it " + pin_difference(read.pin, MH_ABI_TAG), "build it again with this SDK");
  }
}

void no_fast_math(const Case& c) {
  bool flushes = false, compiled = false;
  try {
    const OpenedPlugin plugin = open_plugin(c.file);
    flushes = plugin.flushes;
    compiled = plugin.info.built_with.find("-ffast-math") != std::string::npos;
  } catch (const Error&) { // pin-present or descriptor-consistent says so
  }
  if (compiled || flushes) {
    fail(
        compiled ? "it was compiled with -ffast-math, or a part of it: sums depend on how they are "
                   "compiled, and NaN may go unnoticed"
                 : "opening it makes the process flush denormal numbers to zero, as linking with "
                   "-ffast-math does",
        "compile and link without -ffast-math, -Ofast, -funsafe-math-optimizations and "
        "-ffinite-math-only"
    );
  }
}

void no_static_libstdcxx(const Case& c) {
  const auto needed = read_plugin_file(c.file).needed;
  const bool shared = std::any_of(needed.begin(), needed.end(), [](const std::string& name) {
    return name.starts_with("libstdc++.so") || name.starts_with("libc++.so");
  });
  if (!shared) {
    fail(
        "it does not need the shared C++ library, so exceptions and strings would come from a copy "
        "of its own",
        "link without -static-libstdc++"
    );
  }
}

void no_rpath_to_torch(const Case& c) {
  Dl_info where{};
  dladdr(reinterpret_cast<const void*>(&aoti_torch_abi_version), &where);
  const fs::path own = fs::weakly_canonical(where.dli_fname == nullptr ? "" : where.dli_fname);
  for (std::string folder : read_plugin_file(c.file).run_path) {
    if (folder.starts_with("$ORIGIN")) {
      folder.replace(0, std::strlen("$ORIGIN"), fs::absolute(c.file).parent_path().string());
    }
    const fs::path real = fs::weakly_canonical(folder);
    const bool torch = fs::exists(real / "libtorch_cpu.so") || folder.ends_with("torch/lib");
    if (torch && real != own.parent_path()) {
      fail(
          "its run path names " + folder + ", the LibTorch of this megahost is in " +
              own.parent_path().string(),
          "take the SDK by pkg-config megahost, and drop -Wl,-rpath of your own"
      );
    }
  }
}

void no_static_torch_ops(const Case& c) {
  try {
    (void)open_plugin(c.file);
  } catch (const Error& error) {
    if (std::string(error.what()).find("from a static constructor") != std::string::npos) {
      fail(error.what(), error.hint());
    }
  }
}

/// The best of five processes, so that a busy machine does no harm.
void scan_under_100ms(const Case& c) {
  using Clock = std::chrono::steady_clock;
  const auto open_once = [&c] {
    const auto start = Clock::now();
    (void)open_plugin(c.file);
    const std::chrono::duration<double, std::milli> spent = Clock::now() - start;
    return std::to_string(spent.count());
  };
  double best = 1e9;
  for (int i = 0; i < 5 && best >= 100; ++i) {
    const ChildResult child = in_child(open_once, std::chrono::seconds(20));
    if (!child.ended.empty()) {
      fail("the process that opened it ended: " + child.ended);
    }
    best = std::min(best, std::stod(child.text));
  }
  if (best >= 100) {
    fail(
        "opening and registering it took " + std::to_string(static_cast<int>(best)) +
            " ms, and `megahost plugins` opens every plugin there is",
        "do nothing in static constructors and in MH_PLUGIN but register"
    );
  }
}

void descriptor_consistent(const Case& c) {
  const PluginInfo& plugin = c.plugin->info;
  static const std::regex id("[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)+");
  static const std::regex version("[0-9]+\\.[0-9]+\\.[0-9]+([-+].*)?");
  if (!std::regex_match(plugin.id, id)) {
    fail(
        "its id is `" + plugin.id + "`, expected a reverse domain name", "such as org.example.moe"
    );
  }
  if (!std::regex_match(plugin.version, version)) {
    fail("its version is `" + plugin.version + "`, expected three numbers", "such as 0.1.0");
  }
  const auto line = [](const std::string& what, const std::string& text) {
    if (text.empty() || text.find('\n') != std::string::npos) {
      fail(what + " is not one line of text", "say in one line what it is");
    }
  };
  line("its summary", plugin.summary);
  if (c.plugin->registry.entries().empty()) {
    fail("it offers nothing", "call registry.add<...>(...) in MH_PLUGIN");
  }
  for (const auto& entry : c.plugin->registry.entries()) {
    const std::string name = std::string(info(entry.kind).name) + " " + entry.name;
    if (entry.plugin->id != plugin.id) {
      fail(name + " says it is of " + entry.plugin->id + ", not of " + plugin.id);
    }
    line("the summary of " + name, entry.summary);
    for (const Field& field : entry.schema.fields) {
      line("the description of " + name + "'s field " + field.name, field.doc);
    }
  }
}

/// A second registry gets the same, and the first one refuses it with a sentence.
void double_register(const Case& c) {
  const auto& entry = c.plugin->library.get<const mh_plugin>("mh_plugin_entry");
  Registry first(c.plugin->info), second(c.plugin->info);
  try {
    entry.register_all(second);
    entry.register_all(first);
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find("register an operator") != std::string::npos) {
      not_applicable("it registers operators, which a process takes once");
    }
    throw;
  }
  const auto& before = c.plugin->registry.entries();
  const auto same = [](const auto& a, const auto& b) {
    return a.kind == b.kind && a.name == b.name;
  };
  if (!std::equal(
          before.begin(), before.end(), second.entries().begin(), second.entries().end(), same
      )) {
    fail(
        "it offers something else when it registers a second time",
        "let MH_PLUGIN depend on nothing but its registry"
    );
  }
  try {
    first.merge(std::move(second));
  } catch (const Error&) {
    return;
  }
  fail("a registry that has it takes it again");
}

} // namespace mh::check
