#pragma once
/// Conditions between the sections of a recipe, as plugins declare them.
///
/// ```cpp
/// static void conditions(mh::Conditions& c) { // in the plugin's class
///   c.divides("model.heads", "parallel.tensor", "tensor parallelism shards whole heads");
/// }
/// ```
///
/// A plugin's conditions run on the complete tree of every recipe that names it, a strategy's where
/// it is known. They read the tree by key, and report what does not go together.

#include "megahost/export.hpp"
#include "megahost/facts.hpp"
#include "megahost/mesh_shape.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace mh {

/// A recipe's sections with the fields of the plugins that are known; "" is the top level.
using SectionSchemas = std::map<std::string, Schema, std::less<>>;

class MH_API Conditions {
public:
  Conditions(
      const Value& tree,
      const Facts& facts,
      const SectionSchemas& schemas,
      std::vector<Problem>& problems,
      bool recomputes_blocks = false
  );

  [[nodiscard]] const Value& tree() const { return tree_; }

  [[nodiscard]] const Facts& facts() const { return facts_; }

  /// True if none of the keys, and none of the sections whole, has been refused.
  [[nodiscard]] bool sound(const std::vector<std::string>& keys) const;

  [[nodiscard]] bool has(const std::string& key) const { return find(key) != nullptr; }

  [[nodiscard]] bool flag(const std::string& key) const; ///< false where it is absent
  [[nodiscard]] int64_t integer(const std::string& key
  ) const;                                                   ///< 0 where it is absent or no integer
  [[nodiscard]] double number(const std::string& key) const; ///< likewise
  [[nodiscard]] std::string word(const std::string& key) const; ///< "" where it is no string; of a
                                                                ///< plugin its name

  /// Reports at the first of the keys that the recipe writes.
  void report(
      const std::vector<std::string>& keys, const std::string& message, const std::string& note = ""
  );

  /// Reports, where both are integers above 0 and `part` does not divide `whole`.
  void divides(const std::string& whole, const std::string& part, const std::string& why);

  /// Ranks along an axis, by whatever key says so; of dp by "auto" those that are left.
  [[nodiscard]] int64_t degree(MeshAxis axis) const;

  /// The key that says so, the first that is known: "parallel.tensor"; "" if none is.
  [[nodiscard]] std::string degree_key(MeshAxis axis) const;

  /// Ranks of one copy of the model.
  [[nodiscard]] int64_t model_ranks() const {
    return degree(MeshAxis::tp) * degree(MeshAxis::pp) * degree(MeshAxis::cp);
  }

  /// All keys of degrees that multiply the world: of tp, pp, cp and dp.
  [[nodiscard]] std::vector<std::string> degree_keys() const;

  /// All keys that this object has been given so far, for whoever checks that they exist.
  [[nodiscard]] const std::set<std::string>& keys() const { return keys_; }

  [[nodiscard]] static std::string text(int64_t number) { return std::to_string(number); }

  /// Whether the recipe's recompute policy runs whole blocks again, as it declares.
  [[nodiscard]] bool recomputes_blocks() const { return recomputes_blocks_; }

  /// Layers of the model by all of its keys that are numbers of layers; 0 if it has none.
  [[nodiscard]] int64_t layers() const;

  /// These keys, "model.layers" first.
  [[nodiscard]] const std::vector<std::string>& layer_keys() const { return layer_keys_; }

  /// "24, 32": the multiples next to a number.
  [[nodiscard]] static std::string nearest_multiples(int64_t number, int64_t step);

  /// "; nearest: parallel.tensor 4, 6": the degrees next to the one given that divide `whole`.
  [[nodiscard]] std::string nearest_degrees(const std::string& key, int64_t whole) const;

protected:
  /// The value of a key; null where the recipe lacks it.
  [[nodiscard]] const Value* find(const std::string& key) const;

  const Value& tree_;
  const Facts& facts_;
  const Schema* parallel_; ///< the section's fields; none if its schema is not known
  std::vector<Problem>& problems_;
  std::vector<std::string> refused_;
  std::vector<std::string> layer_keys_;
  mutable std::set<std::string> keys_;
  bool recomputes_blocks_;
};

} // namespace mh
