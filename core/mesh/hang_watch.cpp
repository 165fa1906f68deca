#include "core/mesh/hang_watch.hpp"

#include "core/base/host_name.hpp"
#include "core/draw/report.hpp"
#include "core/mesh/hang_report.hpp"
#include "core/mesh/store_text.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <exception>
#include <numeric>

namespace mh {

namespace {

constexpr double kTicks = 8;      // in the seconds after which something is said
constexpr int kSilentTicks = 3;   // a rank that tells nothing new for so long does not answer
constexpr int kObservedTicks = 4; // ticks of looking at the others before anything is said of them
constexpr const char* kHangKey = "hang";

std::string watch_key(int64_t rank) {
  return std::to_string(rank);
}

std::string seconds_text(double seconds) {
  return std::to_string(std::llround(seconds)) + " s";
}

} // namespace

HangWatch::HangWatch(
    const Terms& terms,
    c10::intrusive_ptr<c10d::Store> store,
    std::shared_ptr<CollectiveLog> log,
    Say say
)
    : terms_(terms)
    , store_(std::move(store))
    , log_(std::move(log))
    , say_(std::move(say))
    , host_(host_name())
    , tick_(terms.after / kTicks)
    , others_(static_cast<size_t>(terms.ranks))
    , next_(terms.after)
    , thread_([this] { run(); }) {}

HangWatch::~HangWatch() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_all();
  thread_.join();
  if (writer_.joinable()) {
    writer_.join();
  }
  if (answers_.valid()) { // rank 0 takes the store away soon
    answers_.wait_for(std::chrono::seconds(1));
  }
}

void HangWatch::leave_reports(std::filesystem::path folder) {
  const std::lock_guard lock(mutex_);
  folder_ = std::move(folder);
}

void HangWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, tick_, [this] { return ended_; })) {
    lock.unlock();
    look(log_->progress(terms_.rank));
    lock.lock();
  }
}

void HangWatch::look(const RankProgress& own) {
  take_answers();
  const bool stands = own.seconds >= terms_.after / 2;
  ticks_ = stands ? ticks_ + 1 : 0;
  if (!stands) {
    forget();
  }
  if (!answers_.valid()) {
    // Rank 0 keeps the store: once it is silent no rank can ask any more where it is.
    const bool asks_first = terms_.rank > 0 && first_host_.empty();
    visit(
        own,
        stands       ? whom_to_ask()
        : asks_first ? std::vector<int64_t>{0}
                     : std::vector<int64_t>()
    );
  }
  if (ticks_ > kObservedTicks && own.seconds >= next_ && speaks()) {
    judge(own);
  }
  if (ticks_ > kObservedTicks) {
    report(own);
  }
}

/// Tells the store where this rank is and asks for others. A store whose process is stopped never
/// answers: the thread that asks it is left behind then.
void HangWatch::visit(const RankProgress& own, const std::vector<int64_t>& ask) {
  visited_ = Clock::now();
  for (const int64_t rank : ask) {
    auto& asked = others_[static_cast<size_t>(rank)].asked;
    asked = asked.value_or(visited_);
  }
  const std::string told = nlohmann::json::array({++beat_, host_, progress_text(own), getpid()})
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto found = std::make_shared<std::promise<Answers>>();
  answers_ = found->get_future();
  std::thread([found,
               told,
               ask,
               hang = std::exchange(tells_, std::nullopt),
               listens = ticks_ > 0,
               store = store_,
               rank = terms_.rank] {
    Answers answers;
    try {
      store->set(watch_key(rank), bytes_of(told));
      if (hang) {
        store->set(kHangKey, bytes_of(*hang));
      }
      for (const int64_t other : ask) {
        if (store->check({watch_key(other)})) {
          answers.ranks.emplace_back(other, text_of(store->get(watch_key(other))));
        }
      }
      if (listens && store->check({kHangKey})) {
        answers.hang = text_of(store->get(kHangKey));
      }
    } catch (const std::exception&) { // the store is gone: collectives fail now and say why
    }
    found->set_value(std::move(answers));
  }).detach();
}

void HangWatch::take_answers() {
  if (!answers_.valid() ||
      answers_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return;
  }
  const Answers answers = answers_.get();
  heard_ = answers.hang;
  for (const auto& [rank, text] : answers.ranks) {
    Other& other = others_[static_cast<size_t>(rank)];
    const auto told = nlohmann::json::parse(text);
    if (rank == 0) {
      first_host_ = told[1];
      first_process_ = told[3];
    }
    if (told[0] != other.beat) {
      other.beat = told[0];
      other.asked = Clock::now();
      other.seen = {SeenRank::Answer::alive, told[1], parse_progress(told[2])};
      other.process = told[3];
    }
  }
}

/// Rank 0 is silent with its store, whatever that was asked for.
bool HangWatch::is_silent(int64_t rank) const {
  if (rank == 0 && store_is_silent()) {
    return true;
  }
  const auto& asked = others_[static_cast<size_t>(rank)].asked;
  return asked && Clock::now() - *asked > kSilentTicks * tick_;
}

