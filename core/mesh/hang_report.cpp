#include "core/mesh/hang_report.hpp"

#include "core/base/host_name.hpp"
#include "core/base/thread_stacks.hpp"

#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <system_error>

namespace mh {

namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

void write_report(
    const std::filesystem::path& folder,
    int64_t rank,
    pid_t process,
    const std::string& why,
    const std::string& rest
) {
  std::error_code unwritable; // a full disk is no reason to end a run
  std::filesystem::create_directories(folder, unwritable);
  std::ofstream(folder / ("rank-" + std::to_string(rank) + ".txt"))
      << rank_on(rank, host_name()) << ", process " << process << ", " << utc_now() << "\n"
      << why << "\n\n"
      << rest;
}

} // namespace

std::filesystem::path hang_folder(const std::filesystem::path& run) {
  return run / "hang";
}

void write_hang_report(
    const std::filesystem::path& folder,
    int64_t rank,
    const std::string& why,
    const CollectiveLog& log
) {
  write_report(folder, rank, getpid(), why, log.record() + "\n" + thread_stacks());
}

void write_report_of_silent(
    const std::filesystem::path& folder,
    int64_t rank,
    const std::string& why,
    pid_t process,
    const RankProgress& last
) {
  const std::string state = process_state(process);
  if (state.empty()) {
    return;
  }
  std::string place = "it told no place of it";
  if (last.last.number > 0) {
    place = "it told last that it was in step " + std::to_string(last.step) + ", at " +
            last.last.text() + (last.waits_in ? ", waiting" : "");
  }
  write_report(
      folder,
      rank,
      process,
      why,
      "this rank does not answer: another rank of its machine writes this, and " + place + "\n\n" +
          state
  );
}

} // namespace mh
