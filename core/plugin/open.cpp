#include "core/plugin/open.hpp"

#include "core/base/text.hpp"
#include "core/formats/plugin_file.hpp"
#include "core/model/plugin_call.hpp"
#include "core/plugin/installed.hpp"
#include "megahost/plugin.hpp"

#include <ATen/core/dispatch/Dispatcher.h>

#include <dlfcn.h>

#include <cfenv>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

extern "C" uint64_t aoti_torch_abi_version();

namespace mh {

namespace {

std::string version_text(uint64_t version) {
  return std::to_string(version >> 56) + "." + std::to_string(version >> 48 & 255) + "." +
         std::to_string(version >> 40 & 255);
}

/// Notes the first operator that is registered while it lives.
class NewOperators {
public:
  NewOperators() {
    auto listener = std::make_unique<Listener>();
    listener_ = listener.get();
    handle_.emplace(c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
    listener_->first.reset(); // it was told of those that are there
  }

  [[nodiscard]] const std::optional<c10::OperatorName>& first() const { return listener_->first; }

private:
  struct Listener : c10::OpRegistrationListener {
    void onOperatorRegistered(const c10::OperatorHandle& op) override {
      if (!first) {
        first = op.operator_name();
      }
    }

    void onOperatorDeregistered(const c10::OperatorHandle&) override {}

    std::optional<c10::OperatorName> first;
  };

  Listener* listener_;
  std::optional<c10::RegistrationHandleRAII> handle_;
};

void check_before_opening(const std::filesystem::path& file) {
  const PluginFile read = read_plugin_file(file);
  if (!read.refusal.empty()) {
    throw Error(
        file.string() + " " + read.refusal, "name the .so file that the plugin's build made"
    );
  }
  if (!read.has_entry) {
    throw Error(
        file.string() +
            " is a shared library but no megahost plugin: it exports no mh_plugin_entry",
        "end one of its sources with MH_PLUGIN (megahost/plugin.hpp)"
    );
  }
  if (read.pin.empty()) {
    throw Error(
        file.string() + " does not say for which LibTorch and SDK it was built, this megahost is " +
            MH_ABI_TAG,
        "make its entry with MH_PLUGIN (megahost/plugin.hpp)"
    );
  }
  if (read.pin != MH_ABI_TAG) {
    const std::string difference = pin_difference(read.pin, MH_ABI_TAG);
    throw Error(
        file.string() + " " + difference,
        read.pin.ends_with("_debug")
            ? "compile it with -DNDEBUG, debug builds too (meson: b_ndebug=true)"
            : how_to_rebuild(file)
    );
  }
}

bool flushes_denormals() {
  volatile float tiny = 1e-40F;
  volatile bool zero = tiny * 1.0F == 0; // computed here, not behind what sets the rounding back
  return zero;
}

/// Leaves this thread's rounding as it was: what is linked with -ffast-math changes it when opened.
class SameRounding {
public:
  SameRounding()
      : flushed_(flushes_denormals()) {
    std::fegetenv(&before_);
  }

