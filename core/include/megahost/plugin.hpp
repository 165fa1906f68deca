#pragma once
/// The face of a plugin: one const data symbol. A whole plugin:
///
/// ```cpp
/// #include <megahost/optimizer.hpp>
/// #include <megahost/plugin.hpp>
///
/// class Sgd : public mh::Optimizer {
/// public:
///   struct Config {
///     double momentum = 0;
///   };
///   static void fields(mh::Fields<Config>& f) {
///     f.add("momentum", &Config::momentum, "factor of the previous update").range(0, 1);
///   }
///   Sgd(const Config& config, const Args&);
///   std::vector<mh::StateSpec> state() const override;
///   void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override;
/// };
///
/// MH_PLUGIN("org.example.sgd", "1.0.0", "Stochastic gradient descent", [](mh::Registry& r) {
///   r.add<Sgd>("sgd", "gradient descent with momentum");
/// })
/// ```
///
/// It is built as a shared library with hidden visibility (meson: `shared_module` with the
/// dependency `megahost`). The host opens it once and never closes it. The host refuses:
///
///   compiling   another LibTorch, an older C++, a build without -DNDEBUG          (abi.hpp)
///   reading     no shared library, no `mh_plugin_entry`, another pin; nothing of it has run
///   opening     a library or symbol it needs is missing, the pin too; nothing of it has run
///   opened      operators that static constructors registered; another size, SDK or tag
///   registering an exception; a name that is taken
///
/// Register nothing from static constructors: they run before the host can look.

#include "megahost/abi.hpp"
#include "megahost/export.hpp"
#include "megahost/registry.hpp"

#include <cstdint>

#ifdef _GLIBCXX_DEBUG
#error "drop -D_GLIBCXX_DEBUG: with it the containers that cross the boundary have another layout"
#endif

#define MH_JOIN_TOKENS(a, b) a##b
#define MH_JOIN(a, b) MH_JOIN_TOKENS(a, b)
#ifdef NDEBUG
#define MH_PIN MH_ABI_PIN
#else // abi.hpp refuses such a build; where that was circumvented, this is a pin that no host has
#define MH_PIN MH_JOIN(MH_ABI_PIN, _debug)
#endif

extern "C" {

/// The entry. Plain C, so that it can be read before any of the plugin's code is called.
struct mh_plugin {
  uint32_t size;          ///< sizeof(mh_plugin) where the plugin was built
  uint32_t api;           ///< MH_PLUGIN_API
  const char* id;         ///< reverse domain name, "org.example.moe"; the first half of full names
  const char* version;    ///< the plugin's: "1.2.0"
  const char* license;    ///< SPDX
  const char* summary;    ///< one line
  const char* abi_tag;    ///< MH_ABI_TAG
  const char* built_with; ///< LibTorch and compiler, for people
  const char* pin;        ///< the host's pin: the reference that the dynamic linker must find
  void (*register_all)(mh::Registry&);
};

/// The pin. Its name spells the tag; only a host of the same tag defines it (core/plugin/pin.cpp).
extern MH_API const char MH_PIN;

/// A library exports it only where it was compiled without -fvisibility=hidden.
[[gnu::used]] inline const char mh_plugin_visible = 1;

} // extern "C"

/// Define it before including this header to say under which licence a plugin comes.
#ifndef MH_PLUGIN_LICENSE
#define MH_PLUGIN_LICENSE "unknown"
#endif

/// The optimizations a source was compiled with that change the value of a sum or lose NaN.
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) ||     \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0)
#define MH_BUILT_FAST ", -ffast-math"
#else
#define MH_BUILT_FAST ""
#endif

/// MH_PLUGIN(id, version, summary, void (mh::Registry&)): once per shared library, in no namespace.
#define MH_PLUGIN(id_, version_, summary_, ...)                                                    \
  extern "C" {                                                                                     \
  extern MH_API const mh_plugin mh_plugin_entry;                                                   \
  constinit const mh_plugin mh_plugin_entry = {                                                    \
      sizeof(mh_plugin),                                                                           \
      MH_PLUGIN_API,                                                                               \
      id_,                                                                                         \
      version_,                                                                                    \
      MH_PLUGIN_LICENSE,                                                                           \
      summary_,                                                                                    \
      MH_ABI_TAG,                                                                                  \
      "LibTorch " TORCH_VERSION ", compiler " __VERSION__ MH_BUILT_FAST,                           \
      &MH_PIN,                                                                                     \
      __VA_ARGS__,                                                                                 \
  };                                                                                               \
  }
