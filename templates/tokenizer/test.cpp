// The plugin as a recipe would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/error.hpp>
#include <megahost/host.hpp>
#include <megahost/tokenizer.hpp>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto tokenizer = host.make<mh::Tokenizer>("@name@");
  expect(tokenizer->encode("A\xff") == std::vector<int32_t>{4, 1, 15, 15}, "two ids for a byte");
  const std::string text = "any text, caf\xc3\xa9, broken \xff\xfe";
  expect(tokenizer->decode(tokenizer->encode(text)) == text, "a text comes back as it was");
  bool refused = false;
  try {
    (void)tokenizer->decode(std::vector<int32_t>{17});
  } catch (const mh::Error&) {
    refused = true;
  }
  expect(refused, "an id outside the vocabulary is refused");
  return failures;
}
