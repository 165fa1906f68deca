// A run's journal, what its time went into, and the rank that others wait for.

#include "core/records/goodput.hpp"

#include "core/records/journal.hpp"
#include "core/records/rank_times.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace fs = std::filesystem;

namespace {

using mh::JournalEvent;
using mh::StepPart;

class JournalFolder {
public:
  JournalFolder()
      : path(fs::temp_directory_path() / ("mh-journal-" + std::to_string(getpid()))) {
    fs::remove_all(path);
    fs::create_directories(path);
  }

  ~JournalFolder() { fs::remove_all(path); }

  JournalFolder(const JournalFolder&) = delete;
  JournalFolder& operator=(const JournalFolder&) = delete;

  fs::path path;
};

mh::StepRecord step_at(double time, double seconds, double data = 0, bool skipped = false) {
  mh::StepRecord record;
  record.time = time;
  record.seconds = seconds;
  record.data_seconds = data;
  record.skipped = skipped;
  return record;
}

mh::RankTimes rank(double forward, double backward, double waiting, int64_t stage = 0) {
  mh::RankTimes one{"n1", stage, {}};
  one.typical[StepPart::forward] = forward;
  one.typical[StepPart::backward] = backward;
  one.typical[StepPart::waiting] = waiting;
  return one;
}

TEST_CASE("the time of a run without a fault") {
  // Processes begin at 100, steps at 110; an evaluation of 3 s, a save of 1 s, 2 s of nothing.
  const std::vector<JournalEvent> journal{
      {.kind = "start", .time = 110, .seconds = 10},
      {.kind = "evaluation", .time = 117, .seconds = 3},
      {.kind = "save", .time = 124, .step = 3, .seconds = 1},
      {.kind = "end", .time = 124, .text = "finished"}};
  const auto found =
      mh::goodput({step_at(114, 4, 1), step_at(121, 4), step_at(122, 1, 0, true)}, journal);
  REQUIRE(found);
  CHECK(found->total == 24);
  CHECK(found->useful == 7);
  CHECK(found->data == 1);
  CHECK(found->skipped == 1);
  CHECK(found->start_up == 10);
  CHECK(found->evaluation == 3);
  CHECK(found->saving == 1);
  CHECK(found->other == 1);
  CHECK(found->restart == 0);
  CHECK(found->starts == 1);
  CHECK(
      mh::goodput_text(*found) ==
      "29.2% of 24s; 41.7% start-up, 12.5% evaluation, 4.2% skipped steps, 4.2% waiting for data, "
      "4.2% saving, 4.2% other"
  );
}

TEST_CASE("the time of a run that was killed") {
  // Killed after its metric of 130; the next process begins at 150, can step at 155, and does 8 s
  // again that the metrics have lost.
  const std::vector<JournalEvent> journal{
      {.kind = "start", .time = 105, .seconds = 5},
      {.kind = "restart", .time = 149},
      {.kind = "start",
       .time = 155,
       .seconds = 5,
       .lost_steps = 2,
       .lost_seconds = 8,
       .alive = 130},
  };
  const auto found = mh::goodput({step_at(122, 17), step_at(163, 8)}, journal);
  REQUIRE(found);
  CHECK(found->total == 63);
  CHECK(found->useful == 25);
  CHECK(found->restart == 20);
  CHECK(found->recomputed == 8);
  CHECK(found->start_up == 10);
  CHECK(found->other == 0);
  CHECK(mh::goodput_text(*found).ends_with("; 2 starts"));
}

TEST_CASE("between an end and what comes then") {
  const auto time_after = [](const char* reason) {
    return *mh::goodput(
        {step_at(110, 5), step_at(1015, 5)},
        {{.kind = "start", .time = 105, .seconds = 5},
         {.kind = "end", .time = 110, .text = reason},
         {.kind = "start", .time = 1010, .seconds = 10, .alive = 110}}
    );
  };
  CHECK(time_after("finished").total == 25); // a person went on with it later
  CHECK(time_after("SIGINT").restart == 0);
  CHECK(time_after("SIGTERM").restart == 890); // a scheduler ended it
  CHECK(time_after("SIGTERM").total == 915);
  CHECK_FALSE(mh::goodput({step_at(110, 5)}, {})); // an older version's
}

TEST_CASE("a journal of many writers") {
  const JournalFolder folder;
  const mh::Journal journal(folder.path);
  std::vector<std::thread> writers;
  for (int64_t i = 0; i < 8; ++i) {
    writers.emplace_back([&folder, i] {
      const mh::Journal own(folder.path);
      for (int64_t n = 0; n < 50; ++n) {
        own.note({.kind = "warning", .step = i, .text = std::string(300, 'x') + "\n\xff"});
      }
    });
  }
  for (auto& writer : writers) {
    writer.join();
  }
  CHECK(mh::read_journal(folder.path).size() == 400);
  std::ofstream(folder.path / "journal.jsonl", std::ios::app)
      << "no event\n{\"event\": 3, \"time\": 1}\n[]\n{\"event\": \"end\"}\n{\"event\": \"en";
  journal.note({.kind = "on a line of its own"});
  journal.note({.kind = "end", .time = 12.3456, .step = 7, .text = "finished"});
  const auto events = mh::read_journal(folder.path);
  REQUIRE(events.size() == 402);
  CHECK(events[400].kind == "on a line of its own");
  CHECK(events.back().kind == "end");
  CHECK(events.back().time == 12.346);
  CHECK(events.back().text == "finished");
  mh::Journal().note({.kind = "nowhere"});
  mh::Journal(folder.path / "none").note({.kind = "nowhere"});
  CHECK(mh::read_journal(folder.path / "none").empty());
}

TEST_CASE("how old this process is") {
  const double age = mh::process_age();
  CHECK(age >= 0);
  CHECK(age < 600);
}

TEST_CASE("the slowest rank and its part") {
  CHECK_FALSE(mh::find_straggler({rank(1, 2, 0.1), rank(1.1, 2.1, 0)}));
  auto found = mh::find_straggler({rank(1, 2, 1), rank(1, 2, 1), rank(1.2, 3, 0), rank(1, 2, 1)});
  REQUIRE(found);
  CHECK(found->rank == 2);
  CHECK(found->part == StepPart::backward);
  CHECK(found->ratio == doctest::Approx(1.4));
  CHECK(found->seconds == 3);
  CHECK(found->others == 2);
  // The slower of two that are slow; of two ranks, the slow one.
  CHECK(
      mh::find_straggler({rank(1, 1, 0), rank(3, 1, 0), rank(1, 4, 0), rank(1, 1, 0), rank(1, 1, 0)}
      )
          ->rank == 2
  );
  CHECK(mh::find_straggler({rank(2, 2, 0), rank(1, 1, 2)})->rank == 0);
  // Two ranks whose steps hardly differ: most of their time they wait for something else.
  CHECK_FALSE(mh::find_straggler({rank(1, 1, 98), rank(2, 2, 96)}));
  // Stages differ; ranks of one do not. A stage of one rank is compared with the others.
  CHECK_FALSE(
      mh::find_straggler({rank(1, 1, 2, 0), rank(1, 1, 2, 0), rank(2, 2, 0, 1), rank(2, 2, 0, 1)})
  );
  CHECK(mh::find_straggler({rank(1, 1, 2, 0), rank(1, 1, 2, 1), rank(2, 2, 0, 2)})->rank == 2);
  CHECK_FALSE(mh::find_straggler({rank(1, 1, 0)}));
  CHECK_FALSE(mh::find_straggler({}));
}

TEST_CASE("every fifty steps, once for each that becomes slow") {
  mh::Ranks two;
  two.gather = [](const std::string& own) {
    std::string other = own; // it takes a tenth of the forward pass
    const auto at = other.find("\"forward\":");
    other.replace(at, other.find(',', at) - at, "\"forward\":0.1");
    return std::vector{own, other};
  };
  mh::RankComparison comparison(two, /*stage=*/0, /*hosts_compute=*/true);
  mh::PartTimes slow;
  slow[StepPart::forward] = 1;
  std::vector<std::string> said;
  for (int64_t step = 1; step <= 200; ++step) {
    slow[StepPart::forward] = step <= 100 ? (step % 10 == 0 ? 60 : 1) : 0.1; // spikes do not count
    if (const auto table = comparison.add(step, slow)) {
      CHECK(table->last == step);
      CHECK(table->first == step - 49);
      said.push_back(comparison.sentence(*table));
    }
  }
  REQUIRE(said.size() == 4);
  CHECK(said[0].find("rank 0 on ") == 0);
  CHECK(
      said[0].find(
          " is slow: its steps 1 to 50 took it 10.0 times as long as the others, most of that "
          "in forward, 1e+03 ms against 100 ms"
      ) != std::string::npos
  );
  CHECK(said[1].empty());
  CHECK(said[2].ends_with(" is as fast as the others again"));
  CHECK(said[3].empty());
}

TEST_CASE("the table of ranks in a run folder") {
  const JournalFolder folder;
  CHECK_FALSE(mh::read_rank_table(folder.path));
  mh::write_rank_table(folder.path, {51, 100, {rank(1, 2, 3), rank(4, 5, 6, 1)}});
  const auto table = mh::read_rank_table(folder.path);
  REQUIRE(table);
  CHECK(table->first == 51);
  CHECK(table->ranks[1].stage == 1);
  CHECK(table->ranks[1].typical.busy() == 9);
  for (const char* bad :
       {"",
        "[",
        "3",
        "{}",
        R"({"first_step":1,"last_step":2,"ranks":[{}]})",
        R"({"first_step":"a","last_step":2,"ranks":[]})"}) {
    std::ofstream(folder.path / "ranks.json") << bad;
    CHECK_FALSE(mh::read_rank_table(folder.path));
  }
}

} // namespace