/// The ranks before this one must be silent before it speaks: it asks the first that may not be.
/// All the others where there is none.
std::vector<int64_t> HangWatch::whom_to_ask() const {
  for (int64_t rank = 0; rank < terms_.rank; ++rank) {
    if (!is_silent(rank)) {
      return {rank};
    }
  }
  std::vector<int64_t> all(others_.size());
  std::iota(all.begin(), all.end(), 0);
  std::erase(all, terms_.rank);
  return all;
}

bool HangWatch::store_is_silent() const {
  return answers_.valid() && Clock::now() - visited_ > kSilentTicks * tick_;
}

/// Without a store it is not known who else lives: the first rank of the second machine speaks for
/// a first machine that is gone.
bool HangWatch::speaks() const {
  if (store_is_silent() && terms_.rank == terms_.local_ranks) {
    return true;
  }
  const auto asked = whom_to_ask();
  return static_cast<int64_t>(asked.size()) + 1 == terms_.ranks &&
         (terms_.rank == 0 || is_silent(terms_.rank - 1));
}

void HangWatch::judge(const RankProgress& own) {
  std::vector<SeenRank> seen;
  for (int64_t rank = 0; rank < terms_.ranks; ++rank) {
    seen.push_back(others_[static_cast<size_t>(rank)].seen);
    if (is_silent(rank)) {
      seen.back().answer = SeenRank::Answer::silent;
    }
  }
  seen.front().host = seen.front().host.empty() ? first_host_ : seen.front().host;
  seen[static_cast<size_t>(terms_.rank)] = {SeenRank::Answer::alive, host_, own};
  const auto stall = find_stall(seen, terms_.after / 2);
  if (!stall || stall->seconds < terms_.after) {
    return;
  }
  std::filesystem::path folder;
  {
    const std::lock_guard lock(mutex_);
    folder = folder_;
  }
  sentence_ = "no progress for " + seconds_text(stall->seconds) + ": " + stall->text;
  say_(
      sentence_ + (folder.empty() ? "" : "; stacks and last collectives: " + folder.string()) +
      "; the run ends after comm.timeout, " + seconds_text(terms_.timeout)
  );
  tell_launcher(sentence_);
  tells_ = sentence_;
  const std::chrono::duration<double> past(stall->seconds);
  said_ = {Clock::now() - std::chrono::duration_cast<Clock::duration>(past), *stall};
  while (next_ <= own.seconds) {
    next_ = next_ < 2 * terms_.after ? 3 * terms_.after : 2 * next_;
  }
}

pid_t HangWatch::process_of(int64_t rank) const {
  const Other& other = others_[static_cast<size_t>(rank)];
  const std::string& host = rank == 0 ? first_host_ : other.seen.host;
  return host != host_ ? 0 : rank == 0 ? first_process_ : other.process;
}

/// The folder for a report that is not written yet: it is, from now on. Empty: there is none.
std::filesystem::path HangWatch::folder_of_report() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reported_, true) ? std::filesystem::path() : folder_;
}

void HangWatch::failed(const std::string& why) {
  if (const auto folder = folder_of_report(); !folder.empty()) {
    write_hang_report(folder, terms_.rank, why, *log_);
  }
}

/// Leaves this rank's report where a rank has said that the run hangs, or none can, as the store is
/// gone.
void HangWatch::report(const RankProgress& own) {
  const bool alone = store_is_silent() && own.seconds >= terms_.after;
  const std::string why = !sentence_.empty() ? sentence_
                          : !heard_.empty()  ? heard_
                          : alone            ? "no progress for " + seconds_text(own.seconds) +
                                        ", and rank 0, which has the store, does not answer"
                                  : "";
  const auto folder = why.empty() ? std::filesystem::path() : folder_of_report();
  if (folder.empty()) {
    return;
  }
  std::vector<std::pair<int64_t, pid_t>> silent;
  for (int64_t rank = 0; !sentence_.empty() && rank < terms_.ranks; ++rank) {
    if (rank != terms_.rank && is_silent(rank) && process_of(rank) != 0) {
      silent.emplace_back(rank, process_of(rank));
    }
  }
  std::vector<RankProgress> last;
  for (const auto& [rank, process] : silent) {
    last.push_back(others_[static_cast<size_t>(rank)].seen.at);
  }
  if (writer_.joinable()) {
    writer_.join();
  }
  writer_ = std::thread([folder, why, silent, last, log = log_, rank = terms_.rank] {
    for (size_t i = 0; i < silent.size(); ++i) {
      write_report_of_silent(folder, silent[i].first, why, silent[i].second, last[i]);
    }
    write_hang_report(folder, rank, why, *log);
  });
}

/// This rank goes on: what was known of others is old.
void HangWatch::forget() {
  if (said_) {
    const auto& [since, stall] = *said_;
    const std::string after =
        " after " + seconds_text(std::chrono::duration<double>(Clock::now() - since).count());
    say_(
        stall.late.empty()
            ? "the ranks go on" + after
            : ranks_text(stall.late) + (stall.late.size() == 1 ? " is" : " are") + " back" + after
    );
    tell_launcher("");
    tells_ = "";
  }
  said_.reset();
  sentence_.clear();
  heard_.clear();
  {
    const std::lock_guard lock(mutex_);
    reported_ = false;
  }
  next_ = terms_.after;
  others_.assign(others_.size(), {});
}

} // namespace mh
