#include "core/plugin/crash.hpp"

#include "core/base/plugin_fault.hpp"
#include "core/draw/report.hpp"
#include "core/model/plugin_call.hpp"
#include "megahost/error.hpp"

#include <c10/util/Type.h>

#include <execinfo.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <string_view>

namespace mh {

namespace {

constexpr std::array<int, 5> kCrashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/// Text of a fixed size: a handler may not ask for memory.
template <size_t size>
struct FixedText {
  std::array<char, size> chars{};
  size_t used = 0;

  FixedText& add(std::string_view more) {
    const size_t count = std::min(more.size(), size - used);
    std::memcpy(chars.data() + used, more.data(), count);
    used += count;
    return *this;
  }

  [[nodiscard]] std::string_view view() const { return {chars.data(), used}; }
};

// These are what the handler reads.
int g_width = 0;                  // columns of the terminal that standard error is; 0: it is none
FixedText<512> g_exception;       // that std::terminate was called for
FixedText<1024> g_kept;           // what is said of work that is done; empty: it is not
std::atomic<pid_t> g_crashing{0}; // the thread that describes its crash

/// The plugin of the innermost frame of this thread that is a plugin's; null: none is.
const char* plugin_on_stack() {
  std::array<void*, 100> frames{};
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(frames[static_cast<size_t>(i)]);
    if (const char* id = plugin_at(address)) {
      return id;
    }
  }
  return nullptr;
}

using Message = FixedText<2048>;

void add_place(Message& message, const PluginPlace& place) {
  if (place.kind != nullptr) {
    message.add("the ").add(place.kind).add(" of ");
  }
  message.add("plugin ").add(place.plugin).add(", ").add(place.call == nullptr ? "" : place.call);
  if (place.block != nullptr) {
    message.add(" of block ").add(place.block);
  }
}

void describe(Message& message, int signal) {
  std::array<char, 8> digits{};
  const auto* end = std::to_chars(digits.data(), digits.data() + digits.size(), signal).ptr;
  const char* name = sigdescr_np(signal);
  message.add("ended by signal ").add({digits.data(), end}).add(" (");
  message.add(name == nullptr ? "unknown" : name).add(")");
  const PluginPlace& place = plugin_place();
  const char* id = plugin_on_stack();
  if (place.plugin != nullptr) {
    message.add(" in ");
    add_place(message, place);
    if (id != nullptr && std::strcmp(id, place.plugin) != 0) {
      message.add(", in code of plugin ").add(id);
    }
  } else if (id != nullptr) {
    message.add(is_seen_thread() ? " in plugin " : " in a thread of plugin ").add(id);
    if (const PluginPlace* another = place_of_another_thread()) {
      message.add(", while another was in ");
      add_place(message, *another);
    }
  } else {
    message.add(" outside of plugins");
  }
  if (g_exception.used > 0) {
    message.add(": no handler for ").add(g_exception.view());
  }
}

/// Lines of the text end between words where the terminal ends.
template <size_t size>
void add_wrapped(FixedText<size>& text, std::string_view line, size_t width) {
  while (width > 0 && line.size() > width) {
    const size_t space = line.rfind(' ', width);
    if (space == std::string_view::npos || space == 0) {
      break;
    }
    text.add(line.substr(0, space)).add("\n");
    line.remove_prefix(space + 1);
  }
  text.add(line).add("\n");
}

void write_whole(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(to, text.data(), text.size());
    if (count <= 0) {
      return;
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
}

void write_file(const char* path, std::string_view text) {
  const int file =
      path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file >= 0) {
    write_whole(file, text);
    close(file);
  }
}

/// A message within JSON.
template <size_t size>
void add_quoted(FixedText<size>& text, std::string_view message) {
  for (const char& c : message) {
    const bool plain = static_cast<unsigned char>(c) >= ' ' && c != '"' && c != '\\';
    text.add({plain ? &c : "'", 1});
  }
}

/// The files of `tell_launcher`, as `report` writes them.
void write_launcher_files(const Message& message) {
  std::array<char, 24> seconds{};
  const auto* end =
      std::to_chars(seconds.data(), seconds.data() + seconds.size(), std::time(nullptr)).ptr;
  FixedText<6144> text;
  text.add(R"({"message": {"message": ")");
  add_quoted(text, message.view());
  text.add(R"(", "extraInfo": {"timestamp": ")").add({seconds.data(), end});
  text.add(R"(", "py_callstack": ")");
  add_quoted(text, message.view());
  text.add(R"("}}})");
  write_file(std::getenv("TORCHELASTIC_ERROR_FILE"), text.view());
  write_file(termination_log(), message.view());
}

