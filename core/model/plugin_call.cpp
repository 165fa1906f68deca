#include "core/model/plugin_call.hpp"

#include "core/base/plugin_fault.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <typeinfo>

namespace mh {

namespace {

struct KnownLibrary {
  std::array<char, 128> id{}; // a signal handler reads it
  uintptr_t begin = UINTPTR_MAX, end = 0;
};

// Written before they are counted, and never again.
std::array<KnownLibrary, 128> g_libraries;
std::atomic<size_t> g_library_count{0};

thread_local PluginPlace t_place;

// Places of threads that live, which a signal handler reads; those of threads beyond are not seen.
std::array<std::atomic<const PluginPlace*>, 256> g_places{};

/// A slot of the above, for as long as a thread lives.
struct SeenThread {
  std::atomic<const PluginPlace*>* slot = nullptr;

  SeenThread() {
    for (auto& each : g_places) {
      const PluginPlace* none = nullptr;
      if (each.compare_exchange_strong(none, &t_place)) {
        slot = &each;
        return;
      }
    }
  }

  ~SeenThread() {
    if (slot != nullptr) {
      *slot = nullptr;
    }
  }

  SeenThread(const SeenThread&) = delete;
  SeenThread& operator=(const SeenThread&) = delete;
};

KnownLibrary range_of(const dl_phdr_info& object) {
  KnownLibrary found;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) {
      const uintptr_t begin = object.dlpi_addr + segment.p_vaddr;
      found.begin = std::min(found.begin, begin);
      found.end = std::max<uintptr_t>(found.end, begin + segment.p_memsz);
    }
  }
  return found;
}

[[noreturn]] void throw_named(const PluginPlace& place, const std::string& what) {
  throw Error(
      owner(place) + " threw " + what.substr(0, what.find('\n')), kMendPlugin, exit_code::other
  );
}

} // namespace

PluginPlace& plugin_place() noexcept {
  return t_place;
}

void see_this_thread() {
  thread_local const SeenThread seen;
}

bool is_seen_thread() noexcept {
  return std::any_of(g_places.begin(), g_places.end(), [](const auto& each) {
    return each == &t_place;
  });
}

const PluginPlace* place_of_another_thread() noexcept {
  for (const auto& each : g_places) {
    const PluginPlace* place = each;
    if (place != nullptr && place != &t_place && place->plugin != nullptr) {
      return place;
    }
  }
  return nullptr;
}

std::string owner(const PluginPlace& place) {
  return (place.kind == nullptr ? "plugin " : std::string("the ") + place.kind + " of plugin ") +
         place.plugin;
}

std::string call_text(const PluginPlace& place) {
  return std::string(place.call == nullptr ? "" : place.call) +
         (place.block == nullptr ? "" : std::string(" of block ") + place.block);
}

void know_library(const std::string& id, const void* inside) {
  struct Search {
    uintptr_t inside;
    KnownLibrary found;
  } search{reinterpret_cast<uintptr_t>(inside), {}};

  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        const KnownLibrary library = range_of(*object);
        const bool holds = wanted.inside >= library.begin && wanted.inside < library.end;
        wanted.found = holds ? library : wanted.found;
        return holds ? 1 : 0;
      },
      &search
  );
  const size_t number = g_library_count.load();
  if (number < g_libraries.size() && plugin_at(search.inside) == nullptr) {
    id.copy(search.found.id.data(), search.found.id.size() - 1);
    g_libraries[number] = search.found;
    g_library_count.store(number + 1);
  }
}

const char* plugin_at(uintptr_t address) noexcept {
  const size_t count = g_library_count.load();
  for (size_t i = 0; i < count; ++i) {
    if (address >= g_libraries[i].begin && address < g_libraries[i].end) {
      return g_libraries[i].id.data();
    }
  }
  return nullptr;
}

void rethrow_named() {
  const PluginPlace place = plugin_place();
  if (place.plugin == nullptr) {
    throw;
  }
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (c10::Error& error) {
    if (error.context().empty()) { // else the innermost call has said so
      error.add_context("in " + owner(place) + ", " + call_text(place));
    }
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    throw_named(
        place,
        c10::demangle(typeid(error).name()) + " in " + call_text(place) +
            (what.empty() ? "" : ": " + what)
    );
  } catch (...) {
    throw_named(place, "something that is no std::exception in " + call_text(place));
  }
}

} // namespace mh
