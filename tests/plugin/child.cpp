// Work in a child process: what it returns, prints and throws comes back, and nothing of its parent runs there.

#include "core/plugin/child.hpp"

#include "megahost/error.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using mh::in_child;
using namespace std::chrono_literals;

} // namespace

TEST_CASE("what the work returns and prints comes back, whatever its length") {
  const auto child = in_child(
      [] {
        std::puts("printed");
        return std::string(1'000'000, 'x');
      },
      20s
  );
  CHECK(child.text == std::string(1'000'000, 'x'));
  CHECK(child.printed == "printed\n");
  CHECK(child.ended.empty());
}

TEST_CASE("a child that throws says what, and unwinds nothing of its parent") {
  auto* unwound = static_cast<int*>(
      mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
  );
  REQUIRE(unwound != MAP_FAILED);

  struct Count {
    int* of;

    ~Count() { ++*of; }
  };

  {
    const Count count{unwound};
    CHECK(
        in_child([]() -> std::string { throw mh::Error("no such layer"); }, 20s).ended ==
        "no such layer"
    );
    CHECK(
        in_child([]() -> std::string { throw 3; }, 20s).ended ==
        "an exception that is no std::exception"
    );
  }
  CHECK(*unwound == 1);
  munmap(unwound, sizeof(int));
}

TEST_CASE("a child that is killed, ends itself or takes too long says so") {
  CHECK(in_child([]() -> std::string { std::abort(); }, 20s).ended == "Aborted");
  CHECK(
      in_child([]() -> std::string { _exit(7); }, 20s).ended == "it ended its process with status 7"
  );
  const auto slow = in_child(
      [] {
        sleep(30);
        return std::string();
      },
      1s
  );
  CHECK(slow.ended == "still running after 1 seconds");
}