/// To the process that started this rank, as `report` does it; else to standard error.
void tell(const Message& message) {
  FixedText<4096> text;
  const char* to = std::getenv("MEGAHOST_ERROR_FD");
  if (to == nullptr || g_kept.used > 0) {
    FixedText<3072> whole;
    whole.add(g_kept.used > 0 ? "warning: " : "error: ").add(message.view());
    whole.add(g_kept.used > 0 ? "; " : "").add(g_kept.view());
    add_wrapped(text, whole.view(), static_cast<size_t>(g_width));
    add_wrapped(
        text, FixedText<256>().add("help: ").add(kMendPlugin).view(), static_cast<size_t>(g_width)
    );
    write_whole(STDERR_FILENO, text.view());
    if (g_kept.used == 0) {
      write_launcher_files(message);
    }
    return;
  }
  text.add(R"({"crash": true, "text": ")");
  add_quoted(text, message.view());
  text.add(R"(", "hint": ")").add(kMendPlugin).add("\"}");
  write_whole(std::atoi(to), text.view());
}

/// Threads of one kernel crash together: the first tells it, and the others wait for its end.
extern "C" void on_crash(int signal) {
  const pid_t self = gettid();
  pid_t first = 0;
  if (g_crashing.compare_exchange_strong(first, self)) {
    Message message;
    describe(message, signal);
    tell(message);
  } else if (first != self) {
    while (true) {
      pause();
    }
  } // else a fault in here
  if (g_kept.used > 0) {
    _exit(0);
  }
  for (const int crash : kCrashes) {
    std::signal(crash, SIG_DFL);
  }
  raise(signal); // on return
}

/// A plugin that ends the process would end a run without a word, and as a success.
void on_exit_of_plugin(int status, void*) {
  const PluginPlace& place = plugin_place();
  if (place.plugin == nullptr) {
    return;
  }
  std::array<char, 16> digits{};
  const auto* end = std::to_chars(digits.data(), digits.data() + digits.size(), status).ptr;
  Message message;
  message.add("ended by exit(").add({digits.data(), end}).add(") in ");
  add_place(message, place);
  tell(message);
  _exit(g_kept.used > 0 ? 0 : status == 0 ? exit_code::other : status);
}

[[noreturn]] void on_terminate() {
  if (const auto exception = std::current_exception()) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::exception& error) {
      const std::string_view what = error.what();
      g_exception.add(c10::demangle(typeid(error).name())).add(": ");
      g_exception.add(what.substr(0, what.find('\n')));
    } catch (...) {
      g_exception.add("an exception that is no std::exception");
    }
  }
  std::abort();
}

} // namespace

void name_crashes() {
  void* frame = nullptr;
  (void)backtrace(&frame, 1); // loads what it needs, which a handler may not

  winsize window{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0) {
    g_width = window.ws_col;
  }

  static std::array<char, 1 << 16> stack; // a stack that has overflown cannot be used
  stack_t other{};
  other.ss_sp = stack.data();
  other.ss_size = stack.size();
  sigaltstack(&other, nullptr);

  struct sigaction action {};

  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int crash : kCrashes) {
    sigaction(crash, &action, nullptr);
  }
  std::set_terminate(on_terminate);
  on_exit(on_exit_of_plugin, nullptr);
}

ForShow::ForShow(std::string_view kept) {
  g_kept.add(kept);
}

ForShow::~ForShow() {
  g_kept.used = 0;
}

} // namespace mh
