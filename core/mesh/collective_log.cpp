#include "core/mesh/collective_log.hpp"

#include "core/base/number_text.hpp"

#include <algorithm>
#include <ctime>
#include <exception>
#include <utility>

namespace mh {

namespace {

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t d = 0; d < sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
  }
  return text + "]";
}

/// "17:03:59.250".
std::string time_of_day(std::chrono::system_clock::time_point time) {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::floor<std::chrono::seconds>(time));
  const auto part = time - std::chrono::floor<std::chrono::seconds>(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return formatted(
      "%02d:%02d:%02d.%03d",
      parts.tm_hour,
      parts.tm_min,
      parts.tm_sec,
      static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(part).count())
  );
}

/// The fields of two collectives of one group that differ: "sizes [4, 8] and [4, 6]".
std::string difference(const Collective& a, const Collective& b) {
  std::string text;
  const auto add = [&](const char* field, const std::string& left, const std::string& right) {
    if (left != right) {
      text += (text.empty() ? "" : ", ") + std::string(field) + " " + left + " and " + right;
    }
  };
  add("name", a.name, b.name);
  add("sizes", sizes_text(a.sizes), sizes_text(b.sizes));
  add("type", a.dtype, b.dtype);
  add("number", std::to_string(a.number), std::to_string(b.number));
  return text;
}

} // namespace

std::string Collective::text() const {
  return "#" + std::to_string(number) + " " + name + " in " + group + " of " + sizes_text(sizes) +
         " " + dtype;
}

CollectiveLog::Wait::Wait(CollectiveLog& log, const Entry& entry)
    : log_(log)
    , number_(entry.number) {
  const std::lock_guard lock(log_.mutex_);
  log_.waits_in_ = entry;
  log_.moved_ = began_;
}

CollectiveLog::Wait::~Wait() {
  const std::lock_guard lock(log_.mutex_);
  log_.waits_in_.reset();
  const auto now = Clock::now();
  log_.waited_ += now - began_;
  if (std::uncaught_exceptions() == 0) { // a collective that failed is no progress
    log_.moved_ = now;
    if (Entry& kept = log_.entries_[place(number_)]; kept.number == number_) {
      kept.over = now;
    }
  }
}

size_t CollectiveLog::add_group(std::string name, std::vector<int64_t> members) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({std::move(name), std::move(members)});
  return groups_.size() - 1;
}

CollectiveLog::Entry
CollectiveLog::begin(const char* name, size_t group, const at::Tensor& tensor, int64_t peer) {
  const std::lock_guard lock(mutex_);
  ++count_;
  if (entries_.size() < kKept) {
    entries_.emplace_back();
  }
  Entry& entry = entries_[place(count_)] = {};
  entry.number = count_;
  entry.sequence = peer < 0 ? ++groups_[group].begun : 0;
  entry.name = name;
  entry.group = group;
  entry.peer = peer;
  entry.dtype = tensor.scalar_type();
  entry.dims = std::min(static_cast<size_t>(tensor.dim()), kDims);
  std::copy_n(tensor.sizes().begin(), entry.dims, entry.sizes.begin());
  entry.step = step_;
  entry.begun = moved_ = Clock::now();
  return entry;
}

double CollectiveLog::waited() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(waited_).count();
}

void CollectiveLog::begin_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  step_ = step;
}

Collective CollectiveLog::described(const Entry& entry) const {
  return {
      entry.number,
      entry.peer < 0 ? entry.name : std::string(entry.name) + " " + std::to_string(entry.peer),
      groups_[entry.group].name,
      at::toString(entry.dtype),
      {entry.sizes.begin(), entry.sizes.begin() + static_cast<int64_t>(entry.dims)}};
}

Collective CollectiveLog::collective(const Entry& entry) const {
  const std::lock_guard lock(mutex_);
  return described(entry);
}

std::vector<Collective> CollectiveLog::described_last() const {
  std::vector<Collective> all;
  const auto shown = static_cast<int64_t>(std::min(kShown, entries_.size()));
  for (int64_t number = count_; number > count_ - shown; --number) {
    all.push_back(described(entries_[place(number)]));
  }
  return all;
}

