#include "core/commands/run_output.hpp"

#include "core/draw/chart.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace mh {

namespace {

constexpr std::chrono::milliseconds kBetweenDraws{100};

Series series(const std::string& name, const std::vector<std::pair<double, double>>& points) {
  Series result{.name = name, .x = {}, .y = {}};
  for (const auto& [x, y] : points) {
    result.x.push_back(x);
    result.y.push_back(y);
  }
  return result;
}

} // namespace

RunOutput::RunOutput()
    : out_(Terminal::of(STDOUT_FILENO))
    , err_(Terminal::of(STDERR_FILENO)) {}

RunOutput::~RunOutput() {
  clear();
}

void RunOutput::write(const std::string& text, std::FILE* to) {
  const std::lock_guard lock(mutex_);
  clear();
  const std::string line = text + "\n"; // at once: only whole lines are wrapped (wrap_terminals)
  std::fwrite(line.data(), 1, line.size(), to);
  std::fflush(to);
  if (!progress_.empty()) {
    draw();
  }
}

void RunOutput::line(const std::string& text) {
  write(text, stdout);
}

void RunOutput::warning(const std::string& text) {
  write(err_.paint(Paint::yellow, "warning: ") + text, stderr);
}

void RunOutput::fields(const std::vector<std::string>& fields) {
  static constexpr std::array kPaints{
      Paint::bold,
      Paint::green,
      Paint::yellow,
      Paint::magenta,
      Paint::cyan,
      Paint::blue,
      Paint::red,
      Paint::plain,
      Paint::bright_green,
      Paint::bright_blue};
  std::string text;
  for (size_t i = 0; i < fields.size(); ++i) {
    text += i == 0 ? "" : out_.paint(Paint::dim, " | ");
    text += out_.paint(kPaints[i % kPaints.size()], fields[i]);
  }
  line(text);
}

void RunOutput::progress(double done, const std::string& text) {
  const std::lock_guard lock(mutex_);
  done_ = done;
  progress_ = done >= 1 ? "" : text;
  const auto now = std::chrono::steady_clock::now();
  if (!progress_.empty() && (!shown_ || now - drawn_ >= kBetweenDraws)) {
    drawn_ = now;
    draw();
  }
}

std::string RunOutput::chart(const LossCurves& curves) {
  std::vector<Series> all{series("training", curves.train)};
  if (!curves.validation.empty()) {
    all.push_back(series("validation", curves.validation));
    all.back().marks = true;
  }
  return line_chart(
      {.title = "loss", .x_label = "step", .width = std::clamp(out_.width, 60, 100)}, all, {}
  );
}

void RunOutput::draw() {
  if (!err_.interactive) {
    return;
  }
  const int columns = std::clamp(err_.width - cells(progress_) - 12, 0, 40);
  std::string text = "\r\x1b[K";
  if (columns >= 8) {
    std::array<char, 16> percent{};
    std::snprintf(percent.data(), percent.size(), " %3.0f%%  ", 100 * done_);
    text += err_.paint(Paint::cyan, bar(done_, columns)) + percent.data();
  }
  std::fputs((text + progress_).c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void RunOutput::clear() {
  if (shown_) {
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    shown_ = false;
  }
}

} // namespace mh
