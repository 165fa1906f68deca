#include "core/records/profile.hpp"

#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/records/profile_tables.hpp"
#include "core/step/model_parts.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <ATen/record_function.h>

#include <nlohmann/json.hpp>

#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace mh {

namespace {

constexpr size_t kMostEvents = 2'000'000; // events in a trace; later ones are in the tables only

double micros(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

std::optional<int64_t> step_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 1
             ? std::optional(number)
             : std::nullopt;
}

} // namespace

StepRange parse_steps(const std::string& text) {
  const size_t colon = text.find(':');
  const auto first = step_number(text.substr(0, colon));
  const auto last = colon == std::string::npos ? first : step_number(text.substr(colon + 1));
  if (!first || !last || *last < *first) {
    throw Error(
        "--profile " + text + " is no range of steps",
        "give the first and the last step, as in --profile 10:20"
    );
  }
  return {*first, *last};
}

/// Takes what LibTorch's callbacks tell, on whatever thread they run.
class Profile::Recorder {
public:
  ~Recorder() { stop(); }

  void begin_step(int64_t step) {
    const std::lock_guard lock(mutex_);
    step_ = step;
    main_ = at::RecordFunction::currentThreadId();
    threads_.clear();
    parts_.clear();
    begin_ = Clock::now();
    active_ = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&started, &ended)
                                        .scopes(
                                            {at::RecordScope::FUNCTION,
                                             at::RecordScope::BACKWARD_FUNCTION,
                                             at::RecordScope::USER_SCOPE}
                                        ));
  }

  void end_step() {
    const auto now = Clock::now();
    stop();
    tables_.add_step(micros(now - begin_));
    keep({"step " + std::to_string(step_), "step", "", main_, begin_, now});
  }

  [[nodiscard]] const ProfileTables& tables() const { return tables_; }

  [[nodiscard]] std::string trace() const;

private:
  struct Event {
    std::string name;
    const char* kind; // "step", "part", "backward", "operation"
    std::string part;
    uint64_t thread;
    Clock::time_point begin, end;
  };

  /// An event that has not ended.
  struct Open {
    Event event;
    bool backward;
    double children; // microseconds
  };

  // Callbacks may end after the step that they began in: they ask whether a recorder is still
  // active.
  static inline std::mutex mutex_;
  static inline Recorder* active_ = nullptr;

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function) {
    const std::lock_guard lock(mutex_);
    if (active_ != nullptr) {
      active_->start(function);
    }
    return nullptr;
  }

  static void ended(const at::RecordFunction&, at::ObserverContext*) {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    if (active_ != nullptr) {
      active_->end(now);
    }
  }

  void start(const at::RecordFunction& function);
  void end(Clock::time_point now);

  void keep(Event event) {
    if (events_.size() < kMostEvents) {
      events_.push_back(std::move(event));
    }
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    if (active_ == this) {
      at::removeCallback(handle_);
      active_ = nullptr;
    }
  }

  int64_t step_ = 0;
  uint64_t main_ = 0;
  Clock::time_point begin_;
  at::CallbackHandle handle_ = 0;
  PartTracker parts_;
  std::map<uint64_t, std::vector<Open>> threads_;
  std::vector<Event> events_;
  ProfileTables tables_;
};

void Profile::Recorder::start(const at::RecordFunction& function) {
  const uint64_t id = at::RecordFunction::currentThreadId();
  const auto place = parts_.begin(function);
  const char* kind = place.scope                                              ? "part"
                     : function.scope() == at::RecordScope::BACKWARD_FUNCTION ? "backward"
                                                                              : "operation";
  threads_[id].push_back(
      {.event = {operation_name(function.name()), kind, place.part, id, Clock::now(), {}},
       .backward = place.backward,
       .children = 0}
  );
}

void Profile::Recorder::end(Clock::time_point now) {
  auto& open_events = threads_[at::RecordFunction::currentThreadId()];
  if (!parts_.end() || open_events.empty()) {
    return; // it began before anybody listened
  }
  Open open = std::move(open_events.back());
  open_events.pop_back();
  auto& event = open.event;
  event.end = now;
  const double duration = micros(event.end - event.begin);
  if (!open_events.empty()) {
    open_events.back().children += duration;
  }
  if (event.thread == main_) {
    tables_.add(
        {.operation = std::string_view(event.kind) == "part" ? "" : event.name,
         .part = event.part,
         .backward = open.backward,
         .micros = duration - open.children}
    );
  }
  keep(std::move(event));
}

std::string Profile::Recorder::trace() const {
  using Json = nlohmann::ordered_json;
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  text +=
      Json{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", "rank 0"}}}}.dump(
      );
  const auto start = events_.empty() ? Clock::time_point() : events_.back().begin;
  auto first = start;
  for (const auto& event : events_) {
    first = std::min(first, event.begin);
  }
  for (const auto& event : events_) {
    Json json{
        {"ph", "X"},
        {"name", event.name},
        {"cat", event.kind},
        {"pid", 0},
        {"tid", event.thread},
        {"ts", micros(event.begin - first)},
        {"dur", micros(event.end - event.begin)}};
    if (!event.part.empty()) {
      json["args"] = {{"part", event.part}};
    }
    text += ",\n" + json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return text + "\n]}\n";
}

Profile::Profile()
    : recorder_(std::make_unique<Recorder>()) {}

Profile::~Profile() = default;

void Profile::begin_step(int64_t step) {
  recorder_->begin_step(step);
}

void Profile::end_step() {
  recorder_->end_step();
}

std::string Profile::tables(size_t rows) const {
  return recorder_->tables().text(rows);
}

std::string Profile::trace() const {
  return recorder_->trace();
}

void write_profile(const Profile& profile, const std::filesystem::path& folder) {
  make_directories(folder);
  replace_file(folder / "trace.json", profile.trace());
  replace_file(folder / "tables.txt", profile.tables(/*rows=*/1000));
}

} // namespace mh
