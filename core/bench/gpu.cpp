#include "core/bench/gpu.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/bench/bench.hpp"
#include "core/draw/page.hpp"
#include "core/runs/run_metrics.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace mh {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLongestOutput = uint64_t{1} << 26;
constexpr uint64_t kLongestShown = uint64_t{1} << 18;
constexpr double kMemoryBound = 0.85; // share of the copy rate that an operator should reach
constexpr double kPlanError = 0.02;   // share by which planned peak memory may be off
constexpr double kSlower = 0.10;      // share by which a step may be slower than planned

Json read_output(const fs::path& folder, const std::string& step) {
  return Json::parse(read_file((folder / (step + ".out")).string(), kLongestOutput));
}

/// The greatest difference between two runs' losses and the step in which it is; NaN is the
/// greatest.
struct LossDifference {
  double most = 0;
  int64_t step = 0;
  size_t steps = 0; // that were compared
  double last = 0;  // relative, of the last loss
};

LossDifference loss_difference(const fs::path& one, const fs::path& other) {
  const RunMetrics a = read_run(one.string()), b = read_run(other.string());
  if (a.steps.size() != b.steps.size()) {
    throw Error(
        one.string() + " has " + std::to_string(a.steps.size()) + " steps, and " + other.string() +
        " " + std::to_string(b.steps.size())
    );
  }
  LossDifference result{.steps = a.steps.size()};
  for (size_t i = 0; i < result.steps; ++i) {
    const auto& x = a.steps[i].losses;
    const auto& y = b.steps[i].losses;
    const double difference =
        x.empty() || y.empty() ? NAN : std::abs(x.front().value - y.front().value);
    if (!(difference <= result.most)) {
      result.most = difference;
      result.step = a.steps[i].step;
    }
    result.last = x.empty() || y.empty() ? NAN : difference / std::abs(x.front().value);
    if (std::isnan(result.most)) {
      break;
    }
  }
  return result;
}

GpuMark right_if(bool holds) {
  return holds ? GpuMark::ok : GpuMark::wrong;
}

GpuMark reached_if(bool holds) {
  return holds ? GpuMark::ok : GpuMark::below;
}

/// Whether losses of all steps are those of another run, to `allowed`.
GpuVerdict same_losses(const fs::path& one, const fs::path& other, double allowed) {
  const LossDifference found = loss_difference(one, other);
  return {
      right_if(found.steps > 0 && found.most <= allowed),
      formatted(
          "largest difference of a loss from %s: %.3g in step %lld of %zu, allowed %.3g",
          other.filename().c_str(),
          found.most,
          static_cast<long long>(found.step),
          found.steps,
          allowed
      )};
}

/// Whether the last loss is that of another run, to a share of it.
GpuVerdict same_last_loss(const fs::path& one, const fs::path& other, double share) {
  const LossDifference found = loss_difference(one, other);
  return {
      right_if(found.steps > 0 && found.last <= share),
      formatted(
          "the last loss differs by %.2f%% from that of %s, allowed %.2f%%",
          1e2 * found.last,
          other.filename().c_str(),
          1e2 * share
      )};
}

/// Attention's kernels next to float64.
GpuVerdict masks_are_right(const fs::path& folder) {
  std::vector<std::string> wrong;
  const Json& masks = read_output(folder, "masks");
  for (const Json& row : masks.at("rows")) {
    const double allowed = row.at("allowed");
    for (const char* what : {"forward_error", "backward_error"}) {
      const double error = row.at(what).is_number() ? row.at(what).get<double>() : NAN;
      if (!(error <= allowed)) {
        wrong.push_back(formatted(
            "%s in %s, %s %.3g, allowed %.3g",
            row.at("mask").get<std::string>().c_str(),
            row.at("type").get<std::string>().c_str(),
            what,
            error,
            allowed
        ));
      }
    }
  }
  return {
      right_if(wrong.empty()),
      wrong.empty() ? std::to_string(masks.at("rows").size()) + " masks as in float64"
                    : join(wrong, "; ")};
}

