// Stacks of threads that spin, wait, and do not listen; the state of another process.

#include "core/base/thread_stacks.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>

namespace thread_stacks_tests {

[[gnu::noinline]] void
spins_on_purpose(std::atomic<bool>& ret_begun, const std::atomic<bool>& ends) {
  ret_begun = true;
  while (!ends) {
  }
}

[[gnu::noinline]] void
waits_on_purpose(std::mutex& mutex, std::condition_variable& wakes, const bool& ends) {
  std::unique_lock lock(mutex);
  wakes.wait(lock, [&] { return ends; });
}

[[gnu::noinline]] void
does_not_listen(std::atomic<bool>& ret_begun, const std::atomic<bool>& ends) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ret_begun = true;
  while (!ends) {
    usleep(1000);
  }
}

TEST_CASE("each thread's stack names its functions, and threads go on as if nothing had been asked"
) {
  std::atomic<bool> spins{false}, deaf{false}, ends{false};
  std::mutex mutex;
  std::condition_variable wakes;
  bool woken = false;
  std::thread spinning([&] { spins_on_purpose(spins, ends); });
  const auto wait = [&] { waits_on_purpose(mutex, wakes, woken); };
  std::thread waiting(wait), waiting_too(wait);
  std::thread not_listening([&] { does_not_listen(deaf, ends); });
  while (!spins || !deaf) {
    usleep(1000);
  }
  usleep(20'000); // until the two wait
  for (int time = 0; time < 2; ++time) {
    const std::string text = mh::thread_stacks();
    CAPTURE(text);
    const auto count = [&text](const std::string& words) {
      int found = 0;
      for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) {
        ++found;
      }
      return found;
    };
    CHECK(count("thread_stacks_tests::spins_on_purpose") > 0);
    CHECK(count("std::condition_variable&, bool const&) + ") == 1); // two threads' stack, once
    CHECK(text.find("mh::thread_stacks") != std::string::npos);     // this one
    CHECK(text.find("does not answer: State: ") != std::string::npos);
  }
  ends = true;
  {
    const std::lock_guard lock(mutex);
    woken = true;
  }
  wakes.notify_all();
  for (std::thread* thread : {&spinning, &waiting, &waiting_too, &not_listening}) {
    thread->join();
  }
}

TEST_CASE("the state of a stopped process of this program, and of no other") {
  const pid_t child = fork();
  if (child == 0) {
    while (true) {
      pause();
    }
  }
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  const std::string text = mh::process_state(child);
  CAPTURE(text);
  CHECK(text.find("State: T (stopped)") != std::string::npos);
  CHECK(text.find("thread " + std::to_string(child) + " (") != std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(mh::process_state(child).empty());
  CHECK(mh::process_state(getppid()).empty());
}

} // namespace thread_stacks_tests
