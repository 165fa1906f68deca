#pragma once
/// A job as text: a row for each target.

#include "core/launch/job.hpp"
#include "megahost/export.hpp"

#include <string>
#include <vector>

namespace mh {

/// A file that is submitted, or that one needs next to it.
struct JobFile {
  std::string name; ///< in the folder
  std::string text;
  bool submitted = true;
};

/// The description of a target.
struct Target {
  const char* name;
  const char* summary; ///< in help and messages
  bool kubernetes;
  bool gang;      ///< can be scheduled as a whole by what --gang names
  bool container; ///< needs an image
  std::vector<JobFile> (*write)(const Job& job, const std::string& folder);
};

[[nodiscard]] MH_API const std::vector<Target>& targets();

/// Throws:  mh::Error for a name that no row has
[[nodiscard]] MH_API const Target& find_target(const std::string& name);

/// Versions of Kubeflow Trainer whose API the target "trainjob" knows, the newest last.
[[nodiscard]] MH_API const std::vector<std::string>& trainer_versions();

/// Files of a job, in the order in which they are submitted. `folder`: where they will lie, as
/// scripts name it.
[[nodiscard]] MH_API std::vector<JobFile> write_job(const Job& job, const std::string& folder);

/// Lines that differ, as `diff -u` shows them; empty if none do.
[[nodiscard]] MH_API std::string
text_diff(const std::string& before, const std::string& after, const std::string& name);

} // namespace mh
