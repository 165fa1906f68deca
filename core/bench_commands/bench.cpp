#include "core/bench/bench.hpp"

#include "core/base/number_text.hpp"
#include "core/bench/machine.hpp"
#include "core/bench/step.hpp"
#include "core/bench_commands/commands.hpp"
#include "core/draw/report.hpp"
#include "core/kernels/ops.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/mesh/processes.hpp"
#include "core/mesh/spawn.hpp"
#include "core/mesh/threads.hpp"
#include "core/options/read.hpp"
#include "core/session/session.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace mh {

namespace {

int put(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

int put(const Invocation& invocation, const BenchTable& table) {
  return put(invocation.has("--json") ? table_json(table) : table_text(table));
}

/// A recipe on the device of --device, where it was given.
Read read_for_bench(const Invocation& invocation, Host& host) {
  return read_resolved(invocation, host, invocation.arguments.front(), [&](const Value&) {
    std::vector<Layer> layers;
    if (invocation.has("--device")) {
      layers.push_back(set_layer("device=" + invocation.value("--device")));
    }
    return layers;
  });
}

Recipe recipe_of_one_rank(const Invocation& invocation, Host& host) {
  const std::string& file = invocation.arguments.front();
  Recipe recipe = read_for_bench(invocation, host).resolved.recipe;
  if (recipe.parallel.ranks() > 1) {
    throw Error(
        "megahost " + invocation.command + " measures one rank, and " + file + " needs " +
            std::to_string(recipe.parallel.ranks()),
        "--scale shrinks the same structure to one rank"
    );
  }
  return recipe;
}

/// Prepares the process as for a run: tensors' memory is kept, and our operators are known.
template <BenchTable (*Measure)(const Device&)>
int bench_table(const Invocation& invocation, Host& host) {
  const std::string name = invocation.has("--device") ? invocation.value("--device") : "cpu";
  const auto device = host.make<Device>(name, Table(), Device::Args{});
  install_caching_allocator();
  ops::ensure_registered();
  BenchTable table = Measure(*device);
  if (!device->device().is_cpu()) {
    table.machine = device->summary();
  }
  return put(invocation, table);
}

constexpr const char* kLinksFile = "MEGAHOST_LINKS"; // where a rank of --calibrate writes

/// Collectives between two processes of this machine, by way of a file.
BenchTable measure_links(const Invocation& invocation, const std::string& file) {
  setenv(kLinksFile, file.c_str(), 1);
  const int status = run_as_ranks({.count = 2, .world = 2, .words = invocation.command_line});
  unsetenv(kLinksFile);
  if (status != 0) {
    throw Error("the ranks that measure collectives failed", "", status);
  }
  BenchTable table;
  std::ifstream stream(file);
  for (const auto& row : nlohmann::ordered_json::parse(stream)) {
    table.rows.push_back(row);
  }
  std::filesystem::remove(file);
  return table;
}

/// This process is one of them.
int run_link_rank(Host& host) {
  const auto found = find_world(process_environment());
  const char* file = std::getenv(kLinksFile);
  if (!found || file == nullptr) {
    throw Error("megahost bench --calibrate starts its own ranks", "leave the launcher out");
  }
  const auto device = host.make<Device>("cpu", Table(), Device::Args{});
  const Processes processes(*found, std::chrono::seconds(60));
  const Mesh mesh({.dp = found->world.size}, found->world.rank, processes.make_backend());
  install_caching_allocator();
  const BenchTable table = bench_comm(mesh, *device);
  if (found->world.rank == 0) {
    replace_file(file, nlohmann::ordered_json(table.rows).dump());
  }
  return 0;
}

int calibrate(const Invocation& invocation, Host& host) {
  const std::string file = calibration_file();
  make_directories(Path(file).parent_path());
  const BenchTable links = measure_links(invocation, file + ".links");
  install_caching_allocator();
  ops::ensure_registered();
  Machine machine = calibrate_cpu(host);
  take_links(links, machine);
  replace_file(file, machine_text(machine));
  const Hardware& cpu = machine.hardware;
  std::string text =
      cpu.source + "\n" + formatted("  GEMMs      %.0f GFLOP/s fp32", 1e3 * cpu.fp32_tflops);
  if (cpu.bf16_tflops > 0) {
    text += formatted(", %.0f GFLOP/s bf16", 1e3 * cpu.bf16_tflops);
  }
  text += formatted(
      "\n  memory     %.1f GB/s, %.1f GB/s in the cache\n"
      "  processes  %.2f GB/s between two, %.0f us a round\n"
      "  steps      %zu kinds of operations, %.1f us from one to the next\n",
      1e3 * cpu.memory_tb_s,
      1e3 * cpu.cache_tb_s,
      cpu.link_gb_s,
      machine.calibration.link_us,
      machine.calibration.rates.size(),
      machine.calibration.between_us
  );
  return put(text + file + " holds them: `megahost plan` takes them for this CPU\n");
}

} // namespace

int command_bench(const Invocation& invocation, Host& host) {
  if (!invocation.has("--calibrate")) {
    throw Error(
        "megahost bench needs another word, or --calibrate", "megahost bench --help lists them"
    );
  }
  return is_spawned_rank() ? run_link_rank(host) : calibrate(invocation, host);
}

int command_bench_step(const Invocation& invocation, Host& host) {
  const int64_t steps = number_option(invocation, "--steps", 10, 1, 1'000'000);
  const StepBench bench = bench_step(recipe_of_one_rank(invocation, host), host, steps);
  return put(invocation.has("--json") ? step_json(bench) : step_text(bench));
}

int command_bench_data(const Invocation& invocation, Host& host) {
  return put(invocation, bench_data(recipe_of_one_rank(invocation, host), host));
}

int command_bench_gemm(const Invocation& invocation, Host& host) {
  return bench_table<bench_gemm>(invocation, host);
}

int command_bench_attention(const Invocation& invocation, Host& host) {
  return bench_table<bench_attention>(invocation, host);
}

int command_bench_masks(const Invocation& invocation, Host& host) {
  return bench_table<bench_masks>(invocation, host);
}

int command_bench_memory(const Invocation& invocation, Host& host) {
  return bench_table<bench_memory>(invocation, host);
}

int command_bench_comm(const Invocation& invocation, Host& host) {
  const std::string& file = invocation.arguments.front();
  const Read read = read_for_bench(invocation, host);
  const Recipe& recipe = read.resolved.recipe;
  const auto& found = read.place;
  const int64_t world =
      found || invocation.has("--nproc") ? world_size(invocation, found) : recipe.parallel.ranks();
  if (world == 1) {
    throw Error(
        "the layout of " + file + " is one rank, which has nothing to send",
        "give --nproc 2, or degrees such as --set parallel.data=2"
    );
  }
  const Device::Args place{.local_rank = found ? found->world.local_rank : 0};
  const auto device = host.make<Device>(recipe.device, place);
  const auto shape = mesh_shape(recipe, world);
  install_caching_allocator();
  const auto measure = [&](const Mesh& mesh) {
    const BenchTable table = bench_comm(mesh, *device);
    return mesh.rank() == 0 ? put(invocation, table) : 0;
  };
  if (invocation.has("--threads")) {
    run_ranks(shape, measure, {.order = recipe.parallel.order});
    return 0;
  }
  if (!found) {
    return run_as_ranks(invocation, world, recipe.comm.hang_after, read.files);
  }
  const Processes processes(
      *found, std::chrono::milliseconds(static_cast<int64_t>(1e3 * recipe.comm.timeout))
  );
  const Mesh mesh(shape, found->world.rank, processes.make_backend(), recipe.parallel.order);
  const auto watch = processes.watch(mesh.log(), recipe.comm.hang_after, warn);
  return measure(mesh);
}

int command_bench_ops(const Invocation& invocation, Host& host) {
  return bench_table<bench_ops>(invocation, host);
}

} // namespace mh
