#include "core/draw/wrap.hpp"

#include "core/draw/terminal.hpp"

#include <doctest/doctest.h>

#include <sstream>

using mh::wrapped;

TEST_CASE("lines are broken between words, and go on under their text") {
  CHECK(wrapped("short", 10) == "short");
  CHECK(wrapped("one two three", 8) == "one two\n  three");
  CHECK(
      wrapped("  device     cpu: AMD EPYC, 2 cores, AVX512", 32) ==
      "  device     cpu: AMD EPYC, 2\n             cores, AVX512"
  );
  CHECK(wrapped("exactly ten", 11) == "exactly ten");
  CHECK(wrapped("exactly ten more", 11) == "exactly ten\n  more");
}

TEST_CASE("a word longer than the terminal stays whole") {
  CHECK(wrapped("see /a/path/that/is/long for it", 12) == "see\n  /a/path/that/is/long\n  for it");
  CHECK(wrapped("/a/path/that/is/long", 12) == "/a/path/that/is/long");
}

TEST_CASE("a pipeline layout longer than the terminal is broken behind its bars") {
  CHECK(
      wrapped("layout embed+1|2|2|2|head, zero", 12) == "layout\n  embed+1|2|\n  2|2|head,\n  zero"
  );
  CHECK(wrapped("embed+1|2 and", 10) == "embed+1|2\n  and");
  const std::string command = "  --set x=embed+1|2|2|2|head";
  CHECK(wrapped(command, 16) == "  --set \\\n    x=embed+1|2|2|2|head");
}

TEST_CASE("fields of a step's line stay whole") {
  CHECK(
      wrapped("step 1/9 | lm loss 2.5 | 12 ms | 3,000 tokens/s | ETA 5s", 30) ==
      "step 1/9 | lm loss 2.5 |\n  12 ms | 3,000 tokens/s |\n  ETA 5s"
  );
}

TEST_CASE("colours take no room, characters of several bytes take one cell") {
  CHECK(wrapped("\x1b[31mone\x1b[0m two", 7) == "\x1b[31mone\x1b[0m two");
  CHECK(wrapped("\x1b[31mone\x1b[0m two three", 8) == "\x1b[31mone\x1b[0m two\n  three");
  CHECK(wrapped("██████ ██", 9) == "██████ ██");
}

TEST_CASE("a command can be copied from its rows") {
  CHECK(
      wrapped("  megahost run a.lua --resume --set x=1   # train on", 30) ==
      "  megahost run a.lua \\\n    --resume --set x=1\n    # train on"
  );
  CHECK(
      wrapped("  ./megahost run --set 'parts=[\"a\", \"b\"]' --resume", 26) ==
      "  ./megahost run --set \\\n    'parts=[\"a\", \"b\"]' \\\n    --resume"
  );
  CHECK(
      wrapped("  --set a.b=2 --set c=1: -1.2 GiB, 3% faster", 20) ==
      "  --set a.b=2 \\\n    --set c=1:\n    -1.2 GiB, 3%\n    faster"
  );
  CHECK(
      wrapped("  megahost run a.lua   # train on, at a learning rate of 1e-4", 30) ==
      "  megahost run a.lua\n    # train on, at a\n    # learning rate of 1e-4"
  );
}

TEST_CASE("data and what is drawn stay as they are") {
  for (const char* line :
       {"  3 |   optimizer = { use = \"adamw\", lrr = 0.1 },",
        "    |                                ^^^ unknown key here",
        R"({"step": 1, "losses": {"lm loss": 2.5}, "lr": 0.1})",
        "\r\x1b[K 10%  step 3 of 10 and so many words more"}) {
    CHECK(wrapped(line, 20) == line);
  }
}

TEST_CASE("every row fits, whatever the width") {
  const std::string text =
      "note: what steps reach of this CPU's rates is assumed: `megahost bench` measures it";
  for (int width = 14; width < 100; ++width) {
    std::istringstream rows(wrapped(text, width));
    std::string joined;
    for (std::string row; std::getline(rows, row);) {
      CHECK(mh::cells(row) <= width);
      joined += (joined.empty() ? "" : " ") + row.substr(row.find_first_not_of(' '));
    }
    CHECK(joined == text);
  }
}
