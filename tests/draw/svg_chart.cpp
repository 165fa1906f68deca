#include "core/draw/svg_chart.hpp"

#include "core/draw/ticks.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <vector>

namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

mh::Panel panel(const std::string& title, std::vector<mh::Series> series) {
  return {.chart = {.title = title, .x_label = "step"}, .series = std::move(series)};
}

} // namespace

TEST_CASE("ticks are round numbers inside their range") {
  const auto labels = [](double low, double high, int number) {
    std::string text;
    for (const auto& tick : mh::ticks({low, high}, number)) {
      CHECK(tick.at >= low - 1e-9);
      CHECK(tick.at <= high + 1e-9);
      text += tick.label + " ";
    }
    return text;
  };
  CHECK(labels(0, 10, 5) == "0 2 4 6 8 10 ");
  CHECK(labels(1.49, 2.51, 4) == "1.5 2.0 2.5 ");
  CHECK(labels(0, 3e-4, 3) == "0.0000 0.0001 0.0002 0.0003 ");
  CHECK(labels(-5, 5, 2) == "-5 0 5 ");
}

TEST_CASE("ticks of a logarithmic axis are round, and enough") {
  const auto labels = [](double low, double high) {
    std::string text;
    for (const auto& tick : mh::log_ticks({std::log10(low), std::log10(high)})) {
      CHECK(std::pow(10, tick.at) == doctest::Approx(std::stod(tick.label)));
      text += tick.label + " ";
    }
    return text;
  };
  CHECK(labels(1e-5, 1e-2) == "1e-05 0.0001 0.001 0.01 ");
  CHECK(labels(3e-4, 1.01e-2) == "0.0003 0.001 0.003 0.01 ");
  CHECK(labels(1e-4, 1e-3) == "0.0001 0.0003 0.001 ");
  CHECK(labels(3e-4, 1e-3) == "0.0003 0.0004 0.0005 0.0006 0.0007 0.0008 0.0009 0.001 ");
  CHECK(labels(1, 1e16).starts_with("1 100 10000 "));
}

TEST_CASE("on a logarithmic axis equal ratios are equal distances") {
  std::vector<mh::Series> points;
  for (const double rate : {1e-4, 1e-3, 1e-2}) {
    points.push_back({.name = "a", .x = {rate}, .y = {1}, .marks = true});
  }
  const auto places = [&](bool log_x) {
    mh::Panel one = panel("loss", points);
    one.chart.log_x = log_x;
    const std::string svg = mh::svg_charts("t", {one});
    std::vector<double> found;
    const std::regex circle(R"re(<circle cx="([0-9.]+)" cy="[0-9.]+" r="3")re");
    for (std::sregex_iterator it(svg.begin(), svg.end(), circle), end; it != end; ++it) {
      found.push_back(std::stod((*it)[1]));
    }
    REQUIRE(found.size() == 3);
    return (found[1] - found[0]) / (found[2] - found[1]);
  };
  CHECK(places(true) == doctest::Approx(1).epsilon(0.01));
  CHECK(places(false) == doctest::Approx(0.1).epsilon(0.02));
}

TEST_CASE("a logarithmic y axis leaves out zeros") {
  mh::Panel one = panel("rate", {{.name = "a", .x = {0, 1, 2, 3}, .y = {0, 1e-4, 1e-3, 1e-2}}});
  one.chart.log_y = true;
  const std::string svg = mh::svg_charts("t", {one});
  const std::regex line(R"re(<path d="M([0-9.]+) ([0-9.]+)L[0-9.]+ ([0-9.]+)L[0-9.]+ ([0-9.]+)")re"
  );
  std::smatch found;
  REQUIRE(std::regex_search(svg, found, line));
  const double first = std::stod(found[2]), second = std::stod(found[3]),
               third = std::stod(found[4]);
  CHECK(first - second == doctest::Approx(second - third).epsilon(0.01));
  CHECK(svg.find(">0.001</text>") != std::string::npos);
}

TEST_CASE("a picture has a panel per chart, a line per series and one legend") {
  const mh::Series a{.name = "runs/a", .x = {1, 2, 3}, .y = {3, 2, 1}};
  const mh::Series b{.name = "runs/b", .x = {1, 2}, .y = {2, 2}, .paint = mh::Paint::yellow};
  const mh::Series marks{.name = "runs/a validation", .x = {2}, .y = {2.5}, .marks = true};
  const auto svg = mh::svg_charts("a & <b>", {panel("loss", {a, b, marks}), panel("lr", {a, b})});
  CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("a &amp; &lt;b&gt;") != std::string::npos);
  CHECK(count(svg, ">runs/a</text>") == 1);
  CHECK(count(svg, "class=\"line c0\"") == 3); // legend and two panels
  CHECK(count(svg, "class=\"line c1\"") == 3);
  CHECK(count(svg, "<circle") == 2); // legend and one point
  CHECK(count(svg, "class=\"title\"") == 2);
  CHECK(svg.find("prefers-color-scheme: dark") != std::string::npos);
}

TEST_CASE("a heading ends where the picture ends") {
  const mh::Series line{.name = "a", .x = {0, 100}, .y = {0, 1}};
  std::string title;
  for (int i = 0; i < 100; ++i) {
    title += "\u00e4";
  }
  const auto svg = mh::svg_charts(title, {panel("loss", {line})});
  CHECK(svg.find("\u00e4...</text>") != std::string::npos);
  CHECK(count(svg, "\u00e4") < 150); // all of them in the document's title only
}

TEST_CASE("the corners of a line are the corners of its plot") {
  const mh::Series line{.name = "a", .x = {0, 100}, .y = {0, 1}};
  const auto svg = mh::svg_charts("t", {panel("loss", {line})});
  std::smatch found;
  REQUIRE(std::regex_search(
      svg,
      found,
      std::regex(R"re(<path d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)" class="line c0")re")
  ));
  CHECK(std::stod(found[1]) == doctest::Approx(64));
  CHECK(std::stod(found[3]) == doctest::Approx(480 - 14));
  CHECK(std::stod(found[2]) > std::stod(found[4])); // y grows downwards
}

TEST_CASE("pictures of odd data") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto draw = [&](std::vector<double> x, std::vector<double> y) {
    return mh::svg_charts(
        "t", {panel("loss", {{.name = "a", .x = std::move(x), .y = std::move(y)}})}
    );
  };
  CHECK(draw({}, {}).find("no points") != std::string::npos);
  CHECK(draw({1, 2}, {nan, nan}).find("no points") != std::string::npos);
  for (const auto& svg : {draw({1}, {2}), draw({1, 2}, {3, 3}), draw({1, 2, 3}, {1, nan, 1e12})}) {
    CHECK(svg.find("nan") == std::string::npos);
    CHECK(svg.find("inf") == std::string::npos);
  }
  CHECK(mh::svg_charts("t", {}).ends_with("</svg>\n"));
}

TEST_CASE("a long run's line has few points, and their mean is the run's") {
  mh::Series noisy{.name = "a", .x = {}, .y = {}};
  for (int i = 0; i < 100000; ++i) {
    noisy.x.push_back(i);
    noisy.y.push_back(i % 2);
  }
  const auto svg = mh::svg_charts("t", {panel("loss", {noisy})});
  CHECK(svg.size() < 20000);
  CHECK(svg.find("nan") == std::string::npos);
}
