#pragma once
/// The profile of some steps: a trace for Perfetto or Chrome, and tables by operation and by part
/// of the model. LibTorch calls back for every operation, forward and backward; scopes that the
/// blocks open (RECORD_USER_SCOPE) name the part it belongs to. Outside of the profiled steps
/// nothing is listening.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace mh {

/// Steps, both ends included.
struct StepRange {
  int64_t first = 0, last = 0;

  [[nodiscard]] bool has(int64_t step) const { return step >= first && step <= last; }
};

/// "10:20", or "10" for one step.
///
/// Throws:  mh::Error for anything else
[[nodiscard]] StepRange parse_steps(const std::string& text);

/// Listens to one step at a time and adds them up. One at a time per process.
class Profile {
public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin_step(int64_t step);
  void end_step();

  /// Tables of the steps so far: operations, parts of the model (the layers as one), blocks. The
  /// times of each table add up to the time of the steps. Empty if there was no step. `rows` limits
  /// each table.
  [[nodiscard]] std::string tables(size_t rows) const;
  /// Chrome's trace events.
  [[nodiscard]] std::string trace() const;

private:
  class Recorder;
  std::unique_ptr<Recorder> recorder_;
};

/// Writes trace.json and tables.txt into the folder.
///
/// Throws:  mh::Error (exit code 5) naming the file that cannot be written
void write_profile(const Profile& profile, const std::filesystem::path& folder);

} // namespace mh
