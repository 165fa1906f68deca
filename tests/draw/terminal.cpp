#include "core/draw/terminal.hpp"

#include "core/draw/chart.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  for (size_t start = 0; start < text.size();) {
    const size_t end = text.find('\n', start);
    result.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return result;
}

} // namespace

TEST_CASE("a pipe is no terminal") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const mh::Terminal terminal = mh::Terminal::of(ends[1]);
  CHECK_FALSE(terminal.interactive);
  CHECK_FALSE(terminal.colour);
  CHECK(terminal.paint(mh::Paint::red, "text") == "text");
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("on a terminal there are colours unless NO_COLOR or TERM=dumb say otherwise") {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  CHECK(mh::Terminal::of(master).colour);
  setenv("NO_COLOR", "", 1);
  CHECK(mh::Terminal::of(master).colour);
  setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(mh::Terminal::of(master).colour);
  CHECK(mh::Terminal::of(master).interactive);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  CHECK_FALSE(mh::Terminal::of(master).interactive);
  setenv("TERM", "xterm", 1);
  CHECK(mh::Terminal::of(master).paint(mh::Paint::red, "text") == "\x1b[31mtext\x1b[0m");
  close(master);
}

TEST_CASE("cells count characters, not bytes and not colours") {
  CHECK(mh::cells("abc") == 3);
  CHECK(mh::cells("█▍") == 2);
  CHECK(mh::cells("\x1b[31mtext\x1b[0m") == 4);
}

TEST_CASE("a bar has its width at every share") {
  CHECK(mh::bar(0, 4) == "    ");
  CHECK(mh::bar(1, 4) == "████");
  CHECK(mh::bar(0.5, 4) == "██  ");
  CHECK(mh::bar(0.53125, 4) == "██▏ ");
  for (int i = -5; i < 120; ++i) {
    CHECK(mh::cells(mh::bar(i / 100.0, 10)) == 10);
  }
}

TEST_CASE("a falling line goes from the top left to the bottom right") {
  mh::Series falling{.name = "loss", .x = {}, .y = {}};
  for (int i = 0; i <= 10; ++i) {
    falling.x.push_back(i);
    falling.y.push_back(10 - i);
  }
  const auto chart = lines(
      mh::line_chart({.title = "loss", .x_label = "step", .width = 40, .height = 5}, {falling}, {})
  );
  REQUIRE(chart.size() == 8); // title, 5 rows, axis, labels
  CHECK(chart[0].find("loss") != std::string::npos);
  const auto first_dot = [&](size_t row) {
    return mh::cells(chart[row].substr(
        0,
        chart[row].find("\xe2\xa0") == std::string::npos ? chart[row].find("\xe2\xa1")
                                                         : chart[row].find("\xe2\xa0")
    ));
  };
  for (size_t row = 1; row + 1 <= 5; ++row) {
    CHECK(first_dot(row) < first_dot(row + 1));
  }
  CHECK(chart[7].find("10  step") != std::string::npos);
}

TEST_CASE("charts of odd data") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const mh::Chart plain{.title = "loss", .x_label = "step"};
  const auto draw = [&](std::vector<double> x, std::vector<double> y) {
    return mh::line_chart(plain, {{.name = "a", .x = std::move(x), .y = std::move(y)}}, {});
  };
  CHECK(draw({}, {}) == "loss: not enough points for a curve\n");
  CHECK(draw({1}, {2}) == "loss: not enough points for a curve\n");
  CHECK(draw({1, 1}, {2, 3}) == "loss: not enough points for a curve\n");
  CHECK(draw({1, 2}, {nan, nan}) == "loss: not enough points for a curve\n");
  CHECK(lines(draw({1, 2, 3}, {2, nan, 2})).size() == 17);
  CHECK(lines(draw({0, 1}, {1e-12, 1e12})).size() == 17);
  CHECK(lines(draw({0, 1}, {-5, -5})).size() == 17);
}

TEST_CASE("many points are drawn as the mean of each column") {
  mh::Series noisy{.name = "a", .x = {}, .y = {}};
  for (int i = 0; i < 10000; ++i) {
    noisy.x.push_back(i);
    noisy.y.push_back(i % 2 == 0 ? 1.0 : 3.0);
  }
  const auto chart =
      lines(mh::line_chart({.title = "a", .x_label = "x", .width = 40, .height = 9}, {noisy}, {}));
  int rows_with_dots = 0;
  for (const std::string& line : chart) {
    rows_with_dots +=
        line.find("\xe2\xa0") != std::string::npos || line.find("\xe2\xa1") != std::string::npos ||
        line.find("\xe2\xa2") != std::string::npos || line.find("\xe2\xa3") != std::string::npos;
  }
  CHECK(rows_with_dots == 1);
}

TEST_CASE("several series have a legend, and every line keeps to the width") {
  mh::Series a{.name = "training", .x = {1, 2, 3}, .y = {3, 2, 1}};
  mh::Series b{
      .name = "validation",
      .x = {2, 3},
      .y = {2.2, 1.2},
      .marks = true,
      .paint = mh::Paint::yellow};
  const auto chart =
      lines(mh::line_chart({.title = "loss", .x_label = "step", .width = 60}, {a, b}, {}));
  CHECK(chart.back().find("── training   ● validation") != std::string::npos);
  for (const std::string& line : chart) {
    CHECK(mh::cells(line) <= 60);
  }
}

TEST_CASE("letters tell lines apart where there are no colours") {
  mh::Series a{.name = "one", .x = {}, .y = {}, .letter = "a"};
  mh::Series b{.name = "two", .x = {}, .y = {}, .letter = "b"};
  for (int i = 0; i < 100; ++i) {
    a.x.push_back(i);
    a.y.push_back(1);
    b.x.push_back(i);
    b.y.push_back(2);
  }
  const auto chart =
      lines(mh::line_chart({.title = "", .x_label = "x", .width = 60, .height = 9}, {a, b}, {}));
  CHECK(chart.back().find("─a─ one   ─b─ two") != std::string::npos);
  std::string above, below;
  for (size_t i = 1; i + 3 < chart.size(); ++i) {
    (i < 5 ? above : below) += chart[i];
  }
  CHECK(above.find('b') != std::string::npos);
  CHECK(above.find('a') == std::string::npos);
  CHECK(below.find('a') != std::string::npos);
  CHECK(below.find('b') == std::string::npos);
}
