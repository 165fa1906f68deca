#include "core/base/printable.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace printable_tests {

TEST_CASE("a name cannot leave its line or colour it") {
  CHECK(mh::printable("layers.0.weight") == "\"layers.0.weight\"");
  CHECK(mh::printable("a\"b\\c") == "\"a\\\"b\\\\c\"");
  CHECK(mh::printable(std::string_view("\n\x1b[31m\0", 7)) == "\"\\x0a\\x1b[31m\\x00\"");
  CHECK(mh::printable("\xe2\x80\xae") == "\"\\xe2\\x80\\xae\""); // right-to-left override
  CHECK(mh::printable(std::string(1000, 'x')).size() < 100);
}

TEST_CASE("a file name stays in its folder") {
  for (const char* good : {"model.safetensors", "..a", "a b", ".hidden"}) {
    CAPTURE(good);
    CHECK(mh::is_file_name(good));
  }
  for (const char* bad :
       {"", ".", "..", "/", "/etc/passwd", "../x", "a/b", "a/", "a\nb", "a\x7f"}) {
    CAPTURE(bad);
    CHECK_FALSE(mh::is_file_name(bad));
  }
  CHECK_FALSE(mh::is_file_name(std::string_view("a\0b", 3)));
  CHECK_FALSE(mh::is_file_name(std::string(256, 'a')));
}

TEST_CASE("shapes in messages") {
  CHECK(mh::shape_text(std::vector<int>{}) == "[]");
  CHECK(mh::shape_text(std::vector<int>{2, 3}) == "[2, 3]");
}

} // namespace printable_tests
