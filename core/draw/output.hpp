#pragma once
/// The output of a run's words. The host connects it to a terminal; tests connect it to a string.

#include "megahost/export.hpp"

#include <string>
#include <utility>
#include <vector>

namespace mh {

/// Losses by step: (step, loss), steps ascending.
struct LossCurves {
  std::vector<std::pair<double, double>> train, validation;
};

class MH_API Output {
public:
  virtual ~Output();
  /// A whole line, without its end.
  virtual void line(const std::string& text) = 0;

  /// The fields of a line, which are told apart by colour where there are colours; elsewhere the
  /// line is "FIELD | FIELD | ...".
  virtual void fields(const std::vector<std::string>& fields);

  /// Prints a warning that the user should see at once; any thread may call it.
  virtual void warning(const std::string& text);

  /// The share of the work that is done, and a few words next to the bar. Nothing where there is no
  /// terminal.
  virtual void progress(double /*done*/, const std::string& /*text*/) {}

  /// The curves as lines of text; empty where nothing can be drawn.
  [[nodiscard]] virtual std::string chart(const LossCurves& /*curves*/) { return ""; }
};

} // namespace mh