std::vector<Collective> CollectiveLog::last() const {
  const std::lock_guard lock(mutex_);
  return described_last();
}

std::string CollectiveLog::text() const {
  std::string text;
  for (const Collective& one : last()) {
    text += (text.empty() ? "" : ", before it ") + one.text();
  }
  return text;
}

std::string CollectiveLog::record() const {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto wall = std::chrono::system_clock::now();
  std::string text = "number   step  begun, UTC         took, ms  collective\n";
  for (int64_t number = count_ - static_cast<int64_t>(entries_.size()) + 1; number <= count_;
       ++number) {
    const Entry& entry = entries_[place(number)];
    const auto begun =
        wall - std::chrono::duration_cast<std::chrono::system_clock::duration>(now - entry.begun);
    const bool waits = waits_in_ && waits_in_->number == number;
    const std::chrono::duration<double, std::milli> took = entry.over.value_or(now) - entry.begun;
    text += formatted(
        "%6lld %6lld  %s %12.3f  ",
        static_cast<long long>(number),
        static_cast<long long>(entry.step),
        time_of_day(begun).c_str(),
        took.count()
    );
    text += described(entry).text();
    text += entry.sequence > 0 ? ", its " + std::to_string(entry.sequence) + ". there" : "";
    text += waits ? ": waits in it" : entry.over ? "" : ": was not waited for yet";
    text += "\n";
  }
  return text;
}

RankProgress CollectiveLog::progress(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  RankProgress at{
      .step = step_,
      .seconds = std::chrono::duration<double>(Clock::now() - moved_).count(),
      .last = count_ > 0 ? described_last().front() : Collective{}};
  for (const GroupTally& group : groups_) {
    if (group.begun > 0) {
      at.begun[group.name] = group.begun;
    }
  }
  if (waits_in_) {
    const auto& members = groups_[waits_in_->group].members;
    at.waits_in = described(*waits_in_);
    at.sequence = waits_in_->sequence;
    at.transfer = waits_in_->peer >= 0;
    at.waits_for =
        at.transfer ? std::vector{members[static_cast<size_t>(waits_in_->peer)]} : members;
    std::erase(at.waits_for, rank);
  }
  return at;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return ranks.size() > kShown ? text + " and " + std::to_string(ranks.size() - kShown) + " more"
                               : text;
}

std::string compare_collectives(const std::vector<Collective>& last) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> at; // what some ranks are at, and which
  std::vector<int64_t> silent;
  for (size_t rank = 0; rank < last.size(); ++rank) {
    if (last[rank].number == 0) {
      silent.push_back(static_cast<int64_t>(rank));
    } else {
      const auto known = std::find_if(at.begin(), at.end(), [&](const auto& one) {
        return one.first == last[rank].text();
      });
      auto& place =
          known == at.end() ? at.emplace_back(last[rank].text(), std::vector<int64_t>()) : *known;
      place.second.push_back(static_cast<int64_t>(rank));
    }
  }
  std::string text;
  for (const auto& [what, ranks] : at) {
    text += (text.empty() ? "" : "; ") + ranks_text(ranks) + (ranks.size() == 1 ? " is" : " are") +
            " at " + what;
  }
  if (!silent.empty()) {
    text += (text.empty() ? "" : "; ") + ranks_text(silent) +
            (silent.size() == 1 ? " does" : " do") + " not answer";
  }
  // Groups whose members are at different things: the first pair says which field.
  for (size_t a = 0; a < last.size(); ++a) {
    for (size_t b = a + 1; b < last.size(); ++b) {
      const bool meet = last[a].number > 0 && last[b].number > 0 && last[a].group == last[b].group;
      if (const auto fields = meet ? difference(last[a], last[b]) : ""; !fields.empty()) {
        return text + "; between ranks " + std::to_string(a) + " and " + std::to_string(b) +
               " differ: " + fields;
      }
    }
  }
  return text;
}

} // namespace mh
