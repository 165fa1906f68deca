#pragma once
/// The parts that plugins offer, by kind and name.
///
/// The full name is `id/name`, "org.example.moe/gpt"; the name alone does where only one loaded
/// plugin has it. A plugin gets a registry of its own, which the host merges into the run's.

#include "megahost/error.hpp"
#include "megahost/export.hpp"
#include "megahost/hugging_face.hpp"
#include "megahost/kind.hpp"
#include "megahost/layout_search.hpp"
#include "megahost/model_scale.hpp"
#include "megahost/planned_device.hpp"
#include "megahost/schema.hpp"

#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch {
class Library;
}

namespace mh {

class Architecture;
struct ArraySpec;
class CheckpointFormat;
class Conditions;
class Corpus;
class Device;
class Launcher;
class LrSchedule;
class Optimizer;
class PipelineSchedule;
class RecomputePolicy;
class Storage;
class Strategy;
class Tokenizer;

/// A loaded plugin, as its entry describes it.
struct PluginInfo {
  std::string id{}, version{}, license{}, summary{}, abi_tag{}, built_with{};
  std::filesystem::path file{}; ///< empty for what a program registers itself
};

namespace detail {

template <Kind kind>
struct Interface;
#define MH_INTERFACE(kind, class_)                                                                 \
  template <>                                                                                      \
  struct Interface<Kind::kind> {                                                                   \
    using type = class_;                                                                           \
  }
MH_INTERFACE(architecture, Architecture);
MH_INTERFACE(strategy, Strategy);
MH_INTERFACE(recompute, RecomputePolicy);
MH_INTERFACE(optimizer, Optimizer);
MH_INTERFACE(lr_schedule, LrSchedule);
MH_INTERFACE(pipeline_schedule, PipelineSchedule);
MH_INTERFACE(corpus, Corpus);
MH_INTERFACE(tokenizer, Tokenizer);
MH_INTERFACE(launcher, Launcher);
MH_INTERFACE(device, Device);
MH_INTERFACE(checkpoint_format, CheckpointFormat);
MH_INTERFACE(storage, Storage);
#undef MH_INTERFACE

} // namespace detail

class MH_API Registry {
public:
  struct Entry {
    Kind kind;
    std::string name;    ///< "adamw"
    std::string summary; ///< one line
    std::shared_ptr<const PluginInfo> plugin;
    Schema schema;
    /// Makes one: an interface pointer of the kind, owned by the caller. `options` are complete,
    /// `args` points to the interface's Args. Use `Registry::make`.
    std::function<void*(const Value& options, const void* args)> make;
    /// The mapping of an architecture that has a `hugging_face_config()`; else null.
    std::shared_ptr<const HfMapping> hugging_face{};
    /// `T::recompute_parts` of an architecture: parts of its own blocks (recompute.hpp).
    std::vector<std::string> recompute_parts{};
    /// `T::recomputes_blocks` of a recompute policy: it runs whole blocks again (recompute.hpp).
    bool recomputes_blocks = false;
    /// `T::scaled` of an architecture or a schedule: what it makes of its section in a small recipe
    /// (model_scale.hpp). The section may lack fields, and hold what is refused.
    std::function<Table(const Value& section, const ModelScale& to)> scaled{};
    /// `T::planned` of a device.
    PlannedDevice planned{};
    /// Whether a checkpoint format has a `write` of its own. Others only read, and recipes that
    /// would save in them are refused.
    bool writes = true;
    /// A corpus's `Corpus::arrays`, with the arguments of `make`; empty for other kinds.
    std::function<std::vector<ArraySpec>(const Value& options, const void* args)> arrays{};
    /// `T::conditions`: what the plugin refuses of a whole recipe (conditions.hpp).
    std::function<void(Conditions&)> conditions{};
    /// Whether the complete section `parallel` asks for this strategy (strategy.hpp).
    std::function<bool(const Value& parallel)> in_force{};
    /// `T::searched` and `T::changes`: settings of its section that `megahost plan` tries, of
    /// strategies, pipeline schedules and recompute policies (strategy.hpp).
    std::function<std::vector<Table>(const SearchFacts&)> searched{};
    std::function<std::vector<Table>(const SearchFacts&, const Value& section)> changes{};

    [[nodiscard]] MH_API std::string full_name() const;
  };

  Registry();
  explicit Registry(PluginInfo plugin);
  ~Registry();
  Registry(Registry&&) noexcept;
  Registry& operator=(Registry&&) noexcept;

  /// Offers T under a name. T derives from the interface of its kind and has a struct `Config`, a
  /// `static void fields(mh::Fields<Config>&)` and a constructor `(const Config&, const Args&)`; an
  /// architecture may have a `static mh::HfMapping hugging_face_config()`. A corpus may declare
  /// arrays of its own, see `Corpus::arrays`.
  ///
  /// Throws:  mh::Error if the name is taken, or not made of a-z, 0-9, _, - and .
  template <class T>
  void add(std::string name, std::string summary) {
    using Base = typename detail::Interface<T::kKind>::type;
    static_assert(std::is_base_of_v<Base, T>, "the class and its kKind disagree");
    const auto fields = fields_of<T>();
    const auto with = [fields](auto&& use) {
      return [fields, use](const Value& options, const void* args) {
        return use(fields.read_complete(options), *static_cast<const typename Base::Args*>(args));
      };
    };
    Entry entry{T::kKind, std::move(name), std::move(summary), plugin_, fields.schema(), {}};
    entry.make = with([](const auto& config, const auto& args) -> void* {
      Base* made = new T(config, args);
      return made;
    });
    if constexpr (T::kKind == Kind::corpus) {
      entry.arrays =
          with([](const auto& config, const auto& args) { return T::arrays(config, args); });
    }
    if constexpr (requires { T::hugging_face_config(); }) {
      entry.hugging_face = std::make_shared<const HfMapping>(T::hugging_face_config());
    }
    declare<T>(entry);
    add_entry(std::move(entry));
  }