/// Operators that are bound by memory next to the best copy.
GpuVerdict operators_reach_copies(const fs::path& folder) {
  // The last row is of the largest arrays, which no cache holds.
  const double copy = read_output(folder, "memory").at("rows").back().at("copy_gb_per_s");
  std::vector<std::string> slow;
  const Json& ops = read_output(folder, "ops");
  for (const Json& row : ops.at("rows")) {
    const double share = row.at("gb_per_s").get<double>() / copy;
    if (!(share >= kMemoryBound)) {
      slow.push_back(formatted(
          "%s of %s in %s %.0f%%",
          row.at("operator").get<std::string>().c_str(),
          row.at("what").get<std::string>().c_str(),
          row.at("type").get<std::string>().c_str(),
          1e2 * share
      ));
    }
  }
  return {
      reached_if(slow.empty()),
      slow.empty()
          ? formatted("all at %.0f%% or more of the copy rate, %.0f GB/s", 1e2 * kMemoryBound, copy)
          : formatted("shares of the copy rate, %.0f GB/s: ", copy) + join(slow, ", ")};
}

/// A training step next to its plan and to the share of the peak that it should reach.
GpuVerdict step_reaches(const fs::path& folder, const std::string& step, double mfu) {
  const Json run = read_output(folder, step);
  const Json plan = read_output(folder, step + "-plan");
  const double share = run.at("share_of_peak").get<double>();
  const double planned = plan.at("stages").at(0).at("total").get<double>() -
                         plan.at("stages").at(0).at("reserved").get<double>();
  const double measured = 1e9 * run.at("rss_gb").get<double>();
  const double error = measured / planned - 1;
  const double slower = run.at("step_s").get<double>() / plan.at("step_seconds").get<double>() - 1;
  return {
      std::abs(error) > kPlanError ? GpuMark::wrong : reached_if(share >= mfu && slower <= kSlower),
      formatted(
          "%s tokens/s, MFU %.1f%% (at least %.0f%%), step %+.0f%% of the plan's; memory %s, %+.1f%% of the plan's",
          grouped(std::llround(run.at("tokens_per_s").get<double>())).c_str(),
          1e2 * share,
          1e2 * mfu,
          1e2 * slower,
          bytes_text(std::llround(measured)).c_str(),
          1e2 * error
      )};
}

/// A model whose steps are timed, with the share of the peak that it should reach.
struct TimedModel {
  const char* name;
  const char* what;
  const char* recipe; // what its file holds below name and data
  double mfu;
};

/// Whole models up to 1.5B; of the large ones four layers, with so many microbatches that the update
/// counts as little as in a run. The shares are goals of the project for whole models: causal MFU on
/// an H100 or H200, in fp8 of the bf16 peak.
constexpr TimedModel kTimedModels[] = {
    {"gpt2-124m",
     "GPT-2 124M in bf16, 1,024 tokens",
     "model = { preset = \"gpt2-124m\" }\n"
     "batch = { global = 32, micro = 32 }\nprecision = \"bf16\"\n",
     0.40},
    {"gpt2-1.5b",
     "GPT-2 1.5B in bf16, 1,024 tokens",
     "model = { preset = \"gpt2-1.5b\" }\n"
     "batch = { global = 64, micro = 4 }\nprecision = \"bf16\"\n",
     0.56},
    {"llama2-7b-4",
     "four layers of Llama 2 7B in bf16, 4,096 tokens",
     "model = { preset = \"llama2-7b\", layers = 4 }\n"
     "batch = { global = 16, micro = 2 }\nprecision = \"bf16\"\n",
     0.60},
    {"llama3-8b-4",
     "four layers of Llama 3 8B in bf16, 8,192 tokens",
     "model = { preset = \"llama3-8b\", layers = 4 }\n"
     "batch = { global = 16, micro = 1 }\nprecision = \"bf16\"\n",
     0.60},
    {"llama3-8b-4-fp8",
     "four layers of Llama 3 8B in fp8, 8,192 tokens",
     "model = { preset = \"llama3-8b\", layers = 4 }\n"
     "batch = { global = 16, micro = 1 }\nprecision = \"fp8\"\n",
     0.70},
};

