#include "core/mesh/stall.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace mh {

namespace {

using nlohmann::json;
using Answer = SeenRank::Answer;

/// "rank 1 on n2", "ranks 0 and 2 on n1".
std::string placed(const std::vector<int64_t>& ranks, const std::vector<SeenRank>& all) {
  constexpr size_t kShown = 3;
  std::vector<std::string> hosts;
  for (const int64_t rank : ranks) {
    const std::string& host = all[static_cast<size_t>(rank)].host;
    if (!host.empty() && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
      hosts.push_back(host);
    }
  }
  std::string text = ranks_text(ranks);
  for (size_t i = 0; i < std::min(kShown, hosts.size()); ++i) {
    text += (i == 0 ? " on " : ", ") + hosts[i];
  }
  return text + (hosts.size() > kShown ? ", ..." : "");
}

/// " of step 7"; nothing before the first, and where there are none.
std::string in_step(const char* word, const RankProgress& at) {
  return at.step == 0 ? "" : std::string(" ") + word + " step " + std::to_string(at.step);
}

/// The activity of a rank that answers and keeps others waiting.
std::string why_late(const RankProgress& at) {
  return "which is busy elsewhere" + in_step("in", at) +
         (at.last.number == 0
              ? ", before its first collective"
              : ", " + std::to_string(std::llround(at.seconds)) + " s after " + at.last.text());
}

class Waiting {
public:
  Waiting(const std::vector<SeenRank>& ranks, double patience)
      : ranks_(ranks) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const SeenRank& seen = ranks[rank];
      if (seen.answer == Answer::alive && seen.at.waits_in && seen.at.seconds >= patience) {
        waiting_.push_back(static_cast<int64_t>(rank));
      }
    }
  }

  [[nodiscard]] std::optional<Stall> stall() const {
    if (waiting_.empty()) {
      return std::nullopt;
    }
    Stall stall;
    for (const int64_t rank : waiting_) {
      stall.seconds = std::max(stall.seconds, of(rank).at.seconds);
    }
    stall.late = late();
    stall.text = stall.late.empty() ? disagreement(stall.late) : causes(stall.late);
    stall.text += where();
    return stall;
  }

