#include "core/draw/svg_bars.hpp"

#include <doctest/doctest.h>

namespace {

size_t times_in(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

} // namespace

TEST_CASE("bars are on one scale: the longest, or the limit, is as wide as the plot") {
  const mh::Bars bars{
      .title = "memory <of a rank>",
      .parts = {"weights", "state"},
      .rows = {{"stage 0", {1, 3}, "4 GiB"}, {"stage 1", {2, 0}, "2 GiB"}},
      .unit = "GiB",
      .limit = 8,
      .limit_text = "8 GiB"};
  const std::string svg = mh::svg_bars(bars);
  CHECK(svg.starts_with("<svg xmlns"));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("memory &lt;of a rank&gt;") != std::string::npos);
  CHECK(times_in(svg, "class=\"f0\"") == 3); // legend and two bars
  CHECK(times_in(svg, "width=\"70.0\"") == 1);
  CHECK(times_in(svg, "width=\"210.0\"") == 1);
  CHECK(times_in(svg, "width=\"140.0\"") == 1);
  CHECK(svg.find("<title>state 3 GiB</title>") != std::string::npos);
  CHECK(svg.find(">8 GiB</text>") != std::string::npos);
}

TEST_CASE("bars of one part have no legend, and none a line without a limit") {
  const std::string svg = mh::svg_bars({"t", {"time"}, {{"products", {2}, "2 s"}}, "s", 0, ""});
  CHECK(times_in(svg, "class=\"f0\"") == 1);
  CHECK(times_in(svg, "class=\"line") == 0);
  CHECK(times_in(svg, "width=\"560.0\"") == 1);
}
