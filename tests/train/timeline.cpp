#include "core/plan/timeline.hpp"

#include "core/draw/terminal.hpp"
#include "core/step/pipeline_lists.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <string>

namespace {

using Op = mh::Instruction::Op;

mh::Timeline gpipe_of_two() {
  const mh::PipelineSchedule::Args args{2, 1, 2};
  const auto lists = mh::with_transfers(
      args,
      {{{Op::forward, 0, 0}, {Op::forward, 0, 1}, {Op::backward, 0, 0}, {Op::backward, 0, 1}},
       {{Op::forward, 0, 0},
        {Op::forward, 0, 1},
        {Op::backward_input, 0, 0},
        {Op::backward_input, 0, 1},
        {Op::backward_weight, 0, 0},
        {Op::backward_weight, 0, 1}}}
  );
  return mh::simulate(args, lists, mh::PassTimes::even(2));
}

} // namespace

TEST_CASE("a row a stage: letters where passes begin, dots where the stage waits") {
  const mh::Terminal plain{.interactive = false, .colour = false, .width = 60};
  CHECK(
      mh::timeline_rows(gpipe_of_two(), plain) == "stage 0   a--b--......A-----B-----\n"
                                                  "stage 1   ...a--b--A--B--+--+--...\n"
  );
}

TEST_CASE("passes that do not fit are not drawn") {
  auto timeline = gpipe_of_two();
  for (auto& stage : timeline.stages) {
    for (auto& pass : stage) {
      pass.begin *= 1000;
      pass.end = pass.begin + 1;
    }
  }
  timeline.length *= 1000;
  CHECK(mh::timeline_rows(timeline, {.width = 100}) == "");
}

TEST_CASE("a picture has a box a pass, and the numbers of microbatches") {
  const std::string svg = mh::timeline_svg("two <stages>", gpipe_of_two());
  CHECK(svg.starts_with("<svg xmlns"));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("two &lt;stages&gt;") != std::string::npos);
  size_t boxes = 0;
  for (size_t at = svg.find("rx=\"2\""); at != std::string::npos;
       at = svg.find("rx=\"2\"", at + 1)) {
    ++boxes;
  }
  CHECK(boxes == 10);
  CHECK(svg.find(">stage 1</text>") != std::string::npos);
}

TEST_CASE("a picture is no wider than a page can be, whatever the unit of time") {
  for (const double unit : {1e-3, 1.0, 1e3}) {
    auto timeline = gpipe_of_two();
    timeline.length *= unit;
    for (auto& stage : timeline.stages) {
      for (auto& pass : stage) {
        pass.begin *= unit;
        pass.end *= unit;
      }
    }
    const std::string svg = mh::timeline_svg("t", timeline);
    const int width = std::stoi(svg.substr(svg.find("width=\"") + 7));
    CAPTURE(unit);
    CHECK(width > 400);
    CHECK(width < 600);
  }
}

TEST_CASE("numbers of microbatches lie in their boxes, however many there are") {
  mh::Timeline timeline{.stages = {{}}, .length = 0};
  for (int m = 95; m < 1105; ++m) { // short ones, at the end
    const double from = timeline.length;
    timeline.length += m < 100 ? 3 : 1;
    timeline.stages[0].push_back({{Op::forward, 0, m}, from, timeline.length});
  }
  const std::string svg = mh::timeline_svg("t", timeline);
  const std::regex label(R"re(<text x="([0-9.]+)" y="[0-9.]+" class="on" [^>]*>([0-9]+)<)re");
  double end = 0;
  int labels = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), label), none; it != none; ++it, ++labels) {
    const double middle = std::stod((*it)[1]), half = 3.5 * static_cast<double>((*it)[2].length());
    CHECK(middle - half >= end - 0.1); // at 7 pixels a digit
    end = middle + half;
  }
  CHECK(labels < 1010);

  timeline.stages[0].resize(60);
  timeline.length = timeline.stages[0].back().end;
  const std::string few = mh::timeline_svg("t", timeline);
  CHECK(few.find(">95<") != std::string::npos);
  CHECK(few.find(">154<") != std::string::npos); // boxes are as wide as their numbers
}