private:
  [[nodiscard]] const SeenRank& of(int64_t rank) const { return ranks_[static_cast<size_t>(rank)]; }

  [[nodiscard]] bool waits(int64_t rank) const {
    return std::binary_search(waiting_.begin(), waiting_.end(), rank);
  }

  /// Whether `other` has not come to the collective that `rank` waits in, as far as is known.
  [[nodiscard]] bool is_missed(int64_t rank, int64_t other) const {
    const RankProgress& at = of(rank).at;
    if (of(other).answer != Answer::alive) {
      return of(other).answer == Answer::silent;
    }
    const auto& begun = of(other).at.begun;
    const auto found = begun.find(at.waits_in->group);
    return at.transfer || (found == begun.end() ? 0 : found->second) < at.sequence;
  }

  /// The ranks at the end of each chain of ranks that wait.
  [[nodiscard]] std::vector<int64_t> late() const {
    std::set<int64_t> found;
    for (const int64_t rank : waiting_) {
      for (const int64_t other : of(rank).at.waits_for) {
        if (!waits(other) && is_missed(rank, other)) {
          found.insert(other);
        }
      }
    }
    return {found.begin(), found.end()};
  }

  /// Ranks that all wait are not in the same collective. Those that are in another one than more
  /// than half of them are `ret_late`: by their turn in their group, or else by group and turn.
  [[nodiscard]] std::string disagreement(std::vector<int64_t>& ret_late) const {
    using Places = std::map<std::string, std::vector<int64_t>>; // the ranks that wait in each
    std::map<std::pair<std::string, int64_t>, Places> turns;
    Places all;
    for (const int64_t rank : waiting_) {
      const RankProgress& at = of(rank).at;
      const Collective& one = *at.waits_in;
      const std::string axis = one.group.substr(0, one.group.find(':'));
      const std::string turn = at.transfer ? one.name : std::to_string(at.sequence);
      all[axis + " " + turn].push_back(rank);
      if (!at.transfer) {
        turns[{one.group, at.sequence}][kind(one)].push_back(rank);
      }
    }
    for (const auto& [turn, places] : turns) {
      if (places.size() > 1) {
        ret_late = minority(places);
        const std::string which = " collectives of " + turn.first + ", in turn " +
                                  std::to_string(turn.second) + " of each";
        return ret_late.empty()
                   ? "the ranks are in different" + which
                   : placed(ret_late, ranks_) + (ret_late.size() == 1 ? " is" : " are") +
                         " not where the others are: in different" + which;
      }
    }
    ret_late = minority(all);
    return ret_late.empty()
               ? "the ranks wait for one another"
               : placed(ret_late, ranks_) + (ret_late.size() == 1 ? " waits" : " wait") +
                     " in another collective than most, so that each waits for others";
  }

  /// The parts of a collective in which members of a group must agree: rows of an all-to-all differ by rank.
  [[nodiscard]] static std::string kind(const Collective& one) {
    return one.name + " " + one.dtype +
           (one.name == "all-to-all" ? "" : " " + json(one.sizes).dump());
  }

  /// The ranks that are not where more than half of them are; none if there is no such place.
  [[nodiscard]] static std::vector<int64_t>
  minority(const std::map<std::string, std::vector<int64_t>>& places) {
    size_t count = 0;
    for (const auto& [place, ranks] : places) {
      count += ranks.size();
    }
    std::vector<int64_t> others;
    bool majority = false;
    for (const auto& [place, ranks] : places) {
      if (2 * ranks.size() > count) {
        majority = true;
      } else {
        others.insert(others.end(), ranks.begin(), ranks.end());
      }
    }
    std::sort(others.begin(), others.end());
    return majority ? others : std::vector<int64_t>();
  }

  [[nodiscard]] std::string causes(const std::vector<int64_t>& late) const {
    constexpr size_t kShown = 4;
    std::vector<int64_t> silent, busy;
    for (const int64_t rank : late) {
      (of(rank).answer == Answer::silent ? silent : busy).push_back(rank);
    }
    std::string text;
    if (!silent.empty()) {
      text = "waiting for " + placed(silent, ranks_) + ", which " +
             (silent.size() == 1 ? "does not answer (its process is" : "do not answer (they are") +
             " stopped, or " + (silent.size() == 1 ? "its machine" : "their machines") +
             " cannot be reached)";
    }
    for (size_t i = 0; i < std::min(kShown, busy.size()); ++i) {
      text += (text.empty() ? "waiting for " : "; for ") + placed({busy[i]}, ranks_) + ", " +
              why_late(of(busy[i]).at);
    }
    return busy.size() > kShown
               ? text + "; and for " + std::to_string(busy.size() - kShown) + " more"
               : text;
  }

  /// "; rank 0 on n1 waits in ...": those that wait in the same collective together.
  [[nodiscard]] std::string where() const {
    constexpr size_t kShown = 4;
    std::vector<std::pair<std::string, std::vector<int64_t>>> places;
    for (const int64_t rank : waiting_) {
      const std::string place = of(rank).at.waits_in->text() + in_step("of", of(rank).at);
      const auto known = std::find_if(places.begin(), places.end(), [&](const auto& one) {
        return one.first == place;
      });
      (known == places.end() ? places.emplace_back(place, std::vector<int64_t>()) : *known)
          .second.push_back(rank);
    }
    std::string text;
    for (size_t i = 0; i < std::min(kShown, places.size()); ++i) {
      const auto& [place, ranks] = places[i];
      text +=
          "; " + placed(ranks, ranks_) + (ranks.size() == 1 ? " waits in " : " wait in ") + place;
    }
    return places.size() > kShown
               ? text + "; others in " + std::to_string(places.size() - kShown) + " more"
               : text;
  }

  const std::vector<SeenRank>& ranks_;
  std::vector<int64_t> waiting_; // ascending
};

json to_json(const Collective& one) {
  return json::array({one.number, one.name, one.group, one.dtype, one.sizes});
}

Collective from_json(const json& one) {
  return {one[0], one[1], one[2], one[3], one[4]};
}

} // namespace

std::optional<Stall> find_stall(const std::vector<SeenRank>& ranks, double patience) {
  return Waiting(ranks, patience).stall();
}

std::string progress_text(const RankProgress& progress) {
  json text{
      {"step", progress.step},
      {"seconds", progress.seconds},
      {"last", to_json(progress.last)},
      {"begun", progress.begun}};
  if (progress.waits_in) {
    text["waits in"] = to_json(*progress.waits_in);
    text["sequence"] = progress.sequence;
    text["transfer"] = progress.transfer;
    text["waits for"] = progress.waits_for;
  }
  return text.dump();
}

RankProgress parse_progress(const std::string& text) {
  const json at = json::parse(text);
  RankProgress progress{
      .step = at["step"],
      .seconds = at["seconds"],
      .last = from_json(at["last"]),
      .begun = at["begun"].get<std::map<std::string, int64_t>>()};
  if (const auto place = at.find("waits in"); place != at.end()) {
    progress.waits_in = from_json(*place);
    progress.sequence = at["sequence"];
    progress.transfer = at["transfer"];
    progress.waits_for = at["waits for"].get<std::vector<int64_t>>();
  }
  return progress;
}

} // namespace mh
