#pragma once
/// The two kinds of failure: `mh::Error` is the user's to mend, `mh::InternalError` is ours.
///
/// ```cpp
/// throw mh::Error(
///     "corpus.txt holds 12 tokens, fewer than model.seq_length 1024",
///     "give more text, or a shorter model.seq_length",
///     mh::exit_code::data
/// );
/// ```

#include "megahost/export.hpp"

#include <stdexcept>
#include <string>

namespace mh {

/// Exit statuses of the program, by cause.
namespace exit_code {
inline constexpr int other = 1;
inline constexpr int recipe = 2; ///< a recipe or the command line
inline constexpr int memory = 3;
inline constexpr int communication = 4;
inline constexpr int data = 5;    ///< corpora and checkpoints
inline constexpr int numbers = 6; ///< NaN
} // namespace exit_code

/// The four things an error sentence says; empty parts are left out.
struct ErrorParts {
  std::string where;    ///< "file:line:column" or a recipe key
  std::string found;    ///< the value or state that was found
  std::string expected; ///< the value or state that was expected
  std::string hint;     ///< a sentence on how to mend it
};

/// The user's to mend. `what()` is one sentence; `hint()` says what to do, empty if the sentence
/// does.
class MH_API Error : public std::runtime_error {
public:
  explicit Error(std::string message, std::string hint = "", int exit_code = exit_code::recipe);
  /// "WHERE: found FOUND, expected EXPECTED".
  explicit Error(const ErrorParts& parts, int exit_code = exit_code::recipe);
  ~Error() override;

  [[nodiscard]] const std::string& hint() const { return hint_; }

  [[nodiscard]] int exit_code() const { return exit_code_; }

private:
  std::string hint_;
  int exit_code_;
};

/// A bug of ours, with the place in our sources.
class MH_API InternalError : public std::logic_error {
public:
  using std::logic_error::logic_error;
  ~InternalError() override;
};

[[noreturn]] MH_API void
assertion_failed(const char* file, int line, const char* condition, const std::string& message);

} // namespace mh

/// Stays on in every build (assert does not: LibTorch's layout needs NDEBUG).
#define MH_ASSERT(condition, message)                                                              \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      ::mh::assertion_failed(__FILE__, __LINE__, #condition, (message));                           \
    }                                                                                              \
  } while (false)
