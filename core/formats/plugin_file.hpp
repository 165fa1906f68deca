#pragma once
/// The facts that a shared library states about itself, read from its symbol table without running
/// any of it.

#include <filesystem>
#include <string>
#include <vector>

namespace mh {

struct PluginFile {
  /// Why it can be no plugin: "is no shared library: it begins with \"hello\""; empty if it can.
  std::string refusal;
  bool has_entry = false; ///< exports mh_plugin_entry
  std::string pin;        ///< the pin it needs, "mh_abi_1_torch_...", empty if it names none
  std::vector<std::string> exports{};  ///< strong symbols that it shows to others, the entry too
  std::vector<std::string> inlines{};  ///< weak ones: inline functions, templates, their statics
  std::vector<std::string> needed{};   ///< libraries: "libstdc++.so.6"
  std::vector<std::string> run_path{}; ///< folders in which it looks for them
};

/// Reads the dynamic symbols and the dynamic section of a 64-bit ELF file.
///
/// Source:  System V ABI, chapters 4 and 5
[[nodiscard]] PluginFile read_plugin_file(const std::filesystem::path& file);

/// Two pins compared for people: which of SDK, LibTorch, C++ library, headers and NDEBUG differs.
/// Both have the form of MH_ABI_TAG, the plugin's with "_debug" behind it if NDEBUG was missing.
///
/// Returns: "was built for LibTorch 2.9.0 (cu128), this megahost has LibTorch 2.11.0 (cu130)"
[[nodiscard]] std::string
pin_difference(const std::string& plugin_pin, const std::string& host_pin);

} // namespace mh
