#include "megahost/error.hpp"

namespace mh {

namespace {

std::string sentence(const ErrorParts& parts) {
  std::string text = parts.where;
  if (!parts.found.empty()) {
    text += (text.empty() ? "found " : ": found ") + parts.found;
  }
  if (!parts.expected.empty()) {
    text += (parts.found.empty() ? (text.empty() ? "expected " : ": expected ") : ", expected ") +
            parts.expected;
  }
  return text;
}

} // namespace

Error::Error(std::string message, std::string hint, int exit_code)
    : std::runtime_error(std::move(message))
    , hint_(std::move(hint))
    , exit_code_(exit_code) {}

Error::Error(const ErrorParts& parts, int exit_code)
    : Error(sentence(parts), parts.hint, exit_code) {}

Error::~Error() = default;
InternalError::~InternalError() = default;

void assertion_failed(
    const char* file, int line, const char* condition, const std::string& message
) {
  throw InternalError(
      std::string(file) + ":" + std::to_string(line) + ": " + message + " (" + condition +
      " does not hold; this is a bug in megahost)"
  );
}

} // namespace mh
