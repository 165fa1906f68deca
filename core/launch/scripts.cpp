#include "core/launch/scripts.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"

#include <cmath>

namespace mh {

namespace {

constexpr const char* kRecipeFile = "recipe.toml";

std::string words(const std::vector<std::string>& command) {
  std::vector<std::string> quoted;
  for (const std::string& word : command) {
    quoted.push_back(shell_word(word));
  }
  return join(quoted, " ");
}

std::string exports(const Job& job) {
  std::string text;
  for (const JobVariable& variable : job.environment) {
    text += "export " + variable.name + "=" + shell_word(variable.value) + "  # " +
            variable.reason + "\n";
  }
  return text;
}

/// Options of sbatch that all scripts of a job have.
std::string sbatch_lines(const Job& job, const std::string& part) {
  std::string text = "#SBATCH --job-name=" + job.name + part +
                     "\n"
                     "#SBATCH --output=%x-%j.out\n";
  for (const std::string& option : job.sbatch) {
    text += "#SBATCH " + option + "\n";
  }
  return text;
}

std::string queue_line(const Job& job) {
  return job.queue.empty() ? "" : "#SBATCH --partition=" + job.queue + "\n";
}

/// Hours as Slurm writes minutes: "26:30:00".
std::string slurm_time(double hours) {
  const auto minutes = static_cast<int64_t>(std::ceil(60 * hours));
  return formatted("%ld:%02ld:00", minutes / 60, minutes % 60);
}

/// The container options of srun (pyxis).
std::string container(const Job& job) {
  if (job.image.empty()) {
    return "";
  }
  std::vector<std::string> mounts;
  for (const Volume& volume : job.volumes) {
    mounts.push_back(
        (volume.kind == Volume::Kind::host ? volume.name : volume.path) + ":" + volume.path
    );
  }
  // The recipe, and relative paths, are those of the folder where sbatch was called.
  mounts.emplace_back("$PWD:$PWD");
  return " \\\n  --container-image=" + shell_word(job.image) + " --container-mounts=\"" +
         join(mounts, ",") + "\" --container-workdir=\"$PWD\"";
}

/// A script for one process.
JobFile single_script(const Job& job, const std::string& name, const std::string& command) {
  return {
      name + ".sbatch",
      "#!/bin/sh\n" + sbatch_lines(job, "-" + name) +
          "#SBATCH --nodes=1\n"
          "#SBATCH --ntasks=1\n" +
          command};
}

/// Puts the job into the queue once more where another start goes on: exit statuses say so.
std::string again(const Job& job) {
  if (job.restarts == 0) {
    return "exit $status\n";
  }
  return "case $status in\n"
         "  138 | 143) ;;  # asked to end, a checkpoint is saved; scancel ends this script, too\n"
         "  4 | 137 | 139)  # ranks lost each other, or one was killed or has crashed\n"
         "    [ \"${SLURM_RESTART_COUNT:-0}\" -lt " +
         std::to_string(job.restarts) +
         " ] || exit $status ;;\n"
         "  *) exit $status ;;\n"
         "esac\n"
         "exec scontrol requeue \"$SLURM_JOB_ID\"\n";
}

} // namespace

std::vector<std::string> run_command(const Job& job, const std::string& recipe) {
  std::vector<std::string> words{"megahost", "run", recipe, "--resume=auto"};
  if (job.preflight) {
    words.emplace_back("--preflight");
  }
  if (!job.copy_to.empty()) {
    words.insert(words.end(), {"--copy-to", job.copy_to});
  }
  return words;
}

std::vector<std::string> compile_command(const std::string& recipe, const std::string& folder) {
  return {"megahost", "program", recipe, "-o", folder, "--compile"};
}

std::string fetch_lines(const Job& job) {
  std::string text =
      "mkdir -p " + shell_word(job.fetch_to) + "\ncd " + shell_word(job.fetch_to) + "\n";
  for (const std::string& address : job.fetch) {
    text += address.starts_with("s3://")
                ? "aws s3 cp --no-progress " + shell_word(address) + " .\n"
                : "curl --fail --location --remote-name --retry 5 --continue-at - " +
                      shell_word(address) + "\n";
  }
  return text;
}

std::vector<std::string> prepare_command(const Job& job, const std::string& recipe) {
  std::vector<std::string> command{"megahost", "data", "prepare"};
  command.insert(command.end(), job.prepare.begin(), job.prepare.end());
  command.insert(command.end(), {"--output", job.prepare_to, "--recipe", recipe});
  command.insert(command.end(), job.prepare_options.begin(), job.prepare_options.end());
  return command;
}

std::vector<JobFile> write_slurm(const Job& job, const std::string& folder) {
  const std::string recipe = folder + "/" + kRecipeFile;
  std::vector<JobFile> files;
  if (!job.fetch.empty()) {
    files.push_back(single_script(job, "getdata", "set -eu\n" + fetch_lines(job)));
  }
  if (!job.prepare.empty()) {
    files.push_back(single_script(
        job,
        "prepdata",
        "set -eu\nexec srun" + container(job) + " \\\n  " + words(prepare_command(job, recipe)) +
            "\n"
    ));
  }
  if (compiles_ahead(job)) {
    files.push_back(single_script(
        job,
        "compile",
        "#SBATCH --exclusive\n" + queue_line(job) +
            "# Before train.sbatch: device.cache keeps what it compiles.\nset -eu\n" +
            exports(job) + "exec srun --cpu-bind=none" + container(job) + " \\\n  " +
            words(compile_command(recipe, folder + "/program")) + "\n"
    ));
  }
  std::string text = "#!/bin/sh\n# " + nodes_text(job) + ". From this folder: sbatch " +
                     shell_word(folder + "/train.sbatch") + "\n" + sbatch_lines(job, "") +
                     "#SBATCH --nodes=" + std::to_string(job.nodes) +
                     "\n"
                     "#SBATCH --ntasks-per-node=" +
                     std::to_string(job.processes) +
                     "\n"
                     "# Whole nodes: all cores, GPUs and EFA devices.\n"
                     "#SBATCH --exclusive\n";
  if (job.hours > 0) {
    text += "#SBATCH --time=" + slurm_time(job.hours) +
            "\n"
            "# SIGUSR1 saves a checkpoint: it comes this many seconds before the time is over.\n"
            "#SBATCH --signal=USR1@" +
            std::to_string(kSaveSeconds) + "\n";
  }
  text += job.restarts > 0
              ? "# After a node was lost, preemption or the end of its time the job begins "
                "again, and goes on\n# from its newest checkpoint.\n"
                "#SBATCH --requeue\n"
                "#SBATCH --open-mode=append\n"
              : "#SBATCH --no-requeue\n";
  text += queue_line(job);
  const std::string processes = std::to_string(job.processes);
  text += "set -eu\n" + exports(job);
  text += "# A rank's share of its node's cores.\n"
          "export OMP_NUM_THREADS=\"${OMP_NUM_THREADS:-$((SLURM_CPUS_ON_NODE > " +
          processes + " ? SLURM_CPUS_ON_NODE / " + processes +
          " : 1))}\"\n"
          "# HyperPod starts a step again when it has replaced a faulty node.\n"
          "auto_resume=\n"
          "[ ! -d /opt/sagemaker_cluster ] || auto_resume=--auto-resume=1\n"
          "status=0\n"
          "# Every rank says how it ended; one that hangs has three minutes.\n"
          "srun $auto_resume --wait=" +
          std::to_string(kSaveSeconds) + " --cpu-bind=none" + container(job) + " \\\n  " +
          words(run_command(job, recipe)) + " || status=$?\n" + again(job);
  files.push_back({kRecipeFile, job.run.recipe, /*submitted=*/false});
  files.push_back({"train.sbatch", std::move(text)});
  return files;
}

std::vector<JobFile> write_torchrun(const Job& job, const std::string& folder) {
  const std::string recipe = folder + "/" + kRecipeFile;
  std::vector<JobFile> files;
  if (!job.fetch.empty()) {
    files.push_back({"getdata.sh", "#!/bin/sh\nset -eu\n" + fetch_lines(job)});
  }
  if (!job.prepare.empty()) {
    files.push_back({"prepdata.sh", "#!/bin/sh\nexec " + words(prepare_command(job, recipe)) + "\n"}
    );
  }
  if (compiles_ahead(job)) {
    files.push_back(
        {"compile.sh",
         "#!/bin/sh\n# Before train.sh: device.cache keeps what it compiles.\nset -eu\n" +
             exports(job) + "exec " + words(compile_command(recipe, folder + "/program")) + "\n"}
    );
  }
  const std::string script = shell_word(folder + "/train.sh");
  const bool several = job.nodes > 1;
  std::string text = "#!/bin/sh\n# " + nodes_text(job) + ". " +
                     (several ? "On each of them: HEAD=ADDRESS_OF_THE_FIRST_NODE sh " + script
                              : "There: sh " + script) +
                     "\nset -eu\n" + exports(job);
  text += "exec torchrun --no-python --nnodes=" + std::to_string(job.nodes) +
          " --nproc-per-node=" + std::to_string(job.processes) +
          " --max-restarts=" + std::to_string(job.restarts);
  text += several ? " \\\n  --rdzv-backend=c10d --rdzv-id=" + job.name +
                        " --rdzv-endpoint=\"${HEAD:?is to be the address of the first node}:29500\""
                  : " --standalone";
  text += " \\\n  " + words(run_command(job, recipe)) + "\n";
  files.push_back({kRecipeFile, job.run.recipe, /*submitted=*/false});
  files.push_back({"train.sh", std::move(text)});
  return files;
}

} // namespace mh