std::string recipe_text(const TimedModel& model) {
  return formatted("name = \"%s\"\n", model.name) + model.recipe +
         "data = { use = \"mock\" }\noptimizer = { use = \"adamw\", lr = 1e-4 }\n"
         "train = { iters = 10 }\n";
}

std::vector<GpuStep> correctness(const GpuOptions& o) {
  const fs::path folder = o.folder;
  const auto run =
      [&](const std::string& name, const std::string& device, const std::string& precision) {
        std::vector<std::string> sets{
            "device=" + device,
            "precision=" + precision,
            "train.iters=50",
            "train.eval_interval=0",
            "checkpoint.save_at_end=false",
            "lr_schedule.decay_iters=50"};
        sets.insert(sets.end(), o.sets.begin(), o.sets.end());
        std::vector<std::string> words{"run", "quickstart", "--run-dir", (folder / name).string()};
        for (const std::string& set : sets) {
          words.insert(words.end(), {"--set", set});
        }
        return words;
      };
  const auto deterministic = [&](const std::string& name) {
    auto words = run(name, o.device, "bf16");
    words.emplace_back("--deterministic");
    return words;
  };
  const auto same = [folder](const char* one, const char* other, double allowed) {
    return [=] { return same_losses(folder / one, folder / other, allowed); };
  };
  const auto close = [folder](const char* one, double share) {
    return [=] { return same_last_loss(folder / one, folder / "losses-fp32", share); };
  };
  return {
      {.name = "losses-cpu",
       .what = "50 steps of the quickstart on the CPU, fp32",
       .words = run("losses-cpu", "cpu", "fp32")},
      {.name = "losses-fp32",
       .what = "the same on " + o.device,
       .words = run("losses-fp32", o.device, "fp32"),
       .judge = same("losses-fp32", "losses-cpu", 1e-5)},
      {.name = "losses-bf16",
       .what = "the same in bf16",
       .words = run("losses-bf16", o.device, "bf16"),
       .judge = close("losses-bf16", 0.02)},
      {.name = "losses-fp8",
       .what = "the same in fp8",
       .words = run("losses-fp8", o.device, "fp8"),
       .judge = close("losses-fp8", 0.03)},
      {.name = "deterministic-1",
       .what = "the same in bf16 with --deterministic",
       .words = deterministic("deterministic-1"),
       .judge = close("deterministic-1", 0.02)},
      {.name = "deterministic-2",
       .what = "and again: the same bits",
       .words = deterministic("deterministic-2"),
       .judge = same("deterministic-2", "deterministic-1", 0)},
      {.name = "masks",
       .what = "attention under each kind of mask next to float64",
       .words = {"bench", "masks", "--device", o.device, "--json"},
       .judge = [folder] { return masks_are_right(folder); }},
      {.name = "check",
       .what = "layouts of the quickstart against one rank",
       .words = {"check", "quickstart", "--set", "device=" + o.device},
       .limit = 300},
  };
}

std::vector<GpuStep> rates(const GpuOptions& o) {
  const auto bench = [&](const std::string& subject) {
    return std::vector<std::string>{"bench", subject, "--device", o.device, "--json"};
  };
  return {
      {.name = "memory", .what = "copies, fills and sums", .words = bench("memory")},
      {.name = "gemm", .what = "GEMMs of linear layers", .words = bench("gemm")},
      {.name = "attention", .what = "attention", .words = bench("attention")},
      {.name = "ops",
       .what = "operators that are bound by memory",
       .words = bench("ops"),
       .judge = [folder = o.folder] { return operators_reach_copies(folder); }},
  };
}

fs::path recipe_of(const TimedModel& model, const GpuOptions& o) {
  return o.folder / (std::string(model.name) + ".toml");
}

