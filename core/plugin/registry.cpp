#include "megahost/registry.hpp"

#include "core/base/plugin_fault.hpp"
#include "core/base/text.hpp"
#include "core/model/plugin_call.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/library.h>

#include <algorithm>
#include <deque>
#include <exception>

namespace mh {

namespace {

std::string origin_of(const Registry::Entry& entry) {
  return entry.plugin->file.empty() ? "plugin " + entry.plugin->id : entry.plugin->file.string();
}

bool valid_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}

/// Strategies share the section `parallel`: a key belongs to one of them.
void require_own_keys(const Registry::Entry& entry, const std::deque<Registry::Entry>& others) {
  for (const Registry::Entry& other : others) {
    if (other.kind != Kind::strategy) {
      continue;
    }
    for (const Field& field : entry.schema.fields) {
      if (other.schema.find(field.name)) {
        throw Error(
            "the strategies " + other.full_name() + " (" + origin_of(other) + ") and " +
                entry.full_name() + " (" + origin_of(entry) + ") both have the key parallel." +
                field.name,
            "give one of them another key"
        );
      }
    }
  }
}

/// Makes a failure in a function of an entry name the plugin and the call.
template <class Result, class... Given>
void name_call(
    std::function<Result(Given...)>& ret_function, const Registry::Entry& entry, const char* call
) {
  if (!ret_function || entry.plugin->file.empty()) { // the program's own are not plugins
    return;
  }
  ret_function = [plugin = entry.plugin, kind = entry.kind, call, inner = std::move(ret_function)](
                     Given... given
                 ) -> Result {
    const PluginPlace place{plugin->id.c_str(), info(kind).name.data(), call};
    return in_plugin(place, [&]() -> Result { return inner(given...); });
  };
}

void name_calls(Registry::Entry& ret_entry) {
  name_call(ret_entry.scaled, ret_entry, "scaled");
  name_call(ret_entry.arrays, ret_entry, "arrays");
  name_call(ret_entry.conditions, ret_entry, "conditions");
  name_call(ret_entry.in_force, ret_entry, "in_force");
  name_call(ret_entry.searched, ret_entry, "searched");
  name_call(ret_entry.changes, ret_entry, "changes");
  for (Schema::Check& check : ret_entry.schema.checks) {
    name_call(check.run, ret_entry, "a check of its fields");
  }
}

[[noreturn]] void
refuse_made(const std::string& offer, const Registry::Entry& entry, const std::string& why) {
  throw Error(
      "the " + offer + " (" + origin_of(entry) + ") cannot be made: " + why,
      kMendPlugin,
      exit_code::other
  );
}

} // namespace

Registry::Registry()
    : Registry(PluginInfo{.id = "program"}) {}

Registry::Registry(PluginInfo plugin)
    : plugin_(std::make_shared<const PluginInfo>(std::move(plugin))) {}

Registry::~Registry() = default;
Registry::Registry(Registry&&) noexcept = default;
Registry& Registry::operator=(Registry&&) noexcept = default;

std::string Registry::Entry::full_name() const {
  return plugin->id + "/" + name;
}

void Registry::add_entry(Entry entry) {
  const std::string kind(info(entry.kind).name);
  if (!valid_name(entry.name)) {
    throw Error(
        "the " + kind + " name \"" + entry.name + "\" in " + origin_of(entry) +
            " is not made of a-z, 0-9, _, - and .",
        "give it another name in MH_PLUGIN"
    );
  }
  const auto same = [&](const Entry& other) {
    return other.kind == entry.kind && other.full_name() == entry.full_name();
  };
  if (const auto found = std::find_if(entries_.begin(), entries_.end(), same);
      found != entries_.end()) {
    const std::string first = origin_of(*found), second = origin_of(entry);
    if (first == second) {
      throw Error(
          first + " registers the " + kind + " " + entry.full_name() + " twice",
          "give one of the two another name in MH_PLUGIN"
      );
    }
    throw Error(
        "the " + kind + " " + entry.full_name() + " is in two plugins, " + first + " and " + second,
        "load only one of them, or give one another id in MH_PLUGIN"
    );
  }
  if (entry.kind == Kind::strategy) {
    require_own_keys(entry, entries_);
  }
  entries_.push_back(std::move(entry));
}

void Registry::operators(
    const std::string& name_space, const std::function<void(torch::Library&)>& define
) {
  auto library = std::make_unique<torch::Library>(
      torch::Library::FRAGMENT, name_space, std::nullopt, plugin_->id.c_str(), 0
  );
  define(*library);
  // Destroying it would take the operators away, and the plugin that holds them is never closed.
  [[maybe_unused]] torch::Library* kept = library.release();
}

const Registry::Entry* Registry::find(Kind kind, std::string_view name) const {
  std::vector<const Entry*> found;
  for (const Entry& entry : entries_) {
    if (entry.kind == kind && (entry.name == name || entry.full_name() == name)) {
      found.push_back(&entry);
    }
  }
  if (found.size() > 1) {
    std::string sentence =
        "the " + std::string(info(kind).name) + " \"" + std::string(name) + "\" could be ";
    for (const Entry* entry : found) {
      sentence += entry == found.front() ? "" : " or ";
      sentence += entry->full_name() + " (" + origin_of(*entry) + ")";
    }
    throw Error(sentence, "write the full name");
  }
  return found.empty() ? nullptr : found.front();
}

const Registry::Entry& Registry::named(Kind kind, std::string_view name) const {
  if (const Entry* entry = find(kind, name)) {
    return *entry;
  }
  throw Error(
      "no loaded plugin offers the " + std::string(info(kind).name) + " \"" + std::string(name) +
          "\"",
      "loaded: " + join(names(kind))
  );
}

Value Registry::checked(const Entry& entry, const Value& options) {
  return complete_or_throw(entry.schema, options, std::string(info(entry.kind).section));
}

void* Registry::make_any(const Entry& entry, const Value& options, const void* args) {
  const std::string kind_name(info(entry.kind).name);
  const std::string offer = kind_name + " " + entry.full_name();
  const PluginScope scope({entry.plugin->id.c_str(), kind_name.c_str(), "its constructor"});
  try {
    return entry.make(options, args);
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    refuse_made(offer, entry, error.what_without_backtrace());
  } catch (...) {
    rethrow_named();
  }
}

void Registry::merge(Registry other) {
  const size_t before = entries_.size();
  try {
    for (Entry& entry : other.entries_) {
      name_calls(entry);
      add_entry(std::move(entry));
    }
  } catch (...) {
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(before), entries_.end());
    throw;
  }
}

std::vector<std::string> Registry::names(Kind kind) const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.kind == kind) {
      names.push_back(entry.name);
    }
  }
  return names;
}

} // namespace mh
