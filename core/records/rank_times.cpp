#include "core/records/rank_times.hpp"

#include "core/base/host_name.hpp"
#include "core/base/number_text.hpp"
#include "core/records/robust_z.hpp"
#include "core/storage/file_system.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kSlow = 1.3;      // times as long as the others
constexpr double kWorthIt = 0.05;  // share of a step's time that the slowest rank costs
constexpr uint64_t kLargest = 256; // bytes of a rank in the table, at most

std::filesystem::path rank_file(const std::filesystem::path& run) {
  return run / "ranks.json";
}

/// The element in the middle, of two the smaller: a slow one of two is compared with the other.
double middle(std::vector<double> values) {
  const auto at = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Json times_json(const RankTimes& one) {
  Json json{{"host", one.host}, {"stage", one.stage}};
  for (size_t part = 0; part < kStepParts; ++part) {
    json[part_name(static_cast<StepPart>(part))] = one.typical.seconds[part];
  }
  return json;
}

RankTimes times_from(const Json& json) {
  RankTimes one{json.at("host").get<std::string>(), json.at("stage").get<int64_t>(), {}};
  for (size_t part = 0; part < kStepParts; ++part) {
    one.typical.seconds[part] = json.at(part_name(static_cast<StepPart>(part))).get<double>();
  }
  return one;
}

StepPart part_of(const Instruction& instruction) {
  using Op = Instruction::Op;
  const bool ahead = instruction.op == Op::receive_forward || instruction.op == Op::forward ||
                     instruction.op == Op::send_forward;
  return ahead ? StepPart::forward : StepPart::backward;
}

std::string placed(int64_t rank, const RankTable& table) {
  return rank_on(rank, table.ranks[static_cast<size_t>(rank)].host);
}

} // namespace

const char* part_name(StepPart part) {
  constexpr std::array kNames{"data", "forward", "backward", "update", "waiting"};
  return kNames.at(static_cast<size_t>(part));
}

double PartTimes::busy() const {
  return std::accumulate(seconds.begin(), seconds.end(), -(*this)[StepPart::waiting]);
}

void PartClock::begin(StepPart part) {
  const auto now = Clock::now();
  const double waited = log_.waited();
  times_[StepPart::waiting] += waited - waited_;
  times_[part_] += std::chrono::duration<double>(now - began_).count() - (waited - waited_);
  began_ = now;
  waited_ = waited;
  part_ = part;
}

void PartClock::begin(const Instruction* instruction) {
  begin(instruction == nullptr ? StepPart::update : part_of(*instruction));
}

PartTimes PartClock::end() {
  begin(part_);
  return times_;
}

std::optional<Straggler> find_straggler(const std::vector<RankTimes>& ranks) {
  std::optional<Straggler> slowest;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankTimes& own = ranks[rank];
    std::vector<const PartTimes*> next, everywhere;
    for (const RankTimes& other : ranks) {
      everywhere.push_back(&other.typical);
      if (other.stage == own.stage) {
        next.push_back(&other.typical);
      }
    }
    const auto& others = next.size() > 1 ? next : everywhere;
    const auto usual = [&](const auto& value) {
      std::vector<double> values;
      for (const PartTimes* one : others) {
        values.push_back(value(*one));
      }
      return middle(std::move(values));
    };
    const double busy = usual([](const PartTimes& one) { return one.busy(); });
    const double more = own.typical.busy() - busy;
    if (own.typical.busy() < kSlow * busy || more < kWorthIt * own.typical.whole() ||
        (slowest && own.typical.busy() / busy <= slowest->ratio)) {
      continue;
    }
    slowest = Straggler{.rank = static_cast<int64_t>(rank), .ratio = own.typical.busy() / busy};
    double most = 0;
    for (size_t i = 0; i < kStepParts; ++i) {
      const auto part = static_cast<StepPart>(i);
      const double theirs = usual([part](const PartTimes& one) { return one[part]; });
      if (part != StepPart::waiting && own.typical[part] - theirs > most) {
        most = own.typical[part] - theirs;
        slowest->part = part;
        slowest->seconds = own.typical[part];
        slowest->others = theirs;
      }
    }
  }
  return slowest;
}

void write_rank_table(const std::filesystem::path& folder, const RankTable& table) {
  Json ranks = Json::array();
  for (const RankTimes& one : table.ranks) {
    ranks.push_back(times_json(one));
  }
  const Json json{{"first_step", table.first}, {"last_step", table.last}, {"ranks", ranks}};
  replace_file(rank_file(folder), json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<RankTable> read_rank_table(const std::filesystem::path& folder) {
  constexpr uint64_t kRanks = 1'000'000;
  try {
    const Json json = Json::parse(read_file(rank_file(folder), kRanks * kLargest));
    RankTable table{json.at("first_step"), json.at("last_step"), {}};
    for (const Json& one : json.at("ranks")) {
      table.ranks.push_back(times_from(one));
    }
    return table;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

RankComparison::RankComparison(const Ranks& ranks, int64_t stage, bool hosts_compute)
    : ranks_(ranks)
    , own_{host_name(), stage, {}}
    , hosts_compute_(hosts_compute) {}

std::optional<RankTable> RankComparison::add(int64_t step, const PartTimes& times) {
  window_.push_back(times);
  first_ = window_.size() == 1 ? step : first_;
  if (std::ssize(window_) < kSteps) {
    return std::nullopt;
  }
  for (size_t part = 0; part < kStepParts; ++part) {
    std::vector<double> values;
    for (const PartTimes& one : window_) {
      values.push_back(one.seconds[part]);
    }
    own_.typical.seconds[part] = median(values);
  }
  if (!hosts_compute_) { // the host waits for the device somewhere in these
    for (const StepPart part : {StepPart::forward, StepPart::backward, StepPart::update}) {
      own_.typical[StepPart::waiting] += std::exchange(own_.typical[part], 0);
    }
  }
  window_.clear();
  RankTable table{first_, step, {}};
  for (const std::string& text :
       ranks_.gather(times_json(own_).dump(-1, ' ', false, Json::error_handler_t::replace))) {
    table.ranks.push_back(times_from(Json::parse(text)));
  }
  return table;
}

std::string RankComparison::sentence(const RankTable& table) {
  const auto found = find_straggler(table.ranks);
  const auto before = std::exchange(slow_, found ? std::optional(found->rank) : std::nullopt);
  if (before == slow_) {
    return "";
  }
  if (!found) {
    return placed(*before, table) + " is as fast as the others again";
  }
  return formatted(
      "%s is slow: its steps %lld to %lld took it %.1f times as long as the others, most of that in "
      "%s, %.3g ms against %.3g ms",
      placed(found->rank, table).c_str(),
      static_cast<long long>(table.first),
      static_cast<long long>(table.last),
      found->ratio,
      part_name(found->part),
      1e3 * found->seconds,
      1e3 * found->others
  );
}

} // namespace mh
