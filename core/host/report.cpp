#include "core/host/report.hpp"

#include "core/host/terminal.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

namespace mh {

int report(const std::exception& error) {
  const Terminal terminal = Terminal::of(STDERR_FILENO);
  std::string text = error.what(), hint;
  int exit_code = exit_code::other;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    hint = ours->hint();
    exit_code = ours->exit_code();
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    text = "out of memory";
    hint = "lower batch.micro or model.seq_length, or recompute more: recompute.use = \"full\"";
    exit_code = exit_code::memory;
  }
  std::fflush(stdout);
  if (const char* to =
          std::getenv("MEGAHOST_ERROR_FD")) { // whoever started the ranks shows it, once
    const auto bytes = nlohmann::json{{"text", text}, {"hint", hint}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace
    );
    if (write(std::atoi(to), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
      return exit_code;
    }
  }
  std::fprintf(stderr, "%s%s\n", terminal.paint(Paint::red, "error: ").c_str(), text.c_str());
  if (!hint.empty()) {
    std::fprintf(stderr, "%s%s\n", terminal.paint(Paint::green, "help: ").c_str(), hint.c_str());
  }
  return exit_code;
}

} // namespace mh
