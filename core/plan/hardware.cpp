#include "core/plan/hardware.hpp"

#include "core/base/text.hpp"
#include "core/recipe/load.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

namespace mh {

namespace {

/// The rows of every root's table; those of an earlier root hide a later one's.
Table rows(const ReadOptions& options, const char* file) {
  Table all;
  for (const auto& root : options.roots) {
    const auto path = root / "presets" / file;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
      continue;
    }
    const Value table = read_toml(read_source(path, file));
    for (const auto& row : table.as_table()) {
      if (all.find(row.key) == nullptr) {
        all.set(row.key, row.value);
      }
    }
  }
  return all;
}

/// A row laid over the one that it starts from.
Value complete_row(const Table& all, const Value& row) {
  const Value* is = row.find("is");
  const Value* base = is != nullptr && is->is_string() ? all.find(is->as_string()) : nullptr;
  return base == nullptr ? row : merge(complete_row(all, *base), row);
}

template <class T>
T read_row(const Table& all, const std::string& name, const std::string& where) {
  return detail::struct_fields<T>().read(complete_row(all, *all.find(name)), where + "." + name);
}

} // namespace

void Hardware::fields(Fields<Hardware>& f) {
  f.add("is", &Hardware::is, "row that this one starts from");
  f.add("source", &Hardware::source, "where the row's own numbers come from");
  f.add("sources", &Hardware::sources, "sources of single numbers, where they are others");
  f.add("device", &Hardware::device, "device of a recipe that runs there");
  f.add("bf16_tflops", &Hardware::bf16_tflops, "dense peak").at_least(0).unit("TFLOP/s");
  f.add("fp8_tflops", &Hardware::fp8_tflops, "dense peak; 0: none").at_least(0).unit("TFLOP/s");
  f.add("fp32_tflops", &Hardware::fp32_tflops, "dense peak").at_least(0).unit("TFLOP/s");
  f.add("memory_gib", &Hardware::memory_gib, "usable memory of a rank").at_least(0).unit("GiB");
  f.add("memory_tb_s", &Hardware::memory_tb_s, "its rate, reads and writes").above(0).unit("TB/s");
  f.add("cache_mib", &Hardware::cache_mib, "last cache").at_least(0).unit("MiB");
  f.add("cache_tb_s", &Hardware::cache_tb_s, "rate of that cache").at_least(0).unit("TB/s");
  f.add("processors", &Hardware::processors, "processors that share a GEMM").at_least(1);
  f.add("ranks_per_node", &Hardware::ranks_per_node, "ranks on fast links").at_least(1);
  f.add("link_gb_s", &Hardware::link_gb_s, "bandwidth between ranks of a node, each direction")
      .at_least(0);
  f.add(
       "network_gb_s",
       &Hardware::network_gb_s,
       "a rank's share of the bandwidth between nodes, each direction"
  )
      .at_least(0);
  f.add("reserved_gib", &Hardware::reserved_gib, "memory that is taken before the first tensor")
      .at_least(0)
      .unit("GiB");
  f.add("group_gib", &Hardware::group_gib, "buffers of a process group").at_least(0).unit("GiB");
  f.add("node", &Hardware::node, "what else an instance has: network, resources, architecture");
  f.add("fragmentation", &Hardware::fragmentation, "share of activations that is lost").range(0, 1);
}

double Hardware::peak(at::ScalarType type) const {
  const std::array rates{fp8_tflops, bf16_tflops, fp32_tflops}; // a wider one does for what is not
  const size_t size = c10::elementSize(type);
  for (size_t i = size == 1 ? 0 : size == 2 ? 1 : 2; i < rates.size(); ++i) {
    if (rates.at(i) > 0) {
      return 1e12 * rates.at(i);
    }
  }
  return 0;
}

void MeasuredRate::fields(Fields<MeasuredRate>& f) {
  f.add("size", &MeasuredRate::size, "batch, m, n, k; or bytes").required();
  f.add("g_per_s", &MeasuredRate::g_per_s, "GFLOP/s or GB/s").above(0).required();
}

