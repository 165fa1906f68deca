#include "core/commands/submit.hpp"

#include "core/base/text.hpp"
#include "core/install/program.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/temporary_folder.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

namespace mh {

namespace {

/// The output of a program, and its exit status.
struct ProgramOutput {
  int status;
  std::string text;
};

ProgramOutput ask(const std::vector<std::string>& words) {
  const TemporaryFolder folder("megahost-submit");
  const auto log = folder.path() / "log";
  constexpr uint64_t kMost = 1 << 20;
  const int status = run_program(words, {.log = log});
  std::string text = read_file(log, kMost);
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return {status, terminal_text(text)};
}

/// Words of a refusal, and what they ask for.
struct Refusal {
  const char *words, *meaning;
};

constexpr std::array<Refusal, 16> kRefusals{{
    {"QOSMax",
     "the QOS of the job allows less than it asks for: fewer nodes or hours, or --sbatch "
     "--qos=OTHER"},
    {"QOSGrp", "the QOS of the job has no room left: wait, or --sbatch --qos=OTHER"},
    {"AssocMax",
     "your account allows one job less than it asks for: fewer nodes or hours, or "
     "--sbatch --account=OTHER"},
    {"AssocGrp", "your account's share is used up: wait, or --sbatch --account=OTHER"},
    {"Job violates accounting/QOS policy",
     "a limit of your account or QOS is below what is asked for (sacctmgr show assoc, sacctmgr show "
     "qos): fewer nodes, or fewer hours"},
    {"Invalid account", "name an account that may use the partition: --sbatch --account=NAME"},
    {"invalid partition", "name one that `sinfo` lists: --queue NAME"},
    {"Invalid qos", "name a QOS of your account: --sbatch --qos=NAME"},
    {"Requested time limit is invalid", "the partition has a shorter limit: fewer --hours"},
    {"Requested node configuration is not available",
     "no nodes of the partition have so many cores or GPUs: --queue names another partition, --nodes "
     "asks for fewer"},
    {"More processors requested than permitted", "fewer nodes, or another partition: --queue NAME"},
    {"Unable to contact slurm controller", "call it on a login node, where `sinfo` answers"},
    {"Could not establish a configuration source",
     "this machine belongs to no Slurm: call it on a login node, where `sinfo` answers, or name its "
     "slurm.conf by SLURM_CONF"},
    {"no matches for kind",
     "the cluster has not the operator of this target: install it, or take "
     "--target job, which needs none"},
    {"exceeded quota", "the namespace has a ResourceQuota: fewer nodes, or --namespace OTHER"},
    {"orbidden",
     "your user may not make such objects there: --namespace OTHER, or ask whoever "
     "governs the cluster"},
}};

std::string meaning_of(const std::string& text) {
  for (const Refusal& refusal : kRefusals) {
    if (text.find(refusal.words) != std::string::npos) {
      return refusal.meaning;
    }
  }
  return "";
}

void require_program(const std::string& name, const std::string& file) {
  if (!is_program(name)) {
    throw Error(
        "--submit needs " + name + ", and PATH has none",
        "the job is written: submit " + file + " where " + name + " is"
    );
  }
}

/// Throws with what a program said, if it failed.
void require_success(const ProgramOutput& said, const std::string& who) {
  if (said.status != 0) {
    throw Error(who + " refused the job: " + said.text, meaning_of(said.text), exit_code::other);
  }
}

/// The contexts of kubectl's configuration.
void require_context(const std::string& context) {
  const ProgramOutput known = ask({"kubectl", "config", "get-contexts", "--output=name"});
  std::vector<std::string> names;
  std::istringstream lines(known.text);
  for (std::string line; std::getline(lines, line);) {
    names.push_back(line);
  }
  if (known.status != 0 || names.empty()) {
    throw Error(
        "kubectl knows no cluster: its configuration has no context",
        "`aws eks update-kubeconfig --name CLUSTER` or KUBECONFIG gives it one"
    );
  }
  if (!context.empty() && std::find(names.begin(), names.end(), context) == names.end()) {
    throw Error("kubectl has no context \"" + context + "\"", "it knows " + join(names));
  }
}

} // namespace

int submit(
    const Invocation& invocation,
    const Job& job,
    const std::vector<JobFile>& files,
    const std::string& folder
) {
  const std::string part =
      invocation.value("--submit").empty() ? "train" : invocation.value("--submit");
  const auto file = std::find_if(files.begin(), files.end(), [&](const JobFile& one) {
    return one.submitted && one.name.starts_with(part + ".");
  });
  if (file == files.end()) {
    throw Error(
        "--submit=" + part + ": the job has no such part",
        part == "getdata" ? "--fetch and --fetch-to make it" : "--prepare and --prepare-to make it"
    );
  }
  const std::string path = (std::filesystem::path(folder) / file->name).string();
  if (job.target == "torchrun") {
    throw Error("--submit: torchrun is started on each node", "there: sh " + shell_word(path));
  }
  const bool kubernetes = find_target(job.target).kubernetes;
  if (invocation.has("--context") && !kubernetes) {
    throw Error("--context is kubectl's, and the target is " + job.target);
  }
  const std::string program = kubernetes ? "kubectl" : "sbatch";
  require_program(program, path);
  std::vector<std::string> words{program};
  if (kubernetes) {
    const std::string context = invocation.value("--context");
    require_context(context);
    if (!context.empty()) {
      words.push_back("--context=" + context);
    }
    words.insert(words.end(), {"apply", "--filename=" + path});
  } else {
    words.push_back(path);
  }
  const ProgramOutput said = ask(words);
  require_success(said, program);
  std::printf("%s\n", said.text.c_str());
  return 0;
}

} // namespace mh
