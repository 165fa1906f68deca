#include "core/bench/preflight.hpp"

#include "core/base/host_name.hpp"
#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "core/bench/bench.hpp"
#include "core/config.hpp"
#include "core/draw/columns.hpp"
#include "core/kernels/ops.hpp"
#include "core/mesh/agree.hpp"
#include "core/mesh/collective_log.hpp"
#include "core/records/robust_z.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/abi.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kBelowPlan = 0.7;  // share of what plans count on
constexpr double kSlowLink = 0.5;   // share of the other links' rate
constexpr double kClock = 0.5;      // seconds
constexpr int kRounds = 4;          // in which a rank must be slow; ranks that are alike take one
constexpr int64_t kMostPairs = 15;  // that a rank is measured in
constexpr int64_t kDisk = 32 << 20; // bytes

Json rank_json(const CheckedRank& rank) {
  return {
      {"host", rank.host},
      {"build", rank.build},
      {"gemm_flops_per_s", rank.gemm},
      {"copy_bytes_per_s", rank.copy},
      {"disk_bytes_per_s", rank.disk},
      {"disk_failed", rank.disk_failed},
      {"clock_seconds", rank.clock},
      {"link_bytes_per_s", rank.links}};
}

CheckedRank rank_from(const Json& json) {
  return {
      .host = json["host"],
      .build = json["build"],
      .gemm = json["gemm_flops_per_s"],
      .copy = json["copy_bytes_per_s"],
      .disk = json["disk_bytes_per_s"],
      .disk_failed = json["disk_failed"],
      .clock = json["clock_seconds"],
      .links = json["link_bytes_per_s"].get<std::vector<double>>()};
}

/// The rank that meets `rank` in a round of a tournament of n, or -1: the rounds 0 .. n-2 of an even
/// n, 0 .. n-1 of an odd one, pair each with each.
int64_t partner(int64_t rank, int64_t round, int64_t n) {
  const int64_t players = n + n % 2; // an odd one out meets no rank
  const int64_t circle = players - 1;
  int64_t other = circle;
  if (rank == circle) {
    other = round % circle * ((circle + 1) / 2) % circle;
  } else if (const int64_t opposite = (round - rank % circle + circle) % circle; opposite != rank) {
    other = opposite;
  }
  return other < n ? other : -1;
}

/// Measures this rank; the others do the same at the same time.
class Measuring {
public:
  Measuring(const Group& all, const Device& device, at::ScalarType type, std::filesystem::path disk)
      : all_(all)
      , device_(device)
      , options_(at::TensorOptions().device(device.device()))
      , type_(type)
      , disk_(std::move(disk)) {}

  [[nodiscard]] CheckedRank own() const {
    CheckedRank found{
        .host = host_name(),
        .build = std::string(MH_VERSION) + " " + MH_BUILT_FOR + ", " + MH_ABI_TAG};
    barrier();
    found.gemm = gemm();
    barrier();
    found.copy = copy();
    barrier();
    write_disk(found);
    found.links = links();
    return found;
  }

  /// Seconds that this clock is ahead of rank 0's, as good as ranks leave a collective together.
  [[nodiscard]] double clock() const {
    constexpr int kTimes = 5;
    std::vector<double> times;
    for (int i = 0; i < kTimes; ++i) {
      barrier();
      times.push_back(unix_now());
    }
    const auto texts = ranks_of(all_).gather(Json(times).dump());
    const auto first = Json::parse(texts.front()).get<std::vector<double>>();
    for (size_t i = 0; i < times.size(); ++i) {
      times[i] -= first[i];
    }
    return median(times);
  }

  [[nodiscard]] double all_reduce() const {
    const int64_t bytes = int64_t{16} << 20;
    const at::Tensor x = at::ones({bytes / 4}, options_.dtype(at::kFloat));
    const double seconds = median_time([&] { all_.all_reduce(x); });
    const auto n = static_cast<double>(all_.size());
    return 2 * (n - 1) / n * static_cast<double>(bytes) / seconds;
  }

private:
  void barrier() const { (void)largest(all_, 0); }