  /// The declarations that a class makes without an instance. T needs no more than `Config`,
  /// `fields` and the static functions.
  template <class T>
  static void declare(Entry& entry) {
    if constexpr (requires(Conditions & conditions) { T::conditions(conditions); }) {
      entry.conditions = &T::conditions;
    }
    if constexpr (requires { T::recompute_parts(); }) {
      entry.recompute_parts = T::recompute_parts();
    }
    if constexpr (requires { T::recomputes_blocks(); }) {
      entry.recomputes_blocks = T::recomputes_blocks();
    }
    if constexpr (requires(const typename T::Config& config, const ModelScale& to) {
                    T::scaled(config, to);
                  }) {
      entry.scaled = with_known_fields<T>(&T::scaled);
    } else if constexpr (requires(const typename T::Config& config, const ModelScale& to) {
                           scaled(config, to);
                         }) {
      entry.scaled = with_known_fields<T>([](const auto& config, const ModelScale& to) {
        return scaled(config, to);
      });
    }
    if constexpr (requires { T::planned(); }) {
      entry.planned = T::planned();
    }
    if constexpr (requires { &T::write; }) {
      if constexpr (T::kKind == Kind::checkpoint_format) {
        using Base = typename detail::Interface<T::kKind>::type;
        entry.writes = !std::is_same_v<decltype(&T::write), decltype(&Base::write)>;
      }
    }
    if constexpr (requires(const SearchFacts& facts) { T::searched(facts); }) {
      entry.searched = &T::searched;
    }
    if constexpr (requires(const SearchFacts& facts, const Value& section) {
                    T::changes(facts, section);
                  }) {
      entry.changes = &T::changes;
    }
    if (entry.kind == Kind::strategy) {
      entry.in_force = [fields = fields_of<T>()](const Value& parallel) {
        Table own;
        bool degree = false;
        for (const Field& field : fields.schema().fields) {
          if (const Value* value = parallel.find(field.name)) {
            own.set(field.name, *value);
            degree = degree || (field.degree && value->is_integer() && value->as_integer() > 1);
          }
        }
        if constexpr (requires(const typename T::Config& config) { T::in_force(config); }) {
          return T::in_force(fields.read_complete(own));
        } else {
          return degree;
        }
      };
    }
  }

  /// Registers dispatcher operators: `define` gets a fragment of the namespace and calls `def` and
  /// `impl`. The registration lives as long as the process.
  ///
  /// Throws:  c10::Error if an operator exists already
  void operators(const std::string& name_space, const std::function<void(torch::Library&)>& define);

  /// The entry of a name, short or full; null if there is none.
  ///
  /// Throws:  mh::Error naming the files if several plugins have the short name
  [[nodiscard]] const Entry* find(Kind kind, std::string_view name) const;

  /// Makes one of a kind: `registry.make<mh::Optimizer>("adamw", options, {})`. Options are checked
  /// and completed with defaults first.
  ///
  /// Throws:  mh::Error if there is no such name (with those there are), an option is wrong, or
  ///          the plugin's constructor throws (its message, with the plugin's name)
  template <class Base>
  [[nodiscard]] std::unique_ptr<Base> make(
      std::string_view name, const Value& options = Table(), const typename Base::Args& args = {}
  ) const {
    return make<Base>(named(Base::kKind, name), options, args);
  }

  /// Makes one of an entry of the kind.
  ///
  /// Thread:  any
  template <class Base>
  [[nodiscard]] static std::unique_ptr<Base>
  make(const Entry& entry, const Value& options = Table(), const typename Base::Args& args = {}) {
    return std::unique_ptr<Base>(static_cast<Base*>(make_any(entry, checked(entry, options), &args))
    );
  }

  /// Makes one with the options of a resolved recipe: complete, and not checked again.
  template <class Base>
  [[nodiscard]] static std::unique_ptr<Base>
  make_complete(const Entry& entry, const Value& options, const typename Base::Args& args) {
    return std::unique_ptr<Base>(static_cast<Base*>(make_any(entry, options, &args)));
  }

  /// Options of an entry with the defaults filled in.
  ///
  /// Throws:  mh::Error that lists everything that is wrong
  [[nodiscard]] static Value checked(const Entry& entry, const Value& options);

  /// Takes over all entries of a plugin's registry, or none.
  ///
  /// Throws:  mh::Error naming both files if a full name is taken
  void merge(Registry other);

  /// The entries in order of registration.
  [[nodiscard]] const std::deque<Entry>& entries() const { return entries_; }

  [[nodiscard]] std::vector<std::string> names(Kind kind) const;

private:
  template <class T, class Use>
  static auto with_known_fields(Use use) {
    return [fields = fields_of<T>(), use](const Value& table, const auto& argument) {
      std::vector<Problem> ignored;
      return use(fields.read_complete(complete(fields.schema(), table, "", ignored)), argument);
    };
  }

  void add_entry(Entry entry);
  [[nodiscard]] const Entry& named(Kind kind, std::string_view name) const;
  [[nodiscard]] static void* make_any(const Entry& entry, const Value& options, const void* args);

  std::shared_ptr<const PluginInfo> plugin_;
  std::deque<Entry> entries_;
};

} // namespace mh