  /// Restores it; returns whether it was changed since.
  bool restore() {
    const bool changed = flushes_denormals() != flushed_;
    std::fesetenv(&before_);
    return changed;
  }

private:
  bool flushed_;
  std::fenv_t before_{};
};

/// The library that was not found, of the loader's words "libx.so.1: cannot open shared object file";
/// empty if they say something else.
std::string library_not_found(const std::string& words) {
  const size_t end = words.find(": cannot open shared object file");
  if (end == std::string::npos) {
    return "";
  }
  const size_t before = words.find_last_of(" (", end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return words.substr(begin, end - begin);
}

boost::dll::shared_library open_library(const std::filesystem::path& file) {
  using boost::dll::load_mode::type;
  const NewOperators added;
  boost::dll::shared_library library;
  try {
    library.load(
        file, static_cast<type>(boost::dll::load_mode::rtld_now | RTLD_LOCAL | RTLD_NODELETE)
    );
  } catch (const std::exception& error) {
    const std::string needed = library_not_found(error.what());
    if (!needed.empty() && needed != file.string()) {
      throw Error(
          file.string() + " needs the library " + needed + ", which is not on this machine",
          "install the package that has " + needed + ", or do without the plugin"
      );
    }
    throw Error(file.string() + " cannot be opened: " + error.what(), how_to_rebuild(file));
  }
  if (added.first()) {
    const std::string name = c10::toString(*added.first());
    throw Error(
        file.string() + " registers the operator " + name +
            " from a static constructor (TORCH_LIBRARY), megahost takes operators only in "
            "MH_PLUGIN",
        "register it there: registry.operators(\"" + name.substr(0, name.find(':')) +
            "\", [](torch::Library& m) { ... })"
    );
  }
  return library;
}

PluginInfo read_entry(const mh_plugin& entry, const std::filesystem::path& file) {
  if (entry.size != sizeof(mh_plugin) || entry.api != MH_PLUGIN_API) {
    throw Error(
        file.string() + " has an entry of plugin SDK " + std::to_string(entry.api) + " and " +
            std::to_string(entry.size) + " bytes, this megahost's is of SDK " +
            std::to_string(MH_PLUGIN_API) + " and " + std::to_string(sizeof(mh_plugin)) + " bytes",
        how_to_rebuild(file)
    );
  }
  for (const char* text :
       {entry.id, entry.version, entry.license, entry.summary, entry.abi_tag, entry.built_with}) {
    if (text == nullptr || *text == '\0') {
      throw Error(
          file.string() + " leaves a text of its entry empty, megahost needs all of them",
          "give MH_PLUGIN an id, a version and a summary"
      );
    }
  }
  if (std::strcmp(entry.abi_tag, MH_ABI_TAG) != 0) {
    throw Error(
        file.string() + " " + pin_difference(entry.abi_tag, MH_ABI_TAG), how_to_rebuild(file)
    );
  }
  if (entry.register_all == nullptr || std::strchr(entry.id, '/') != nullptr) {
    throw Error(
        file.string() + " has " +
            (entry.register_all == nullptr
                 ? "no register_all in its entry"
                 : "an id with a slash, \"" + std::string(entry.id) + "\""),
        "make its entry with MH_PLUGIN and an id such as org.example.moe"
    );
  }
  return {
      entry.id, entry.version, entry.license, entry.summary, entry.abi_tag, entry.built_with, file};
}

} // namespace

void check_libtorch() {
  const uint64_t running = aoti_torch_abi_version();
  if (running >> 40 == TORCH_ABI_VERSION >> 40) {
    return;
  }
  Dl_info where{};
  const bool known = dladdr(reinterpret_cast<void*>(&aoti_torch_abi_version), &where) != 0;
  throw Error(
      "this megahost was built for LibTorch " + version_text(TORCH_ABI_VERSION) +
          ", the one that was loaded" +
          (known ? " (" + std::string(where.dli_fname) + ")" : std::string()) + " is " +
          version_text(running),
      "unset LD_LIBRARY_PATH, or build megahost again with -Dtorch_prefix=DIR",
      exit_code::other
  );
}

OpenedPlugin open_plugin(const std::filesystem::path& file) {
  check_before_opening(file);
  const std::string name = file.string();
  const PluginScope opening({name.c_str(), nullptr, "its static constructors"});
  SameRounding rounding;
  boost::dll::shared_library library = open_library(file);
  const bool flushes = rounding.restore();
  const mh_plugin& entry = library.get<const mh_plugin>("mh_plugin_entry");
  PluginInfo info = read_entry(entry, file);
  know_library(info.id, &entry);
  const PluginScope registering({info.id.c_str(), nullptr, "MH_PLUGIN"});
  Registry registry(info);
  try {
    entry.register_all(registry);
  } catch (const Error& error) {
    throw Error(
        file.string() + " (" + info.id + ") failed while registering: " + error.what(),
        error.hint().empty() ? "this is the plugin's to mend: " + info.summary : error.hint()
    );
  } catch (const std::exception& error) {
    const std::string what = error.what();
    throw Error(
        file.string() + " (" + info.id +
            ") threw while registering: " + what.substr(0, what.find('\n')),
        "leave it out, or mend what it does in MH_PLUGIN"
    );
  } catch (...) {
    throw Error(
        file.string() + " (" + info.id +
            ") threw something while registering that is no std::exception",
        "leave it out, or mend what it does in MH_PLUGIN"
    );
  }
  return {std::move(library), flushes, std::move(registry), std::move(info)};
}

} // namespace mh
