#include "core/bench_commands/commands.hpp"
#include "core/checkpoint_commands/commands.hpp"
#include "core/commands/commands.hpp"
#include "core/corpora/corpora.hpp"
#include "core/draw/report.hpp"
#include "core/memory/heap.hpp"
#include "core/options/read.hpp"
#include "core/plugin/crash.hpp"
#include "core/plugin_commands/commands.hpp"
#include "core/recipe_commands/commands.hpp"
#include "core/session/built_in.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

namespace {

using Run = int (*)(const mh::Invocation&, mh::Host&);

constexpr std::pair<std::string_view, Run> kCommands[] = {
    {"run", mh::command_run},
    {"eval", mh::command_eval},
    {"generate", mh::command_generate},
    {"fill-mask", mh::command_fill_mask},
    {"embed", mh::command_embed},
    {"sweep", mh::command_sweep},
    {"plot", mh::command_plot},
    {"compare", mh::command_compare},
    {"status", mh::command_status},
    {"watch", mh::command_watch},
    {"checkpoint ls", mh::command_checkpoint_ls},
    {"checkpoint inspect", mh::command_checkpoint_inspect},
    {"checkpoint verify", mh::command_checkpoint_verify},
    {"checkpoint diff", mh::command_checkpoint_diff},
    {"checkpoint export", mh::command_checkpoint_export},
    {"checkpoint import", mh::command_checkpoint_import},
    {"checkpoint average", mh::command_checkpoint_average},
    {"checkpoint gc", mh::command_checkpoint_gc},
    {"check", mh::command_check},
    {"mesh", mh::command_mesh},
    {"plan", mh::command_plan},
    {"program", mh::command_program},
    {"launch", mh::command_launch},
    {"schedule", mh::command_schedule},
    {"bench", mh::command_bench},
    {"bench step", mh::command_bench_step},
    {"bench data", mh::command_bench_data},
    {"bench gemm", mh::command_bench_gemm},
    {"bench attention", mh::command_bench_attention},
    {"bench masks", mh::command_bench_masks},
    {"bench memory", mh::command_bench_memory},
    {"bench comm", mh::command_bench_comm},
    {"bench ops", mh::command_bench_ops},
    {"bench gpu", mh::command_bench_gpu},
    {"recipe check", mh::command_recipe_check},
    {"recipe show", mh::command_recipe_show},
    {"recipe explain", mh::command_recipe_explain},
    {"recipe diff", mh::command_recipe_diff},
    {"recipe schema", mh::command_recipe_schema},
    {"recipe stubs", mh::command_recipe_stubs},
    {"recipe import-args", mh::command_recipe_import_args},
    {"recipe from-hf", mh::command_recipe_from_hf},
    {"presets", mh::command_presets},
    {"presets show", mh::command_presets_show},
    {"data prepare", mh::command_data_prepare},
    {"data inspect", mh::command_data_inspect},
    {"data merge", mh::command_data_merge},
    {"data split", mh::command_data_split},
    {"data shuffle", mh::command_data_shuffle},
    {"data dedup-exact", mh::command_data_dedup_exact},
    {"tokenizer encode", mh::command_tokenizer_encode},
    {"tokenizer decode", mh::command_tokenizer_decode},
    {"tokenizer inspect", mh::command_tokenizer_inspect},
    {"plugins", mh::command_plugins},
    {"plugins check", mh::command_plugins_check},
    {"plugins install", mh::command_plugins_install},
    {"plugins new", mh::command_plugins_new},
    {"plugins rebuild", mh::command_plugins_rebuild},
    {"plugins remove", mh::command_plugins_remove},
    {"plugins show", mh::command_plugins_show},
    {"help", mh::command_help},
    {"doctor", mh::command_doctor},
    {"docs", mh::command_docs},
};

/// Warnings of LibTorch, and ours through it, as the program's other lines.
struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { mh::warn(warning.msg()); }
};

/// Sends the log of plugins to standard error: standard output is the command's, JSON perhaps.
void keep_output_clean() {
  auto lines = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(lines)));
  spdlog::set_pattern("%l: %v");
}

/// LibTorch logs what its sockets meet, with stacks: as warnings, for those who ask for them by
/// TORCH_CPP_LOG_LEVEL. The run itself says what a lost peer means for it.
void set_log_level() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
}

int run(const mh::Invocation& invocation) {
  mh::Host host;
  mh::merge_built_in(host);
  for (const std::string& file : invocation.all("--plugin")) {
    host.load(file);
  }
  const bool reads_no_recipe =
      invocation.command.starts_with("checkpoint ") ||
      (invocation.command.starts_with("data ") && !invocation.has("--recipe"));
  if (reads_no_recipe) {
    mh::give_storage_options(invocation, host);
  }
  for (const auto& [name, command] : kCommands) {
    if (name == invocation.command) {
      return command(invocation, host);
    }
  }
  throw mh::InternalError(
      "the command " + invocation.command + " is in the table but not in the library"
  );
}

} // namespace

int mh_run_command(const mh::Invocation& invocation) {
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  keep_output_clean();
  set_log_level();
  mh::name_crashes();
  try {
    return run(invocation);
  } catch (const mh::OutOfMemory& error) {
    return mh::report(mh::out_of_memory(error.bytes()));
  } catch (const c10::OutOfMemoryError&) {
    return mh::report(std::bad_alloc());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool placed = text.find(" of plugin ") != std::string::npos; // by mh::in_plugin
    return mh::report(std::runtime_error(
        "LibTorch: " + text + (placed ? "" : " (a bug in megahost or in a plugin)")
    ));
  } catch (const std::exception& error) {
    return mh::report(error);
  }
}
