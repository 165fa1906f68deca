// Trees as YAML, by hand; tests/parity/manifests.py reads whole manifests with another program.

#include "core/launch/yaml.hpp"

#include "core/launch/write.hpp"

#include <doctest/doctest.h>

using namespace mh;

using Array = Value::Array;

TEST_CASE("tables, lists, comments and blocks") {
  Table row{{"name", "X"}, {"value", "1"}};
  add_comment(row, "why");
  row.set("more", Array{1, Array::value_type(Table{{"a", 1.5}, {"b", true}}), "z"});
  Table document{{"kind", "Pod"}};
  add_comment(document, "which");
  document.set("list", Array{std::move(row)});
  document.set("empty", Table{});
  document.set("none", Array{});
  document.set("text", "one\n  two: 3\n\nlast\n");
  CHECK(yaml_text(document) == R"(kind: Pod  # which
list:
  - name: X
    value: "1"  # why
    more:
      - 1
      - a: 1.5
        b: true
      - z
empty: {}
none: []
text: |
  one
    two: 3

  last
)");
}

TEST_CASE("a comment before the first key stands above it") {
  Table row;
  add_comment(row, "why");
  row.set("a", 1);
  CHECK(yaml_text(Table{{"l", Array{row}}}) == "l:\n    # why\n  - a: 1\n");
}

TEST_CASE("what YAML would read as something else is quoted") {
  for (const char* word : {"yes", "No", "ON",   "null", "8",  "1e3",  "0x1f", "1:30", "~",
                           "",    " a", "a: b", "a #b", "-",  "- a",  "*a",   "&a",   "!a",
                           "{a}", "a:", "y",    ".5",   "@a", "a\tb", "16Gi", "'",    "\""}) {
    CAPTURE(word);
    const std::string text = yaml_text(Table{{"k", word}});
    CHECK(text.starts_with("k: \""));
  }
  for (const char* word : {"a", "p5.48xlarge", "/dev/shm", "a/b:c", "A_b-c", "nvidia.com/gpu"}) {
    CAPTURE(word);
    CHECK(yaml_text(Table{{"k", word}}) == "k: " + std::string(word) + "\n");
  }
  CHECK(yaml_text(Table{{"on", 1}, {"a b", 2}}) == "\"on\": 1\n\"a b\": 2\n");
}

TEST_CASE("differences are those of diff -u") {
  CHECK(text_diff("a\nb\n", "a\nb\n", "f").empty());
  CHECK(text_diff("", "a\n", "f") == "--- f\n+++ f (now)\n@@ -0,0 +1,1 @@\n+a\n");
  CHECK(
      text_diff(
          "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n", "1\n2\n3\n4\nx\n6\n7\n8\n9\n10\n11\n", "f"
      ) ==
      "--- f\n+++ f (now)\n@@ -2,11 +2,10 @@\n 2\n 3\n 4\n-5\n+x\n 6\n 7\n 8\n 9\n 10\n 11\n-12\n"
  );
  // Further apart than what is shown of both.
  const std::string far =
      text_diff("a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n", "f");
  CHECK(
      far ==
      "--- f\n+++ f (now)\n@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-b\n+B\n"
  );
}
