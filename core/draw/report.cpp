#include "core/draw/report.hpp"

#include "core/base/visible.hpp"
#include "core/draw/terminal.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

namespace mh {

namespace {

constexpr const char* kLines = "\n\t"; // sentences may have several

std::string json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// For torchrun and HyperPod's agent, which show it in their tables: of all ranks' errors the first
/// is the cause.
///
/// Source: torch.distributed.elastic.multiprocessing.errors, PyTorch 2.11
void write_error_file(const std::string& whole) {
  if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE")) {
    const nlohmann::json more{
        {"timestamp", std::to_string(std::time(nullptr))}, {"py_callstack", whole}};
    std::ofstream(path) << json_text({{"message", {{"message", whole}, {"extraInfo", more}}}});
  }
}

/// For Kubernetes, which shows it in the pod's status. A rank that only lost the others leaves what
/// was said before.
void write_termination_log(const std::string& text, bool is_cause) {
  const char* path = termination_log();
  std::error_code absent;
  if (path != nullptr && (is_cause || std::filesystem::file_size(path, absent) == 0 || absent)) {
    std::ofstream(path) << text;
  }
}

} // namespace

Error out_of_memory(uint64_t bytes) {
  std::string text = "out of memory";
  if (bytes > 0) {
    std::array<char, 80> more{};
    std::snprintf(
        more.data(),
        more.size(),
        ": another %.2f GB cannot be had",
        static_cast<double>(bytes) / 1e9
    );
    text += more.data();
  }
  return Error(
      text,
      "lower batch.micro or model.seq_length, recompute more (megahost help recompute), or choose a "
      "smaller model",
      exit_code::memory
  );
}

int report(const std::exception& error) {
  const Terminal terminal = Terminal::of(STDERR_FILENO);
  std::string text = error.what(), hint;
  int exit_code = exit_code::other;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    hint = ours->hint();
    exit_code = ours->exit_code();
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return report(out_of_memory(0));
  }
  std::fflush(stdout);
  if (const char* to =
          std::getenv("MEGAHOST_ERROR_FD")) { // whoever started the ranks shows it, once
    const auto bytes = json_text({{"text", text}, {"hint", hint}});
    if (write(std::atoi(to), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
      return exit_code;
    }
  }
  const std::string whole = text + (hint.empty() ? "" : "\nhelp: " + hint);
  write_error_file(whole);
  write_termination_log(whole, exit_code != exit_code::communication);
  text = visible(text, kLines);
  hint = visible(hint, kLines);
  std::fprintf(stderr, "%s%s\n", terminal.paint(Paint::red, "error: ").c_str(), text.c_str());
  if (!hint.empty()) {
    std::fprintf(stderr, "%s%s\n", terminal.paint(Paint::green, "help: ").c_str(), hint.c_str());
  }
  return exit_code;
}

void tell_launcher(const std::string& text) {
  if (const char* path = std::getenv("TORCHELASTIC_ERROR_FILE"); path != nullptr && text.empty()) {
    std::error_code absent;
    std::filesystem::remove(path, absent);
  } else {
    write_error_file(text);
  }
  write_termination_log(text, /*is_cause=*/true);
}

const char* termination_log() {
  if (const char* given = std::getenv("MEGAHOST_TERMINATION_LOG")) {
    return given;
  }
  constexpr const char* kUsual = "/dev/termination-log";
  const bool in_pod = std::getenv("KUBERNETES_SERVICE_HOST") != nullptr;
  return in_pod && access(kUsual, W_OK) == 0 ? kUsual : nullptr;
}

void warn(const std::string& text) {
  const Terminal terminal = Terminal::of(STDERR_FILENO);
  std::fprintf(
      stderr,
      "%s%s\n",
      terminal.paint(Paint::yellow, "warning: ").c_str(),
      visible(text, kLines).c_str()
  );
}

} // namespace mh
