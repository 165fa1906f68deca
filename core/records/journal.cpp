#include "core/records/journal.hpp"

#include "core/base/seconds.hpp"
#include "core/base/write_all.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path journal_file(const std::filesystem::path& run) {
  return run / "journal.jsonl";
}

Json event_json(const JournalEvent& event) {
  Json json{{"event", event.kind}, {"time", event.time}, {"step", event.step}};
  const auto add = [&](const char* name, const auto& value, bool there) {
    if (there) {
      json[name] = value;
    }
  };
  add("ranks", event.ranks, event.ranks > 0);
  add("seconds", event.seconds, event.seconds > 0);
  add("lost_steps", event.lost_steps, event.lost_steps > 0);
  add("lost_seconds", event.lost_seconds, event.lost_steps > 0);
  add("alive", event.alive, event.alive > 0);
  add("text", event.text, !event.text.empty());
  return json;
}

JournalEvent event_from(const Json& json) {
  JournalEvent event{
      .kind = json.at("event").get<std::string>(),
      .time = json.at("time").get<double>(),
      .step = json.value("step", int64_t{0}),
      .ranks = json.value("ranks", int64_t{0}),
      .seconds = json.value("seconds", 0.0),
      .lost_steps = json.value("lost_steps", int64_t{0}),
      .lost_seconds = json.value("lost_seconds", 0.0),
      .alive = json.value("alive", 0.0),
      .text = json.value("text", "")};
  return event;
}

/// Whether a crash or a full disk has cut the last line off: what follows would be lost with it.
bool ends_within_line(int file) {
  const off_t size = lseek(file, 0, SEEK_END);
  char last = '\n';
  return size > 0 && pread(file, &last, 1, size - 1) == 1 && last != '\n';
}

} // namespace

// proc(5): the 22nd field of stat is the start, in ticks since the system's; the second one is a
// name in brackets that may hold anything.
double process_age() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string line;
  double up = 0;
  if (!std::getline(stat, line) || !(uptime >> up)) {
    return 0;
  }
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    fields >> field;
  }
  const double began = std::strtod(field.c_str(), nullptr);
  return std::max(0.0, up - began / static_cast<double>(sysconf(_SC_CLK_TCK)));
}

void Journal::open(const std::filesystem::path& folder) {
  const std::lock_guard lock(mutex_);
  file_ = journal_file(folder);
}

// One write of O_APPEND: ranks and the process that started them may note at the same time.
void Journal::note(JournalEvent event) const {
  const std::lock_guard lock(mutex_);
  if (file_.empty()) {
    return;
  }
  event.time = event.time > 0 ? event.time : unix_now();
  event.time = std::round(1e3 * event.time) / 1e3;
  const std::string line =
      event_json(event).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const int file = ::open(file_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file >= 0) {
    (void)write_all(file, (ends_within_line(file) ? "\n" : "") + line);
    ::close(file);
  }
}

std::vector<JournalEvent> read_journal(const std::filesystem::path& folder) {
  std::vector<JournalEvent> events;
  std::ifstream stream(journal_file(folder));
  for (std::string line; std::getline(stream, line);) {
    try {
      events.push_back(event_from(Json::parse(line)));
    } catch (const Json::exception&) { // cut off by a crash or a full disk
    }
  }
  return events;
}

} // namespace mh
