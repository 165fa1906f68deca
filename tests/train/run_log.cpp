#include "core/records/run_log.hpp"

#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/records/progress_log.hpp"
#include "core/storage/temporary_folder.hpp"
#include "core/train/signals.hpp"
#include "megahost/error.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <fstream>
#include <iterator>
#include <regex>

namespace fs = std::filesystem;

namespace {

void make_run_folder(const fs::path& folder, const std::string& recipe) {
  const auto lock = mh::take_run_folder(folder);
  mh::write_run_recipe(folder, recipe);
}

class Lines : public mh::Output {
public:
  void line(const std::string& text) override { lines.push_back(text); }

  void progress(double done, const std::string&) override { share = done; }

  std::vector<std::string> lines;
  double share = 0;
};

const mh::Rates kRates{
    .iterations = 40,
    .global_batch = 8,
    .tokens_per_sample = 100,
    .flops_per_sample = 1e11,
    .peak_flops = 4e12};

mh::StepRecord record(int64_t step, double loss) {
  return {
      .step = step,
      .samples = 8 * step,
      .tokens = 800 * step,
      .losses = {{"lm loss", loss}},
      .lr = 1e-3,
      .next_lr = 2e-3,
      .gradient_norm = 0.5,
      .seconds = 0.4,
      .memory = 1'500'000'000};
}

fs::path fresh_folder(const std::string& name) {
  const auto folder =
      fs::temp_directory_path() / ("mh-train-" + name + "-" + std::to_string(getpid()));
  fs::remove_all(folder);
  return folder;
}

std::string contents(const fs::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

} // namespace

TEST_CASE("the line format shows means, rates and the share of the peak, in the field's order") {
  const auto shown = [](const mh::Rates& rates, const mh::Outlook& outlook) {
    return mh::join(mh::step_fields({record(9, 2), record(10, 3)}, rates, outlook), " | ");
  };
  CHECK(
      shown(kRates, {.loss_z = 0.44, .norm_z = -1.26, .seconds_left = 80}) ==
      "step     10/40 | lm loss 2.5000 (+0.4z) | grad norm 0.500 (-1.3z) | lr 1.000e-03 | 400.0 ms "
      "| "
      "2,000 tokens/s | 2.000 TFLOP/s | MFU 50.0% | mem 1.50 GB | ETA 1m 20s"
  );
  auto unknown = kRates;
  unknown.peak_flops = 0;
  CHECK(shown(unknown, {}).find("lm loss 2.5000 | grad norm 0.500 | ") != std::string::npos);
  CHECK(shown(unknown, {}).find("MFU n/a") != std::string::npos);
}

TEST_CASE("steps that do more than the peak have no MFU, which is said once") {
  auto busy = kRates;
  busy.peak_flops = 1e12;
  Lines output;
  mh::RunLog log(output, "", {.interval = 1}, busy, 0, "");
  for (int64_t step = 1; step <= 3; ++step) {
    log.step(record(step, 2));
  }
  const std::string text = mh::join(output.lines, "\n");
  CHECK(text.find("steps do 2 TFLOP/s, more than the peak of 1. ") != std::string::npos);
  CHECK(text.find("more than the peak") == text.rfind("more than the peak"));
  CHECK(text.find("MFU n/a") != std::string::npos);
  CHECK(mh::peak_warning({record(1, 2)}, kRates).empty());
}

TEST_CASE("a robust score measures in median distances from the median, outliers or not") {
  mh::RobustZ scores;
  for (int i = 0; i < 16; ++i) {
    CHECK_FALSE(scores.add(i % 2 == 0 ? 1 : 3).has_value()); // too few yet
  }
  // median 3 (the upper one), distances 0 and 2: their upper median is 2
  CHECK(*scores.add(3 + 2 * 1.4826 * 2) == doctest::Approx(2));
  CHECK(*scores.add(1e9) > 1e8);
  CHECK(*scores.add(3) == doctest::Approx(0)); // those two changed nothing
  mh::RobustZ equal;
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(equal.add(2).has_value());
  }
  mh::RobustZ forgetful;
  for (size_t i = 0; i < mh::RobustZ::kWindow; ++i) {
    (void)forgetful.add(1e6 + static_cast<double>(i % 2));
  }
  for (size_t i = 0; i < mh::RobustZ::kWindow; ++i) {
    (void)forgetful.add(i % 2 == 0 ? 1 : 3);
  }
  CHECK(std::abs(*forgetful.add(3)) < 1); // nothing of the large values is left
}

TEST_CASE("Megatron's line has its fields in its order, and its next learning rate") {
  const std::regex form(
      R"re( \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration       10/      40 \| )re"
      R"re(consumed samples:           80 \| elapsed time per iteration \(ms\): 400\.0 \| )re"
      R"re(throughput per GPU \(TFLOP/s/GPU\): 2\.0 \| learning rate: 2\.000000E-03 \| )re"
      R"re(global batch size:     8 \| lm loss: 2\.500000E\+00 \| loss scale: 1\.0 \| grad norm: 0\.500 \| )re"
      R"re(number of skipped iterations:   0 \| number of nan iterations:   0 \| .*)re"
  );
  const auto line = mh::megatron_line({record(9, 2), record(10, 3)}, kRates);
  CHECK_MESSAGE(std::regex_match(line, form), line);
}

TEST_CASE("json lines parse") {
  const auto json = nlohmann::json::parse(mh::json_line({record(10, 3)}, kRates, {.loss_z = 1.5}));
  CHECK(json["losses"]["lm loss"] == 3);
  CHECK(json["mfu"] == 0.5);
  CHECK(json["memory"] == 1'500'000'000);
  CHECK(json["loss_z"] == 1.5);
  CHECK(json["gradient_norm_z"].is_null());
}

TEST_CASE("a line covers the steps since the last one, and metrics are cut at the step resumed from"
) {
  const auto folder = fresh_folder("log");
  make_run_folder(folder, "name = \"x\"\n");
  Lines output;
  {
    mh::RunLog log(output, folder, {.interval = 2}, kRates, 0);
    for (int64_t step = 1; step <= 5; ++step) {
      log.step(record(step, 10.0 - static_cast<double>(step)));
    }
    log.evaluation({.step = 4, .samples = 32, .losses = {{"lm loss", 7}}});
    REQUIRE(output.lines.size() == 3);
    CHECK(output.lines[0].find("lm loss 8.5000") != std::string::npos); // steps 1 and 2
    CHECK(output.lines[1].find("lm loss 6.5000") != std::string::npos); // steps 3 and 4
    CHECK(output.lines[2] == "step      4/40 | validation | lm loss 7.0000 | perplexity 1096.63");
    CHECK(output.share == doctest::Approx(5.0 / 40));
  }
  std::ofstream(folder / "metrics.jsonl", std::ios::app)
      << "{\"step\": 3, \"los"; // cut off by a crash
  mh::RunLog log(output, folder, {.interval = 2}, kRates, 4);
  REQUIRE(log.curves().train.size() == 4);
  CHECK(log.curves().train.back().second == 6);
  CHECK(log.curves().validation.size() == 1);
  log.step(record(5, 1));
  std::istringstream metrics(contents(folder / "metrics.jsonl"));
  int count = 0;
  for (std::string text; std::getline(metrics, text); ++count) {
    CHECK(nlohmann::json::accept(text));
  }
  CHECK(count == 6);
  fs::remove_all(folder);
}

TEST_CASE("metrics are read as they were written; what is no metric is passed over") {
  const auto folder = fresh_folder("metrics");
  fs::create_directories(folder);
  const auto file = folder / "metrics.jsonl";
  auto third = record(3, 2.5);
  third.metrics = {{"tokens per expert", {3, 0, 5}}};
  std::ofstream(file) << mh::metric_line(third) << "\n"
                      << "{\"step\": 4}\nnull\n[1]\n\"x\"\n"
                      << mh::metric_line(mh::EvalRecord{3, 24, {{"lm loss", 2.25}}}) << "\n"
                      << "{\"step\": 5, \"los";
  std::vector<mh::Metric> metrics;
  mh::each_metric(file, [&](const auto& metric, const auto&) { metrics.push_back(metric); });
  REQUIRE(metrics.size() == 2);
  const auto& step = std::get<mh::StepRecord>(metrics[0]);
  CHECK(step.samples == 24);
  CHECK(step.tokens == 2400);
  CHECK(step.losses.front().name == "lm loss");
  CHECK(step.losses.front().value == 2.5);
  CHECK(step.memory == 1'500'000'000);
  REQUIRE(step.metrics.size() == 1);
  CHECK(step.metrics.front().name == "tokens per expert");
  CHECK(step.metrics.front().values == std::vector<double>{3, 0, 5});
  CHECK(std::get<mh::EvalRecord>(metrics[1]).losses.front().value == 2.25);
  CHECK(std::get<mh::EvalRecord>(metrics[1]).samples == 24);
  fs::remove_all(folder);
}

TEST_CASE("thinned metrics stay spread over all that were added") {
  mh::ThinnedMetrics thinned(10);
  for (int64_t step = 1; step <= 1000; ++step) {
    thinned.add(record(step, 1));
  }
  const auto& kept = thinned.kept();
  CHECK(kept.size() >= 5);
  CHECK(kept.size() < 10);
  const auto distance = mh::step_of(kept[1]) - mh::step_of(kept[0]);
  for (size_t i = 1; i < kept.size(); ++i) {
    CHECK(mh::step_of(kept[i]) - mh::step_of(kept[i - 1]) == distance);
  }
}

TEST_CASE("each start has an event file of its own, later in the order of names") {
  const auto folder = fresh_folder("events");
  fs::create_directories(folder);
  Lines output;
  for (const int64_t resumed : {0, 2, 2}) {
    const mh::RunLog log(output, folder, {}, kRates, resumed, "name = 1\n");
  }
  { const mh::RunLog log(output, folder, {.tensorboard = false}, kRates, 2); }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "tensorboard")) {
    names.push_back(entry.path().filename().string());
    CHECK(contents(entry.path()).find("name = 1") != std::string::npos);
  }
  REQUIRE(names.size() == 3);
  std::sort(names.begin(), names.end());
  CHECK(names[0].substr(0, 30) < names[1].substr(0, 30));
  CHECK(names[1].substr(0, 30) < names[2].substr(0, 30));
  CHECK(output.lines.empty());
  fs::remove_all(folder);
}

TEST_CASE("a fresh run never takes another run's folder, a resumed one takes the newest") {
  const auto folder = fresh_folder("folder");
  CHECK(mh::run_folder(folder, false) == folder);
  CHECK(mh::run_folder(folder, true) == folder);
  make_run_folder(folder, "a");
  CHECK(mh::run_folder(folder, false) == folder.string() + "-2");
  CHECK(mh::run_folder(folder, true) == folder);
  make_run_folder(folder.string() + "-2", "b");
  CHECK(mh::run_folder(folder, true) == folder.string() + "-2");
  CHECK(mh::folder_notes(folder, folder.string() + "-2", false, false).size() == 1);
  CHECK(mh::folder_notes(folder, folder, true, false).empty());
  CHECK(contents(folder / "recipe.toml") == "a");
  CHECK(mh::run_folder(folder, true, /*named=*/true) == folder);
  // The last that was started, whatever the gaps in their numbers.
  fs::remove_all(folder);
  CHECK(mh::run_folder(folder, true) == folder.string() + "-2");
  make_run_folder(folder.string() + "-11", "c");
  CHECK(mh::run_folder(folder, true) == folder.string() + "-11");
  const auto later =
      fs::last_write_time(folder.string() + "-11/recipe.toml") + std::chrono::seconds(1);
  fs::last_write_time(folder.string() + "-2/recipe.toml", later);
  CHECK(mh::run_folder(folder, true) == folder.string() + "-2");
  make_run_folder(folder.string() + "-mine", "of another name");
  fs::last_write_time(folder.string() + "-mine/recipe.toml", later + std::chrono::seconds(1));
  CHECK(mh::run_folder(folder, true) == folder.string() + "-2");
  CHECK(mh::run_folder(folder, false) == folder);
  for (const char* number : {"-2", "-11", "-mine"}) {
    fs::remove_all(folder.string() + number);
  }
}

TEST_CASE("a folder that cannot be made is named") {
  const auto file = fresh_folder("file");
  std::ofstream(file) << "not a folder";
  try {
    make_run_folder(file / "run", "");
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    CHECK(std::string(error.what()).find(file.string()) != std::string::npos);
  }
  fs::remove(file);
}

TEST_CASE("the first signal is remembered, the handlers go with the object") {
  {
    const mh::StopSignals signals;
    CHECK(signals.received().empty());
    std::raise(SIGTERM);
    CHECK(signals.received() == "SIGTERM");
  }
  const mh::StopSignals signals;
  CHECK(signals.received().empty());
  std::raise(SIGINT);
  CHECK(signals.received() == "SIGINT");
}

/// Seconds to live, by its alarm, of a rank that is told to stop. `alone`: once its launcher has ended.
unsigned left_to_live(bool alone) {
  std::array<int, 2> ready{}, answer{};
  REQUIRE(pipe(ready.data()) == 0);
  REQUIRE(pipe(answer.data()) == 0);
  const pid_t launcher = fork();
  if (launcher == 0) {
    setenv("MEGAHOST_ERROR_FD", "2", 1);
    const pid_t own = getpid();
    const pid_t rank = fork();
    char word = 'r';
    if (rank != 0) { // ends when the rank is ready, or when it has answered
      (void)!read(ready[0], &word, 1);
      if (!alone) {
        waitpid(rank, nullptr, 0);
      }
      _exit(0);
    }
    const mh::StopSignals signals;
    (void)!write(ready[1], &word, 1);
    while (alone && getppid() == own) {
      usleep(1000);
    }
    std::raise(SIGTERM);
    const unsigned left = alarm(0);
    (void)!write(answer[1], &left, sizeof left);
    _exit(0);
  }
  unsigned left = 0;
  CHECK(read(answer[0], &left, sizeof left) == sizeof left);
  waitpid(launcher, nullptr, 0);
  for (const int end : {ready[0], ready[1], answer[0], answer[1]}) {
    close(end);
  }
  return left;
}

TEST_CASE("a rank that is told to stop when its launcher has ended does not live on") {
  CHECK(left_to_live(/*alone=*/true) > 500);
  CHECK(left_to_live(/*alone=*/false) == 0);
}

TEST_CASE("numbers as people read them") {
  CHECK(mh::grouped(0) == "0");
  CHECK(mh::grouped(999) == "999");
  CHECK(mh::grouped(1000) == "1,000");
  CHECK(mh::grouped(-1234567) == "-1,234,567");
  CHECK(mh::bytes_text(1500) == "1.5 kB");
  CHECK(mh::bytes_text(2'500'000'000) == "2.50 GB");
  CHECK(mh::duration_text(59.4) == "59s");
  CHECK(mh::duration_text(125) == "2m 05s");
  CHECK(mh::duration_text(3720) == "1h 02m");
  CHECK(mh::perplexity(100) == doctest::Approx(std::exp(20)));
}

namespace {

/// The fields of each line of a folder's progress.txt.
std::vector<std::vector<std::string>> progress_lines(const fs::path& folder) {
  std::vector<std::vector<std::string>> lines;
  std::ifstream stream(folder / "progress.txt");
  for (std::string line; std::getline(stream, line);) {
    std::istringstream fields(line);
    auto& last = lines.emplace_back();
    for (std::string field; std::getline(fields, field, '\t');) {
      last.push_back(field);
    }
  }
  return lines;
}

} // namespace

TEST_CASE("progress.txt has a line for each start and checkpoint, as Megatron-LM writes them") {
  const mh::TemporaryFolder folder("mh-progress");
  ::setenv("SLURM_JOB_ID", "712", 1);
  const mh::ProgressLog log(folder.path(), 4, {5, 4e12, 100});
  log.saved({10, 8e12, 2'500'000'000});
  ::unsetenv("SLURM_JOB_ID");
  const mh::ProgressLog again(folder.path(), 2, {10, 8e12, 200});
  const auto lines = progress_lines(folder.path());
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].size() == 4);
  CHECK(lines[0][0].size() == std::string("2020-01-01 10:00:00").size());
  CHECK(lines[0][1] == "Job ID: 712");
  CHECK(lines[0][2] == "# GPUs: 4");
  CHECK(lines[0][3] == "Starting job");
  REQUIRE(lines[1].size() == 9);
  CHECK(lines[1][3] == "Saved checkpoint");
  CHECK(lines[1][4] == "Iteration: 10");
  CHECK(lines[1][5].starts_with("Job throughput: "));
  CHECK(lines[1][5].ends_with(" TFLOP/s/GPU"));
  CHECK(lines[1][7] == "Floating-point operations: 8.00e+12");
  CHECK(lines[1][8] == "Tokens (in billions): 2.50");
  CHECK(lines[2][1] == "Job ID: ");
}

TEST_CASE("cumulative throughput is that since the first of the last starts on as many ranks") {
  const mh::TemporaryFolder folder("mh-progress");
  const auto start = [](const std::string& time, int ranks) {
    return time + "\tJob ID: \t# GPUs: " + std::to_string(ranks) + "\tStarting job\n";
  };
  const std::string saved =
      "2020-01-01 10:00:00\tJob ID: \t# GPUs: 3\tSaved checkpoint\tIteration: 5\t"
      "Job throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\t"
      "Floating-point operations: 1.00e+20\tTokens (in billions): 0.00\n";
  std::ofstream(folder.path() / "progress.txt")
      << start("2010-01-01 10:00:00", 2) << start("2015-01-01 10:00:00", 3) << saved
      << start("2020-01-02 10:00:00", 2) << start("2021-01-01 10:00:00", 2);
  const mh::ProgressLog log(folder.path(), 2, {5, 1e20, 0});
  std::tm first{};
  first.tm_year = 120, first.tm_mday = 2, first.tm_hour = 10, first.tm_isdst = -1;
  const double seconds = mh::unix_now() - static_cast<double>(std::mktime(&first));
  log.saved({9, 1e20 + 2 * 1e12 * 7.5 * seconds, 0}); // two ranks at 7.5 TFLOP/s each
  CHECK(progress_lines(folder.path()).back()[6] == "Cumulative throughput: 7.5 TFLOP/s/GPU");
}
