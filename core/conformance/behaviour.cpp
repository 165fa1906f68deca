// Tests of any kind: instances behave alike, calls are pure, the output stays clean.

#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "core/plugin/child.hpp"
#include "megahost/error.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>

namespace mh::check {

namespace {

constexpr uint64_t kSeed = 1234;

/// The place where two traces begin to differ.
std::string difference(const std::string& one, const std::string& other) {
  size_t at = 0;
  while (at < one.size() && at < other.size() && one[at] == other[at]) {
    ++at;
  }
  const size_t from = at > 20 ? at - 20 : 0;
  return "`" + one.substr(from, 50) + "` and `" + other.substr(from, 50) + "`";
}

/// The trace of an instance in a process of its own.
std::string trace_apart(const Case& c) {
  const ChildResult child = in_child([&] { return tracer(c, kSeed)(); }, std::chrono::seconds(60));
  if (!child.ended.empty()) {
    fail("the process that used it ended: " + child.ended_and_printed());
  }
  return child.text;
}

} // namespace

void build_twice(const Case& c) {
  const auto first = tracer(c, kSeed), second = tracer(c, kSeed);
  const std::string one = first(), other = second();
  if (one != other) {
    fail(
        "two instances of one process differ: " + difference(one, other),
        "keep state in members, never in statics"
    );
  }
}

/// A part that cannot be made is left out by every other test: that they pass says nothing about
/// it.
void offers_tried(const Case& c) {
  try {
    (void)tracer(c, kSeed);
  } catch (const NotApplicable& left_out) {
    if (left_out.give.empty()) {
      throw;
    }
    fail(
        "it could not be made, so most tests left it out: it " + left_out.why,
        "give its options, in the plugin's meson.build too: megahost plugins check FILE " +
            left_out.give
    );
  }
}

void seed_determinism(const Case& c) {
  if (c.given.in_process) {
    not_applicable("it compares two processes");
  }
  (void)tracer(c, kSeed); // says so here if it cannot be made
  const std::string one = trace_apart(c), other = trace_apart(c);
  if (one != other) {
    fail(
        "two processes with one seed differ: " + difference(one, other),
        "draw random numbers from the seed (megahost/random.hpp), never from the clock, addresses "
        "or "
        "devices"
    );
  }
}

void calls_are_pure(const Case& c) {
  const auto trace = tracer(c, kSeed);
  const std::string one = trace(), other = trace();
  if (one != other) {
    fail(
        "the same calls give something else the second time: " + difference(one, other),
        "let results depend on arguments only"
    );
  }
  if (c.entry->kind == Kind::corpus) { // batches are loaded in a thread, overlapped with the step
    auto other = std::async(std::launch::async, trace);
    const std::string here = trace(), there = other.get();
    if (here != one || there != one) {
      fail("samples differ when two threads ask for them", "let `sample` change nothing");
    }
  }
}

/// Opens, registers, makes and uses all that is there, with standard output in a file.
void no_stdout(const Case& c) {
  std::FILE* file = std::tmpfile();
  if (file == nullptr) {
    throw Error("no temporary file for its output", "make room in TMPDIR", exit_code::other);
  }
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  try {
    const OpenedPlugin plugin = open_plugin(c.file);
    for (const auto& entry : plugin.registry.entries()) {
      try {
        (void)tracer({c.file, c.given, &plugin, &entry}, kSeed)();
      } catch (...) { // other tests say so
      }
    }
  } catch (const Error&) { // pin-present or descriptor-consistent says so
  }
  std::fflush(stdout);
  dup2(before, STDOUT_FILENO);
  close(before);
  char text[80] = "";
  std::rewind(file);
  const size_t count = std::fread(text, 1, sizeof(text) - 1, file);
  std::fclose(file);
  if (count > 0) {
    const std::string said(text, count);
    fail(
        "it writes to standard output: " + said.substr(0, said.find('\n')),
        "that is for results and other programs: throw mh::Error, or leave it out"
    );
  }
}

} // namespace mh::check