  [[nodiscard]] double gemm() const {
    const int64_t side = device_.device().is_cpu() ? 1024 : 8192;
    const at::Tensor a = at::ones({side, side}, options_.dtype(type_));
    at::Tensor c = at::empty_like(a);
    const double flops = 2.0 * static_cast<double>(side * side * side);
    return flops / shortest_time([&] { at::mm_out(c, a, a); }, &device_);
  }

  [[nodiscard]] double copy() const {
    const int64_t bytes = int64_t{device_.device().is_cpu() ? 128 : 1024} << 20; // beyond any cache
    const at::Tensor from = at::ones({bytes}, options_.dtype(at::kByte));
    at::Tensor to = at::empty_like(from);
    return 2.0 * static_cast<double>(bytes) / shortest_time([&] { to.copy_(from); }, &device_);
  }

  void write_disk(CheckedRank& found) const {
    const Path file = disk_ / (".preflight-" + std::to_string(all_.index()));
    const std::string text(kDisk, 'x');
    try {
      file_system().remove(file);
    } catch (const std::exception&) { // there was none
    }
    try {
      const auto begin = Clock::now();
      write_file(file, text);
      found.disk = static_cast<double>(kDisk) / seconds_since(begin);
      file_system().remove(file);
    } catch (const std::exception& error) {
      found.disk_failed = error.what();
    }
  }

  [[nodiscard]] std::vector<double> links() const {
    const int64_t n = all_.size();
    std::vector<double> rates(static_cast<size_t>(n));
    const int64_t bytes = int64_t{4} << 20;
    const at::Tensor x = at::ones({bytes / 4}, options_.dtype(at::kFloat));
    const at::Tensor room = at::empty_like(x);
    for (int64_t round = 0; round < std::min(kMostPairs, n - 1 + n % 2); ++round) {
      barrier();
      const int64_t other = partner(all_.index(), round, n);
      if (other < 0) {
        continue;
      }
      const bool sends_first = all_.index() < other;
      rates[static_cast<size_t>(other)] =
          static_cast<double>(bytes) / median_time([&] {
            Pending sent = sends_first ? all_.send(x, other) : Pending();
            Pending arrival = all_.receive(room, other);
            sent = sends_first ? std::move(sent) : all_.send(x, other);
            (void)arrival.wait();
            (void)sent.wait();
          });
    }
    return rates;
  }

  /// The median of five, after one that does not count.
  [[nodiscard]] double median_time(const std::function<void()>& work) const {
    std::vector<double> seconds;
    for (int i = 0; i < 6; ++i) {
      const auto begin = Clock::now();
      work();
      device_.synchronize();
      seconds.push_back(seconds_since(begin));
    }
    seconds.erase(seconds.begin());
    return median(seconds);
  }

  const Group& all_;
  const Device& device_;
  at::TensorOptions options_;
  at::ScalarType type_;
  std::filesystem::path disk_;
};

/// The better of two measurements of one rank.
void keep_best(CheckedRank& best, const CheckedRank& again) {
  best.gemm = std::max(best.gemm, again.gemm);
  best.copy = std::max(best.copy, again.copy);
  best.disk = std::max(best.disk, again.disk);
  if (again.disk_failed.empty()) {
    best.disk_failed.clear();
  }
  for (size_t i = 0; i < best.links.size(); ++i) {
    best.links[i] = std::max(best.links[i], again.links[i]);
  }
}

std::string gigabytes_per_second(double rate) {
  return formatted("%.2f GB/s", rate / 1e9);
}

std::string gemm_rate(double rate) {
  return rate >= 1e13 ? formatted("%.0f TFLOP/s", rate / 1e12)
                      : formatted("%.1f GFLOP/s", rate / 1e9);
}