void Calibration::fields(Fields<Calibration>& f) {
  f.add("source", &Calibration::source, "where the numbers come from");
  f.add("fitted_on", &Calibration::fitted_on, "published rows that they were fitted on");
  f.add("product", &Calibration::product, "share of the peak that large GEMMs reach").above(0);
  f.add("product_fill", &Calibration::product_fill, "steps along k until a GEMM is at speed")
      .at_least(0);
  f.add("attention", &Calibration::attention, "share of the peak that fused attention reaches")
      .above(0);
  f.add("score_bytes", &Calibration::score_bytes, "memory per score of unfused attention, forward")
      .at_least(0)
      .unit("bytes");
  f.add("memory", &Calibration::memory, "share of the memory's rate that is reached").above(0);
  f.add("link", &Calibration::link, "share of the links' rate that is reached").above(0);
  f.add("network", &Calibration::network, "share of the network's rate that collectives reach")
      .above(0);
  f.add("transfer", &Calibration::transfer, "share of the network's rate that transfers reach")
      .above(0);
  f.add("launch_us", &Calibration::launch_us, "least time of an operation").at_least(0);
  f.add("link_us", &Calibration::link_us, "latency of each round of a collective in a node")
      .at_least(0);
  f.add("network_us", &Calibration::network_us, "latency of each round between nodes").at_least(0);
  f.add("between_us", &Calibration::between_us, "time from an operation to the next one")
      .at_least(0);
  f.add("channels", &Calibration::channels, "processors that a collective takes").at_least(0);
  f.add("fused", &Calibration::fused, "chains of element-wise operations are one kernel");
  f.add("update_bytes", &Calibration::update_bytes, "memory per parameter of an update")
      .at_least(0)
      .unit("bytes");
  f.add("loss_bytes", &Calibration::loss_bytes, "memory per logit of the loss")
      .at_least(0)
      .unit("bytes");
  f.add("scattered", &Calibration::scattered, "tp's ranks send a part each to the next stage");
  f.add("waits", &Calibration::waits, "axes whose collectives and transfers overlap with nothing");
  f.add("pieces", &Calibration::pieces, "axes whose collectives overlap with GEMMs in pieces");
  f.add(
       "sum_pieces",
       &Calibration::sum_pieces,
       "pieces of reduce-scatters at most; 0: as many as ranks"
  )
      .at_least(0);
  f.add(
      "backward_sum_pieces",
      &Calibration::backward_sum_pieces,
      "reduce-scatters of backward passes go in pieces, too"
  );
  f.add("sums_after", &Calibration::sums_after, "pieces are kept, and added when all are there");
  f.add("sum_channels", &Calibration::sum_channels, "processors that pieces to be summed take")
      .at_least(0);
  f.add("streams", &Calibration::streams, "pieces of a GEMM that run at the same time").at_least(1);
  f.add("rates", &Calibration::rates, "measured rates by operator and type");
}

std::vector<std::string> hardware_names(const ReadOptions& options) {
  std::vector<std::string> names;
  for (const auto& row : rows(options, "hardware.toml")) {
    names.push_back(row.key);
  }
  return names;
}

Machine find_machine(const std::string& name, const ReadOptions& options) {
  const Table all = rows(options, "hardware.toml");
  if (all.find(name) == nullptr) {
    std::vector<std::string> names;
    for (const auto& row : all) {
      names.push_back(row.key);
    }
    const auto meant = nearest(name, names);
    throw Error(
        "there is no hardware \"" + name + "\" in presets/hardware.toml",
        names.empty() ? "no recipe folder holds that table"
        : meant       ? "did you mean " + *meant + "? It holds " + join(names)
                      : "it holds " + join(names)
    );
  }
  Machine machine{read_row<Hardware>(all, name, "hardware"), {}};
  machine.hardware.name = name;
  const Table fits = rows(options, "calibration.toml");
  std::string row = name;
  while (fits.find(row) == nullptr && all.find(row) != nullptr) { // what it starts from
    const Value* is = all.find(row)->find("is");
    row = is == nullptr ? "default" : is->as_string();
  }
  if (fits.find(row) != nullptr) {
    machine.calibration = read_row<Calibration>(fits, row, "calibration");
  }
  return machine;
}

} // namespace mh
