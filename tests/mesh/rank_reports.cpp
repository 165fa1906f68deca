// The error of a run whose ranks failed: a rank is named if the failure is its own.

#include "core/mesh/rank_reports.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <string>
#include <vector>

namespace rank_reports_tests {

using namespace mh;

namespace {

constexpr const char* kStarted = "{\"started\":true}\n";
constexpr const char* kAbsent = R"({"text":"no file absent","hint":"name one"})";
constexpr const char* kLost = R"({"text":"the connection was closed","hint":""})";

/// An exit status in the form of waitpid.
int exited(int code) {
  return code << 8;
}

int ended_by(int signal) {
  return signal;
}

std::string said(const std::vector<EndedRank>& ranks, size_t first = 0) {
  return explain_failure(ranks, first).what();
}

} // namespace

TEST_CASE("a failure that all ranks report names none") {
  const std::vector<EndedRank> ranks{{exited(5), kAbsent}, {exited(5), kAbsent}};
  const Error error = explain_failure(ranks, 1);
  CHECK(std::string(error.what()) == "no file absent");
  CHECK(error.hint() == "name one");
  CHECK(error.exit_code() == 5);
  const std::string later = std::string(kStarted) + kAbsent;
  CHECK(said({{exited(5), later}, {exited(5), later}}) == "no file absent");
}

TEST_CASE("in set-up a rank that was slow to fail, and was ended, is no other") {
  for (const int status : {ended_by(SIGTERM), ended_by(SIGKILL), exited(128 + SIGTERM)}) {
    CHECK(said({{exited(5), kAbsent}, {status, "", true}}) == "no file absent");
  }
  CHECK(said({{exited(5), kAbsent}, {exited(5), kAbsent, true}}) == "no file absent");
}

TEST_CASE("a rank that lost the one that failed before it had come so far is no other") {
  constexpr const char* kMeshed = "{\"meshed\":true}\n";
  const std::string failed = std::string(kMeshed) + kAbsent;
  CHECK(said({{exited(5), failed}, {exited(4), kLost}}) == "no file absent");
  CHECK(said({{exited(5), failed}, {ended_by(SIGTERM), kMeshed, true}}) == "no file absent");
  const std::string lost = std::string(kMeshed) + kLost;
  CHECK(said({{exited(5), failed}, {exited(4), lost}}) == "no file absent (rank 0 of 2)");
  CHECK(said({{exited(5), failed}, {exited(3), kLost}}) == "no file absent (rank 0 of 2)");
}

TEST_CASE("a failure of one rank names it") {
  const std::string named = "no file absent (rank 0 of 2)";
  CHECK(said({{exited(5), kAbsent}, {exited(4), kLost}}) == named);
  CHECK(said({{exited(5), kAbsent}, {exited(4), kLost, true}}) == named);
  CHECK(said({{exited(5), kAbsent}, {exited(0), ""}}) == named);
  CHECK(said({{exited(5), kAbsent}, {ended_by(SIGSEGV), ""}}) == named);
  // It got further than the one that failed, or as far.
  CHECK(said({{exited(5), kAbsent}, {ended_by(SIGTERM), kStarted, true}}) == named);
  const std::string later = std::string(kStarted) + kAbsent;
  CHECK(said({{exited(5), later}, {ended_by(SIGTERM), kStarted, true}}) == named);
  CHECK(said({{exited(5), later}, {ended_by(SIGKILL), "", true}}) == named);
}

TEST_CASE("a rank that fails, and is ended while it cleans up, is told with both") {
  const Error failed = explain_failure({{ended_by(SIGABRT), kAbsent}, {exited(4), kLost}}, 0);
  CHECK(
      std::string(failed.what()) ==
      "rank 0 of 2 was ended by signal 6 (Aborted) after it failed: no file absent"
  );
  CHECK(failed.hint() == "name one");
  CHECK(failed.exit_code() == 128 + SIGABRT);
  constexpr const char* kCrash =
      R"({"crash": true, "text": "ended by signal 11 (Segmentation fault) outside of plugins", "hint": ""})";
  CHECK(
      said({{ended_by(SIGSEGV), kCrash}, {exited(4), kLost}}) ==
      "rank 0 of 2 was ended by signal 11 (Segmentation fault) outside of plugins"
  );
}

TEST_CASE("a signal that ends all ranks alike names none") {
  constexpr const char* kCrash =
      R"({"crash": true, "text": "ended by signal 11 (Segmentation fault) in plugin a, update", "hint": ""})";
  const EndedRank crashed{ended_by(SIGSEGV), kCrash};
  CHECK(
      said({crashed, crashed}) ==
      "all 2 ranks were ended by signal 11 (Segmentation fault) in plugin a, update"
  );
  CHECK(said({crashed, {ended_by(SIGSEGV), kCrash, true}}).starts_with("all 2 ranks were"));
  CHECK(said({crashed, {ended_by(SIGTERM), "", true}}).starts_with("all 2 ranks were"));
  CHECK(said({crashed, {ended_by(SIGTERM), kStarted, true}}).starts_with("rank 0 of 2 was"));
  CHECK(said({crashed, {exited(4), kLost}}).starts_with("rank 0 of 2 was"));
  const EndedRank killed{ended_by(SIGKILL), kStarted};
  CHECK(said({killed, killed}).starts_with("all 2 ranks were ended by signal 9"));
  const EndedRank early{ended_by(SIGKILL), ""}; // in its set-up, and the others heard nothing of it
  CHECK(said({early, {ended_by(SIGTERM), "", true}}).starts_with("rank 0 of 2 was ended by signal")
  );
}

TEST_CASE("a rank that says nothing is named with its end") {
  const Error killed = explain_failure({{exited(4), kLost}, {ended_by(SIGKILL), kStarted}}, 1);
  CHECK(std::string(killed.what()).starts_with("rank 1 of 2 was ended by signal 9"));
  CHECK(killed.exit_code() == 128 + SIGKILL);
  CHECK(killed.hint().find("dmesg") != std::string::npos);
  CHECK(said({{exited(3), "no json"}, {exited(4), kLost}}) == "rank 0 of 2 ended with status 3");
}

TEST_CASE("ranks of one node of several have the run's numbers") {
  const std::vector<EndedRank> ranks{{0, kStarted}, {ended_by(SIGKILL), kStarted}};
  CHECK(std::string(explain_failure(ranks, 1, 8, 16).what()).find("rank 9 of 16") == 0);
}

} // namespace rank_reports_tests
