#pragma once
/// Calls of plugins' code, made so that its faults can be named.
///
/// ```cpp
/// mh::in_plugin(optimizer, "update", [&] { optimizer.update(items, update); });
/// ```
///
/// While the work runs, this thread's place is known: a signal that ends the process prints it
/// (core/plugin/crash.hpp). An exception of the work comes out with the plugin, the call and the
/// block:
///
///   Error, InternalError, std::bad_alloc   as they are: they say what they are about
///   c10::Error                             the same exception, with the place as context
///   other exceptions                       mh::Error: "the optimizer of plugin org.example.lion threw
///                                          std::out_of_range in update: vector::at"
///
/// The owner of an object follows from where its class lies: each plugin is a library of its own.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <c10/core/AutogradState.h>

#include <cstdint>
#include <string>
#include <typeinfo>
#include <utility>

namespace mh {

/// The place of a thread in plugins' code. The texts outlive the call.
struct PluginPlace {
  const char* plugin = nullptr; ///< id, "org.example.shift"; null: in no plugin
  const char* kind = nullptr;   ///< "architecture"; null: the plugin as a whole
  const char* call = nullptr;   ///< "forward"
  const char* block = nullptr;  ///< "layers.3"; null: none
};

/// This thread's place. A hook of the backward pass writes which block it has come to.
[[nodiscard]] MH_API PluginPlace& plugin_place() noexcept;

/// Lets other threads see this one's place while it lives.
MH_API void see_this_thread();

/// Whether this thread has let others see its place: threads that a plugin starts have not.
[[nodiscard]] bool is_seen_thread() noexcept;

/// A place of another thread that is in a plugin's code; null if none is. Safe in a signal handler.
[[nodiscard]] const PluginPlace* place_of_another_thread() noexcept;

/// "the architecture of plugin org.example.shift"; its plugin is not null.
[[nodiscard]] std::string owner(const PluginPlace& place);

/// "forward of block layers.3".
[[nodiscard]] std::string call_text(const PluginPlace& place);

/// Code and data in the shared library that holds `inside` are of plugin `id`.
///
/// Thread:  the main thread, before others are started
void know_library(const std::string& id, const void* inside);

/// The plugin whose library holds this address; null if none does. Safe in a signal handler.
[[nodiscard]] const char* plugin_at(uintptr_t address) noexcept;

/// A thread's place for as long as the object lives, then the one before.
class PluginScope {
public:
  explicit PluginScope(const PluginPlace& place)
      : before_(plugin_place()) {
    see_this_thread();
    plugin_place() = place;
  }

  ~PluginScope() { plugin_place() = before_; }

  PluginScope(const PluginScope&) = delete;
  PluginScope& operator=(const PluginScope&) = delete;

private:
  PluginPlace before_;
};

/// Throws the current exception again, named as above after this thread's place.
[[noreturn]] void rethrow_named();

/// Runs `work`, which is in the plugin's code.
template <class Work>
decltype(auto) in_plugin(const PluginPlace& place, Work&& work) {
  const PluginScope scope(place);
  try {
    return std::forward<Work>(work)();
  } catch (...) {
    rethrow_named();
  }
}

/// The place of a call of `object`, an instance of a plugin's interface. The plugin is null where
/// its class is the program's own.
template <class Object>
[[nodiscard]] PluginPlace
place_of(const Object& object, const char* call, const char* block = nullptr) {
  const auto address = reinterpret_cast<uintptr_t>(&typeid(object));
  return {plugin_at(address), info(Object::kKind).name.data(), call, block};
}

template <class Object, class Work>
decltype(auto) in_plugin(const Object& object, const char* call, Work&& work) {
  return in_plugin(place_of(object, call), std::forward<Work>(work));
}

/// While it lives, backward passes run on the thread that asks for them. Autograd has one thread
/// per GPU: of ranks that are threads, one that waits there for another would keep that one's pass
/// from beginning.
class OwnThread {
public:
  OwnThread()
      : before_(state().get_multithreading_enabled()) {
    state().set_multithreading_enabled(false);
  }

  ~OwnThread() { state().set_multithreading_enabled(before_); }

  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;

private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  bool before_;
};

/// Runs a backward pass, whose hooks write where it is.
template <class Work>
void in_backward(Work&& work) {
  const OwnThread here;
  in_plugin(PluginPlace{}, std::forward<Work>(work));
}

} // namespace mh
