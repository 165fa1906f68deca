#include "core/text/sentences.hpp"

#include "core/text/pieces.hpp"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

namespace {

using Sentences = std::vector<std::string_view>;

} // namespace

TEST_CASE("sentences end at marks, what closes there, and blank lines") {
  using mh::text::sentences;
  CHECK(sentences("One. Two! Three?  Four") == Sentences{"One.", "Two!", "Three?", "Four"});
  CHECK(
      sentences("\"Is it?\" he asked. (It was.) \u201CYes!\u201D Then") ==
      Sentences{"\"Is it?\" he asked.", "(It was.)", "\u201CYes!\u201D", "Then"}
  );
  CHECK(
      sentences("A title\n\nA text that\ngoes on.\n \nMore") ==
      Sentences{"A title", "A text that\ngoes on.", "More"}
  );
  CHECK(sentences("Wait... what? No... Yes.") == Sentences{"Wait... what?", "No...", "Yes."});
  CHECK(
      sentences("\u4ED6\u6765\u4E86\u3002\u5979\u8D70\u4E86\uFF01\u597D") ==
      Sentences{"\u4ED6\u6765\u4E86\u3002", "\u5979\u8D70\u4E86\uFF01", "\u597D"}
  );
  CHECK(
      sentences("version 3.14 of x.y is out. Get it") ==
      Sentences{"version 3.14 of x.y is out.", "Get it"}
  );
  CHECK(sentences("  \n\n ").empty());
  CHECK(sentences("").empty());
}

TEST_CASE("initials, abbreviations and numbers of lines end no sentence") {
  using mh::text::sentences;
  CHECK(
      sentences("Dr. J. R. Smith of the U.S. Army, e.g. Here. See Fig. 3.") ==
      Sentences{"Dr. J. R. Smith of the U.S. Army, e.g. Here.", "See Fig. 3."}
  );
  CHECK(
      sentences("1. First of all.\n2. Second. It was in 1990. Then") ==
      Sentences{"1. First of all.", "2. Second.", "It was in 1990.", "Then"}
  );
  CHECK(sentences("\u00C9. Zola wrote. He") == Sentences{"\u00C9. Zola wrote.", "He"});
}

TEST_CASE("nothing but white space is lost, of any bytes") {
  std::mt19937 draw(1);
  const std::string letters = "aB. !?\"'()\n\t1\xC3\xA9\xE3\x80\x82\xFF";
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = draw() % 40; n > 0; --n) {
      text += letters[draw() % letters.size()];
    }
    const auto kept = [](std::string_view part) {
      std::string rest;
      for (const char c : part) {
        rest += c == ' ' || c == '\n' || c == '\t' ? "" : std::string(1, c);
      }
      return rest;
    };
    std::string joined;
    for (const auto sentence : mh::text::sentences(text)) {
      CHECK(!sentence.empty());
      joined += sentence;
    }
    CHECK(kept(joined) == kept(text));
  }
}

TEST_CASE("texts are cut where no tokenizer joins both sides") {
  const auto cut = [](const std::string& text) {
    const size_t end = mh::text::end_of_piece(text);
    return end == std::string::npos ? std::string("none") : text.substr(end);
  };
  CHECK(cut("one\ntwo\nthree") == "three");
  CHECK(cut("one\ntwo\n  three\n\nfour\n") == "two\n  three\n\nfour\n"); // blanks may be joined
  CHECK(
      cut("\u4e00\n\u4e8c\u4e09\n\u3000\u56db") == "\u4e8c\u4e09\n\u3000\u56db"
  );                                           // any script's letter
  CHECK(cut("a\nb\n{c}\n1") == "b\n{c}\n1");   // a letter before marks and digits
  CHECK(cut("{a}\n{b}\n/c\n") == "{b}\n/c\n"); // o200k joins line ends and "/"
  CHECK(cut("a\n\xE4\xB8") == "none");         // the beginning of a character
  CHECK(cut("\na") == "none");
  CHECK(cut("") == "none");
  CHECK(mh::text::end_of_paragraph("One.\n\nTwo.\r\n\r\nThree. Four.\nFive") == 14);
  CHECK(mh::text::end_of_paragraph("One.\nTwo.") == std::string::npos);
}
