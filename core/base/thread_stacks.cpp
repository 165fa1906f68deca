#include "core/base/thread_stacks.hpp"

#include "core/base/symbols.hpp"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

namespace mh {

namespace {

namespace fs = std::filesystem;

constexpr int kAsk = SIGURG; // ignored where no one asks for it
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::microseconds kLook{200};
constexpr size_t kSignalFrames = 2; // the handler and the kernel's way into it

/// The memory of the handler, which reads and writes it. The thread that is asked takes `wanted` away, and so knows
/// that it is still listened to.
struct AskedThread {
  std::atomic<pid_t> wanted{0};
  std::atomic<bool> done{false};
  std::array<void*, 96> frames{};
  int count = 0;
};

AskedThread g_asked;
std::mutex g_asking; // one at a time

extern "C" void on_asked(int) {
  const int error = errno;
  pid_t self = gettid();
  if (g_asked.wanted.compare_exchange_strong(self, 0)) {
    g_asked.count = backtrace(g_asked.frames.data(), static_cast<int>(g_asked.frames.size()));
    g_asked.done.store(true, std::memory_order_release);
  }
  errno = error;
}

void listen() {
  void* frame = nullptr;
  (void)backtrace(&frame, 1); // loads what it needs, which a handler may not

  struct sigaction action {};

  action.sa_handler = on_asked;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(kAsk, &action, nullptr);
}

/// The addresses of a thread's stack, the innermost first; none if it does not answer.
std::vector<void*> stack_of(pid_t thread) {
  const auto frames = [](size_t skipped) {
    const auto begin = g_asked.frames.begin();
    return std::vector<void*>(
        begin + static_cast<std::ptrdiff_t>(std::min<size_t>(skipped, g_asked.count)),
        begin + g_asked.count
    );
  };
  if (thread == gettid()) {
    g_asked.count = backtrace(g_asked.frames.data(), static_cast<int>(g_asked.frames.size()));
    return frames(0);
  }
  g_asked.done = false;
  g_asked.wanted = thread;
  if (syscall(SYS_tgkill, getpid(), thread, kAsk) != 0) { // it has ended
    g_asked.wanted = 0;
    return {};
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!g_asked.done.load(std::memory_order_acquire)) {
    pid_t still = thread;
    if (std::chrono::steady_clock::now() > end &&
        g_asked.wanted.compare_exchange_strong(still, 0)) { // whoever answers now is not heard
      return {};
    }
    std::this_thread::sleep_for(kLook);
  }
  return frames(kSignalFrames);
}

std::string read_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::vector<pid_t> threads_of(const fs::path& process) {
  std::vector<pid_t> threads;
  std::error_code gone;
  for (const auto& task : fs::directory_iterator(process / "task", gone)) {
    threads.push_back(std::atoi(task.path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

/// The fields of /proc/PID/status that say how it is.
std::string status_of(const fs::path& process) {
  std::ifstream status(process / "status");
  std::string text;
  for (std::string line; std::getline(status, line);) {
    for (const char* field : {"State:", "VmRSS:", "Threads:", "SigBlk:"}) {
      if (line.starts_with(field)) {
        text += (text.empty() ? "" : ", ") + line;
      }
    }
  }
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

/// The place of a thread in the kernel; of the system call its number and arguments.
std::string in_kernel(const fs::path& task) {
  std::string text;
  for (const char* file : {"wchan", "syscall"}) {
    const std::string line = read_line(task / file);
    if (!line.empty() && line != "0") {
      text += std::string("  ") + file + " " + line + "\n";
    }
  }
  std::ifstream stack(task / "stack"); // root's alone
  for (std::string line; std::getline(stack, line);) {
    text += "  " + line + "\n";
  }
  return text;
}

} // namespace

std::string thread_stacks() {
  static std::once_flag listens;
  std::call_once(listens, listen);
  const std::lock_guard lock(g_asking);
  std::vector<std::pair<std::string, std::string>> stacks; // what it is, and whose
  const fs::path self = "/proc/self";
  for (const pid_t thread : threads_of(self)) {
    const fs::path task = self / "task" / std::to_string(thread);
    std::string text;
    const auto frames = stack_of(thread);
    for (size_t i = 0; i < frames.size(); ++i) {
      text += "  " + frame_text(frames[i], /*called=*/i > 0) + "\n";
    }
    if (frames.empty()) {
      const std::string status = status_of(task);
      if (status.empty()) { // it has ended meanwhile
        continue;
      }
      text = "  does not answer: " + status + "\n" + in_kernel(task);
    }
    const std::string name = std::to_string(thread) + " (" + read_line(task / "comm") + ")";
    const auto known = std::find_if(stacks.begin(), stacks.end(), [&](const auto& one) {
      return one.first == text;
    });
    if (known == stacks.end()) {
      stacks.emplace_back(text, name);
    } else {
      known->second += ", " + name;
    }
  }
  std::string all;
  for (const auto& [text, names] : stacks) {
    all += "thread " + names + ":\n" + text + "\n";
  }
  return all;
}

std::string process_state(pid_t process) {
  const fs::path folder = fs::path("/proc") / std::to_string(process);
  std::error_code hidden;
  const fs::path own = fs::read_symlink("/proc/self/exe", hidden);
  if (fs::read_symlink(folder / "exe", hidden) != own || hidden) {
    return "";
  }
  std::string text = status_of(folder) + "\n\n";
  for (const pid_t thread : threads_of(folder)) {
    const fs::path task = folder / "task" / std::to_string(thread);
    text += "thread " + std::to_string(thread) + " (" + read_line(task / "comm") +
            "): " + status_of(task) + "\n" + in_kernel(task);
  }
  return text;
}

} // namespace mh
