#include "core/records/profile_tables.hpp"

#include "core/base/number_text.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace mh {

namespace {

/// "layers.3/attention" as "layers.*/attention".
std::string without_number(const std::string& part) {
  const size_t dot = part.find('.');
  if (dot == std::string::npos || dot + 1 >= part.size() ||
      std::isdigit(static_cast<unsigned char>(part[dot + 1])) == 0) {
    return part;
  }
  const size_t end = std::min(part.find('/', dot), part.size());
  return part.substr(0, dot) + ".*" + part.substr(end);
}

void add_to(ProfileTables::Row& row, const SelfTime& time, int64_t calls) {
  row.calls += calls;
  (time.backward ? row.backward : row.forward) += time.micros;
}

std::string table(
    const std::string& title,
    const std::vector<ProfileTables::Row>& rows,
    size_t most,
    double micros,
    int64_t steps
) {
  std::string text = formatted(
      "%-44s %8s %10s %10s %10s %7s\n",
      title.c_str(),
      "calls",
      "forward",
      "backward",
      "ms/step",
      "share"
  );
  const auto per_step = [&](double time) { return time / 1e3 / static_cast<double>(steps); };
  const auto line = [&](const ProfileTables::Row& row) {
    return formatted(
        "  %-42s %8lld %10.3f %10.3f %10.3f %6.1f%%\n",
        row.name.c_str(),
        static_cast<long long>(row.calls / steps),
        per_step(row.forward),
        per_step(row.backward),
        per_step(row.all()),
        100 * row.all() / micros
    );
  };
  ProfileTables::Row others;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i < most || rows.size() == most + 1) {
      text += line(rows[i]);
    } else {
      others.calls += rows[i].calls;
      others.forward += rows[i].forward;
      others.backward += rows[i].backward;
    }
  }
  if (rows.size() > most + 1) {
    others.name = formatted("(%zu more)", rows.size() - most);
    text += line(others);
  }
  return text +
         formatted(
             "  %-42s %8s %10s %10s %10.3f %6.1f%%\n", "all", "", "", "", per_step(micros), 100.0
         );
}

} // namespace

void ProfileTables::add(const SelfTime& time) {
  if (!time.operation.empty()) {
    add_to(operations_[time.operation], time, 1);
  }
  if (!time.part.empty()) {
    const int64_t calls = time.operation.empty() ? 1 : 0;
    add_to(parts_[without_number(time.part)], time, calls);
    const size_t slash = time.part.find('/');
    add_to(blocks_[time.part.substr(0, slash)], time, slash == std::string::npos ? calls : 0);
  }
}

void ProfileTables::add_step(double micros) {
  ++steps_;
  micros_ += micros;
}

std::vector<ProfileTables::Row> ProfileTables::sorted(const Rows& rows, const char* rest) const {
  std::vector<Row> list;
  Row others{.name = rest, .calls = 0, .forward = micros_, .backward = 0};
  for (const auto& [name, row] : rows) {
    list.push_back(row);
    list.back().name = name;
    others.forward -= row.all();
  }
  list.push_back(others);
  std::stable_sort(list.begin(), list.end(), [](const Row& a, const Row& b) {
    return a.all() > b.all();
  });
  return list;
}

std::vector<ProfileTables::Row> ProfileTables::operations() const {
  return sorted(operations_, "(between operations)");
}

std::vector<ProfileTables::Row> ProfileTables::parts() const {
  return sorted(parts_, "(outside of all parts)");
}

std::vector<ProfileTables::Row> ProfileTables::blocks() const {
  return sorted(blocks_, "(outside of all blocks)");
}

std::string ProfileTables::text(size_t rows) const {
  if (steps_ == 0) {
    return "";
  }
  return table("operation", operations(), rows, micros_, steps_) + "\n" +
         table("part of the model", parts(), rows, micros_, steps_) + "\n" +
         table("block", blocks(), rows, micros_, steps_);
}

} // namespace mh
