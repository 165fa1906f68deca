#include "core/records/progress_log.hpp"

#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace mh {

namespace {

constexpr const char* kTime = "%Y-%m-%d %H:%M:%S";
constexpr double kTera = 1e12;

/// The scheduler's name of this job; empty if none says it.
std::string job_id() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"}) {
    if (const char* id = std::getenv(name)) {
      return id;
    }
  }
  return "";
}

std::string time_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  char text[32];
  return {text, std::strftime(text, sizeof text, kTime, &local)};
}

std::optional<double> time_from(const std::string& text) {
  std::tm local{};
  local.tm_isdst = -1;
  const char* end = ::strptime(text.c_str(), kTime, &local);
  return end != nullptr && *end == '\0' ? std::optional<double>(std::mktime(&local)) : std::nullopt;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) {
    fields.push_back(field);
  }
  return fields;
}

/// The number behind the colon; 0 if there is none.
double number_in(const std::string& field) {
  const size_t colon = field.find(": ");
  return colon == std::string::npos ? 0 : std::strtod(field.c_str() + colon + 2, nullptr);
}

struct FirstStart {
  double time, flops;
};

/// The first of the last starts that all had as many ranks.
std::optional<FirstStart> first_start(const std::filesystem::path& file, int64_t ranks) {
  constexpr size_t kFlops = 7; // its field
  std::optional<FirstStart> first;
  double flops = 0;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const auto fields = fields_of(line);
    if (fields.size() < 4) {
      continue;
    }
    flops = fields.size() > kFlops ? number_in(fields[kFlops]) : flops;
    const auto time = time_from(fields[0]);
    if (static_cast<int64_t>(number_in(fields[2])) != ranks) {
      first.reset();
    } else if (fields[3] == "Starting job" && !first && time) {
      first = FirstStart{*time, flops};
    }
  }
  return first;
}

} // namespace

ProgressLog::ProgressLog(const std::filesystem::path& folder, int64_t ranks, const RunWork& begin)
    : file_(folder / "progress.txt")
    , ranks_(ranks)
    , begin_(unix_now())
    , flops_(begin.flops)
    , first_begin_(begin_)
    , first_flops_(begin.flops) {
  append("Starting job", begin_);
  if (const auto first = first_start(file_, ranks)) {
    first_begin_ = first->time;
    first_flops_ = first->flops;
  }
}

void ProgressLog::saved(const RunWork& done) const {
  const double now = unix_now();
  const auto rate = [&](double begin, double flops) {
    const double seconds = now - begin;
    return seconds > 0 ? (done.flops - flops) / (seconds * kTera * static_cast<double>(ranks_)) : 0;
  };
  append(
      formatted(
          "Saved checkpoint\tIteration: %lld\tJob throughput: %.1f TFLOP/s/GPU\t"
          "Cumulative throughput: %.1f TFLOP/s/GPU\tFloating-point operations: %.2e\t"
          "Tokens (in billions): %.2f",
          static_cast<long long>(done.step),
          rate(begin_, flops_),
          rate(first_begin_, first_flops_),
          done.flops,
          static_cast<double>(done.tokens) / 1e9
      ),
      now
  );
}

void ProgressLog::append(const std::string& text, double now) const {
  std::ofstream stream(file_, std::ios::app);
  stream << time_text(now) << "\tJob ID: " << job_id() << "\t# GPUs: " << ranks_ << "\t" << text
         << "\n";
}

} // namespace mh