struct CheckedRate {
  const char* name;
  double least; // share of what the others reach: what they share is shared unevenly
  double (*of)(const CheckedRank& rank);
  std::string (*text)(double rate);
};

const CheckedRate kRates[] = {
    {"GEMMs", 0.7, [](const CheckedRank& rank) { return rank.gemm; }, gemm_rate},
    {"copies", 0.5, [](const CheckedRank& rank) { return rank.copy; }, gigabytes_per_second},
    {"links", 0.5, [](const CheckedRank& rank) { return rank.link(); }, gigabytes_per_second},
    {"writes", 0.25, [](const CheckedRank& rank) { return rank.disk; }, gigabytes_per_second}};

class RankJudge {
public:
  explicit RankJudge(const Preflight& found)
      : found_(found) {}

  std::vector<std::string> run(const std::optional<Machine>& expected) {
    builds();
    for (size_t i = 0; i < found_.ranks.size(); ++i) {
      const CheckedRank& rank = found_.ranks[i];
      if (!rank.disk_failed.empty()) {
        say(i, "cannot write: " + rank.disk_failed);
      }
      if (std::abs(rank.clock) > kClock) {
        say(i,
            formatted(
                "has a clock %.1f s %s rank 0's: is a time daemon running there?",
                std::abs(rank.clock),
                rank.clock > 0 ? "ahead of" : "behind"
            ));
      }
    }
    for (const CheckedRate& rate : kRates) {
      compare(rate);
    }
    links();
    if (expected) {
      hold_to(*expected);
    }
    return std::move(faults_);
  }

private:
  [[nodiscard]] std::string placed(size_t rank) const {
    return rank_on(static_cast<int64_t>(rank), found_.ranks[rank].host);
  }

  void say(size_t rank, const std::string& text) { faults_.push_back(placed(rank) + " " + text); }

  [[nodiscard]] double usual(const CheckedRate& rate) const {
    std::vector<double> values;
    for (const CheckedRank& rank : found_.ranks) {
      values.push_back(rate.of(rank));
    }
    return median(values);
  }

  void builds() {
    std::map<std::string, size_t> counts;
    for (const CheckedRank& rank : found_.ranks) {
      ++counts[rank.build];
    }
    const auto most =
        std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        });
    for (size_t i = 0; i < found_.ranks.size(); ++i) {
      if (found_.ranks[i].build != most->first) {
        say(i, "runs megahost " + found_.ranks[i].build + ", the others " + most->first);
      }
    }
  }

  void compare(const CheckedRate& rate) {
    const double others = usual(rate);
    for (size_t i = 0; i < found_.ranks.size(); ++i) {
      const double own = rate.of(found_.ranks[i]);
      if (own > 0 && own < rate.least * others) {
        slow_.insert(i);
        say(i,
            formatted("is slow: %s reach ", rate.name) + rate.text(own) + ", those of the others " +
                rate.text(others));
      }
    }
  }

  /// Links of ranks that are slow everywhere are told of already.
  void links() {
    const double others = usual(kRates[2]);
    for (size_t a = 0; a < found_.ranks.size(); ++a) {
      for (size_t b = a + 1; b < found_.ranks.size(); ++b) {
        const double there = found_.ranks[a].links[b];
        if (there > 0 && there < kSlowLink * others && !slow_.contains(a) && !slow_.contains(b)) {
          faults_.push_back(
              "the link between " + placed(a) + " and " + placed(b) + " is slow: " +
              gigabytes_per_second(there) + ", others " + gigabytes_per_second(others)
          );
        }
      }
    }
  }

  void hold_to(const Machine& machine) {
    const Hardware& row = machine.hardware;
    const Calibration& part = machine.calibration;
    std::set<std::string> hosts;
    for (const CheckedRank& rank : found_.ranks) {
      hosts.insert(rank.host);
    }
    const double link =
        hosts.size() > 1 ? part.network * row.network_gb_s : part.link * row.link_gb_s;
    const double counted_on[] = {
        part.product * row.peak(found_.type), 1e12 * part.memory * row.memory_tb_s, 1e9 * link};
    for (size_t i = 0; i < std::size(counted_on); ++i) {
      const CheckedRate& rate = kRates[i];
      std::vector<int64_t> below;
      double least = counted_on[i];
      for (size_t rank = 0; rank < found_.ranks.size(); ++rank) {
        const double own = rate.of(found_.ranks[rank]);
        if (own > 0 && own < kBelowPlan * counted_on[i]) {
          below.push_back(static_cast<int64_t>(rank));
          least = std::min(least, own);
        }
      }
      if (!below.empty()) {
        faults_.push_back(
            ranks_text(below) + (below.size() == 1 ? " reaches " : " reach ") + rate.text(least) +
            " at least in " + rate.name + ", and plans for " + row.name + " count on " +
            rate.text(counted_on[i])
        );
      }
    }
  }

  const Preflight& found_;
  std::set<size_t> slow_;
  std::vector<std::string> faults_;
};

} // namespace

