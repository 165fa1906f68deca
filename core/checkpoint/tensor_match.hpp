#pragma once
/// `load.match`: the tensors of a model that a checkpoint fills, and their names there.
///
/// ```cpp
/// mh::TensorMatch match({{"head.*", false}, {"layers.*.norm.weight", "blocks.*.ln.weight"}});
/// const auto norm = match.theirs("layers.3.norm.weight");  // "blocks.3.ln.weight"
/// const auto head = match.theirs("head.weight");           // none: it keeps its initial values
/// ```

#include "megahost/value.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

class TensorMatch {
public:
  TensorMatch() = default;
  /// `*` stands for any characters; in a name of the checkpoint, for what the one before it stood for.
  explicit TensorMatch(const std::map<std::string, Value>& patterns);

  [[nodiscard]] bool empty() const { return patterns_.empty(); }

  /// The tensor of the checkpoint that fills one which the model asks for by `name`; nothing if that
  /// keeps its initial values. `others`: further names of it, for patterns that are true or false.
  [[nodiscard]] std::optional<std::string>
  theirs(const std::string& name, const std::vector<std::string>& others = {}) const;

  /// Throws:  mh::Error naming the first pattern that fits none of the names
  void require_all_fit(const std::vector<std::string>& names) const;

private:
  struct Pattern {
    std::string text;
    std::optional<std::string> theirs; ///< in place of `load`
    bool load = true;
  };

  std::vector<Pattern> patterns_; // the longest first
};

/// The characters that each `*` of a pattern stands for in a name, as few as can be; nothing if the
/// name does not fit.
[[nodiscard]] std::optional<std::vector<std::string>>
stars_of(std::string_view pattern, std::string_view name);

/// "a, b, c and 4 more".
[[nodiscard]] std::string some_names(const std::vector<std::string>& names);

} // namespace mh
