#pragma once
/// The time of profiled steps, added up by operation, by part of the model and by block.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// Time that one event took itself, without those inside it.
struct SelfTime {
  std::string operation; ///< empty: between operations
  std::string part;      ///< "layers.3/attention"; empty: outside of the model
  bool backward = false;
  double micros = 0;
};

class ProfileTables {
public:
  struct Row {
    std::string name;
    int64_t calls = 0;
    double forward = 0, backward = 0; ///< microseconds

    [[nodiscard]] double all() const { return forward + backward; }
  };

  void add(const SelfTime& time);
  /// The events since the last step belonged to one that took so long.
  void add_step(double micros);

  /// The longest first; the times of the rows add up to that of the steps.
  [[nodiscard]] std::vector<Row> operations() const;
  /// Layers are one: "layers.*/attention".
  [[nodiscard]] std::vector<Row> parts() const;
  /// "embedding", "layers.0", ...
  [[nodiscard]] std::vector<Row> blocks() const;

  [[nodiscard]] int64_t steps() const { return steps_; }

  [[nodiscard]] double micros() const { return micros_; }

  /// The three as text, with at most so many rows each; empty if there was no step.
  [[nodiscard]] std::string text(size_t rows) const;

private:
  using Rows = std::map<std::string, Row>;

  [[nodiscard]] std::vector<Row> sorted(const Rows& rows, const char* rest) const;

  Rows operations_, parts_, blocks_;
  int64_t steps_ = 0;
  double micros_ = 0;
};

} // namespace mh