double CheckedRank::link() const {
  std::vector<double> measured;
  std::copy_if(links.begin(), links.end(), std::back_inserter(measured), [](double rate) {
    return rate > 0;
  });
  return measured.empty() ? 0 : median(measured);
}

Preflight check_ranks(const Group& all, const Device& device, const std::filesystem::path& disk) {
  const at::NoGradGuard no_grad;
  ops::ensure_registered();
  Preflight found{
      .device = device.summary(),
      .type = device.device().is_cpu() ? at::kFloat : at::kBFloat16,
      .ranks = {}};
  const Measuring measuring(all, device, found.type, disk);
  for (int round = 0; round < kRounds; ++round) {
    CheckedRank own = measuring.own();
    own.clock = measuring.clock();
    const auto texts =
        ranks_of(all).gather(rank_json(own).dump(-1, ' ', false, Json::error_handler_t::replace));
    for (size_t i = 0; i < texts.size(); ++i) {
      const CheckedRank rank = rank_from(Json::parse(texts[i]));
      if (round == 0) {
        found.ranks.push_back(rank);
      } else {
        keep_best(found.ranks[i], rank);
      }
    }
    if (judge_ranks(found).empty()) { // the same on all ranks
      break;
    }
  }
  found.all_reduce = measuring.all_reduce();
  return found;
}

std::vector<std::string>
judge_ranks(const Preflight& found, const std::optional<Machine>& expected) {
  return RankJudge(found).run(expected);
}

std::string preflight_text(const Preflight& found, const std::vector<std::string>& faults) {
  std::vector<TextRow> rows{
      {"rank", "host", "GEMM, GFLOP/s", "copy, GB/s", "links, GB/s", "disk, GB/s", "clock, ms"}};
  for (size_t i = 0; i < found.ranks.size(); ++i) {
    const CheckedRank& rank = found.ranks[i];
    rows.push_back(
        {std::to_string(i),
         rank.host,
         formatted("%.1f", rank.gemm / 1e9),
         formatted("%.2f", rank.copy / 1e9),
         formatted("%.2f", rank.link() / 1e9),
         formatted("%.2f", rank.disk / 1e9),
         formatted("%.0f", 1e3 * rank.clock)}
    );
  }
  std::string text = columns(rows, Terminal()) +
                     "\nall-reduce of all: " + gigabytes_per_second(found.all_reduce) +
                     " across each rank's link\n";
  for (const std::string& fault : faults) {
    text += "! " + fault + "\n";
  }
  return faults.empty() ? text + "The ranks are alike.\n" : text;
}

std::string preflight_json(const Preflight& found, const std::vector<std::string>& faults) {
  Json ranks = Json::array();
  for (const CheckedRank& rank : found.ranks) {
    ranks.push_back(rank_json(rank));
  }
  const Json json{
      {"device", found.device},
      {"ranks", ranks},
      {"all_reduce_bytes_per_s", found.all_reduce},
      {"faults", faults}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

} // namespace mh
