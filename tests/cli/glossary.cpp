#include "core/cli/glossary.hpp"

#include "core/cli/topics.hpp"

#include <doctest/doctest.h>

#include <set>

namespace {

std::set<std::string> names_of(const mh::Term& term) {
  std::set<std::string> names{mh::plain_name(term.name)};
  for (const std::string_view name : term.also) {
    names.insert(mh::plain_name(name));
  }
  return names;
}

} // namespace

TEST_CASE("a term is found by each of its names, in any case") {
  CHECK(mh::find_term("fsdp")->name == "FSDP");
  CHECK(mh::find_term("ZeRO_3")->name == "FSDP");
  CHECK(mh::find_term("--gradient-accumulation-steps")->name == "gradient accumulation");
  CHECK(mh::find_term("Router Z Loss")->name == "z-loss");
  CHECK(mh::find_term("fsdp2") == nullptr);
  CHECK(mh::find_term("") == nullptr);
}

TEST_CASE("terms have names of their own, and two or three sentences") {
  std::set<std::string> all;
  for (const mh::Term& term : mh::glossary()) {
    CAPTURE(term.name);
    const auto names = names_of(term);
    CHECK(names.size() == 1 + term.also.size());
    for (const std::string& name : names) {
      CHECK(all.insert(name).second);
      CHECK(mh::find_topic(name) == nullptr);
    }
    size_t sentences = 0;
    for (size_t at = term.text.find('.'); at != std::string_view::npos;
         at = term.text.find('.', at + 1)) {
      sentences += at + 1 == term.text.size() || term.text[at + 1] == ' ' ? 1 : 0;
    }
    CHECK(sentences >= 2);
    CHECK(sentences <= 3);
    CHECK(term.text.size() < 400);
  }
}