std::vector<GpuStep> timed_models(const GpuOptions& o) {
  std::vector<GpuStep> steps;
  for (const TimedModel& model : kTimedModels) {
    const std::string name = model.name;
    const std::string recipe = recipe_of(model, o).string();
    steps.push_back(
        {.name = name + "-plan",
         .what = "the plan of " + std::string(model.what),
         .words = {"plan", recipe, "--set", "device=" + o.device, "--on", o.machine, "--json"}}
    );
    steps.push_back(
        {.name = name,
         .what = model.what,
         .words = {"bench", "step", recipe, "--device", o.device, "--json"},
         .judge =
             [folder = o.folder, name, mfu = model.mfu] { return step_reaches(folder, name, mfu); }}
    );
  }
  return steps;
}

const char* word_of(GpuMark mark) {
  return mark == GpuMark::ok ? "ok" : mark == GpuMark::below ? "below" : "WRONG";
}

} // namespace

std::vector<GpuStep> gpu_steps(const GpuOptions& o) {
  std::vector<GpuStep> steps{
      {.name = "doctor", .what = "driver, libraries, rates", .words = {"doctor", "--json"}}};
  for (auto& part : {correctness(o), rates(o), timed_models(o)}) {
    steps.insert(steps.end(), part.begin(), part.end());
  }
  const std::string profiled = (o.folder / "llama3-8b-4.toml").string();
  steps.push_back(
      {.name = "profile",
       .what = "where the time of a step of four layers of Llama 3 8B goes",
       .words =
           {"run",
            profiled,
            "--set",
            "device=" + o.device,
            "--set",
            "train.iters=6",
            "--set",
            "checkpoint.save_at_end=false",
            "--profile",
            "4:5",
            "--run-dir",
            (o.folder / "profile").string()},
       .limit = 240}
  );
  return steps;
}

void write_gpu_recipes(const GpuOptions& o) {
  for (const TimedModel& model : kTimedModels) {
    replace_file(recipe_of(model, o).string(), recipe_text(model));
  }
}

std::string gpu_line(const GpuResult& r) {
  return formatted("%-6s %5.1f s  ", word_of(r.verdict.mark), r.seconds) + r.what +
         (r.verdict.found.empty() ? "" : "\n                " + r.verdict.found);
}

std::string gpu_json(const std::vector<GpuResult>& results) {
  Json rows = Json::array();
  for (const GpuResult& r : results) {
    rows.push_back(
        {{"name", r.name},
         {"what", r.what},
         {"command", r.command},
         {"seconds", r.seconds},
         {"status", r.status},
         {"good", r.verdict.mark == GpuMark::ok},
         {"mark", word_of(r.verdict.mark)},
         {"found", r.verdict.found}}
    );
  }
  const Json report{{"steps", rows}};
  return report.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

std::string gpu_page(const std::vector<GpuResult>& results, const fs::path& folder) {
  const auto count = [&](GpuMark mark) {
    return std::count_if(results.begin(), results.end(), [&](const GpuResult& r) {
      return r.verdict.mark == mark;
    });
  };
  const auto wrong = count(GpuMark::wrong), below = count(GpuMark::below);
  std::string text = wrong == 0 ? "All " + std::to_string(results.size()) + " steps are right."
                                : std::to_string(wrong) + " of " + std::to_string(results.size()) +
                                      " steps are not as they should be.";
  if (below > 0) {
    text += " " + std::to_string(below) + " below a goal of speed.";
  }
  std::string body = html::element("p", text);
  body += "<table>\n" + html::row({"", "step", "seconds", "found", "command"}, "th", "");
  for (const auto mark : {GpuMark::wrong, GpuMark::below, GpuMark::ok}) {
    for (const GpuResult& r : results) {
      if (r.verdict.mark == mark) {
        body += html::row(
            {word_of(mark), r.what, formatted("%.1f", r.seconds), r.verdict.found, r.command},
            "td",
            ""
        );
      }
    }
  }
  body += "</table>\n";
  for (const GpuResult& r : results) {
    const fs::path output = folder / (r.name + ".out");
    const std::string shown = fs::file_size(output) > kLongestShown
                                  ? "see " + output.string()
                                  : valid_utf8(read_file(output.string(), kLongestShown));
    body += html::element("h2", r.what) + html::element("pre", shown);
  }
  return html::page("megahost on a GPU", body);
}

} // namespace mh
