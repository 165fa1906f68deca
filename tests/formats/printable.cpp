#include "core/base/printable.hpp"

#include "core/base/visible.hpp"

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
       {"", ".", "..", "/", "/etc/passwd", "../x", "a/b", "a/", "a\nb", "a\x7f", "a\u202eb"}) {
    CAPTURE(bad);
    CHECK_FALSE(mh::is_file_name(bad));
  }
  CHECK_FALSE(mh::is_file_name(std::string_view("a\0b", 3)));
  CHECK_FALSE(mh::is_file_name(std::string(256, 'a')));
}

TEST_CASE("text of others shows what it says, in any script") {
  for (const char* plain :
       {"layers.0.weight", "gr\u00f6\u00dfe", "\u05d0\u05d1", "\u6a21\u578b", "\U0001f600"}) {
    CHECK(mh::visible(plain) == plain);
    CHECK_FALSE(mh::has_invisible(plain));
  }
  CHECK(mh::visible("a\x1b[31m\r\x7f") == "a\\x1b[31m\\x0d\\x7f");
  CHECK(mh::visible("a\u202eb\u2066c\u200e") == "a\\u202eb\\u2066c\\u200e");
  CHECK(mh::visible("a\u0085b\u2028c\ufeff\u200b") == "a\\x85b\\u2028c\\ufeff\\u200b");
  CHECK(mh::visible("\U000e0041") == "\\ue0041");                              // a tag
  CHECK(mh::visible("a\x9b\xc0\x9b\xe2\x80") == "a\\x9b\\xc0\\x9b\\xe2\\x80"); // no UTF-8
  CHECK(mh::visible(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(mh::visible("a\nb\tc") == "a\\x0ab\\x09c");
  CHECK(mh::visible("a\nb\tc\r", "\n\t") == "a\nb\tc\\x0d");
  CHECK(mh::has_invisible("a\u202eb"));
}

TEST_CASE("shapes in messages") {
  CHECK(mh::shape_text(std::vector<int>{}) == "[]");
  CHECK(mh::shape_text(std::vector<int>{2, 3}) == "[2, 3]");
}

} // namespace printable_tests
