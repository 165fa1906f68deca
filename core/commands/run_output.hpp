#pragma once
/// A run's lines on standard output, its warnings and its bar (where that is a terminal) on
/// standard error.

#include "core/draw/output.hpp"
#include "core/draw/terminal.hpp"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

namespace mh {

class RunOutput : public Output {
public:
  RunOutput();
  /// Takes the bar away.
  ~RunOutput() override;
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  void line(const std::string& text) override;
  void fields(const std::vector<std::string>& fields) override;
  void warning(const std::string& text) override;
  void progress(double done, const std::string& text) override;
  [[nodiscard]] std::string chart(const LossCurves& curves) override;

private:
  void write(const std::string& text, std::FILE* to);
  void draw();
  void clear();

  std::mutex mutex_; // guards all below
  Terminal out_, err_;
  bool shown_ = false;
  double done_ = 0;
  std::string progress_;
  std::chrono::steady_clock::time_point drawn_;
};

} // namespace mh
