#pragma once
/// Everything that is wrong with a recipe, at once, each with the line it is about:
///
///     error: unknown option `warmpu` in lr_schedule
///       --> recipes/gpt.lua:9:30
///        |
///      9 |   lr_schedule = { use = "cosine", warmpu = 100 },
///        |                                   ^^^^^^ did you mean `warmup_iters`?
///        = cosine takes: warmup_iters, decay_iters, min_lr

#include "megahost/error.hpp"
#include "megahost/schema.hpp"

#include <string>
#include <vector>

namespace mh {

/// At most this many problems are shown.
inline constexpr size_t kMostProblems = 20;

/// One problem as above, without the word "error: " and without a newline at the end.
[[nodiscard]] std::string render(const Problem& problem);

/// `what()` is every problem rendered, parted by an empty line and "error: ": the program puts
/// "error: " before it, as before any message.
class MH_API RecipeError : public Error {
public:
  explicit RecipeError(std::vector<Problem> problems);
  ~RecipeError() override;

  [[nodiscard]] const std::vector<Problem>& problems() const { return problems_; }

private:
  std::vector<Problem> problems_;
};

/// Throws RecipeError if there is any, in the order of files and lines.
void throw_problems(std::vector<Problem> problems);

} // namespace mh
