// Names of files that other programs wrote: an index of Hugging Face, `.metadata`, a manifest.

#include "core/formats/dcp_metadata.hpp"
#include "core/formats/hf_index.hpp"
#include "refusal.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace file_names_tests {

using mh::test::refusal;

namespace {

std::vector<std::string> tricks() {
  std::vector<std::string> names{
      "",
      ".",
      "..",
      "...",
      " ",
      " .. ",
      "~",
      "~root",
      "-",
      "-rf",
      "..a",
      "a..",
      ".a",
      "/",
      "//",
      "///etc/passwd",
      "/etc/passwd",
      "/proc/self/environ",
      "/dev/stdin",
      "/dev/zero",
      "./",
      "./a",
      "a/",
      "a/.",
      "a/..",
      "a/b",
      "a//b",
      "a/../b",
      "a/../../b",
      "../",
      "../a",
      "../../etc/passwd",
      ".././a",
      "....//a",
      "..;/a",
      "..\\a",
      "\\\\host\\share\\a",
      "C:\\a",
      "C:a",
      "file:///etc/passwd",
      "s3://bucket/key",
      "http://host/a",
      "%2e%2e%2fa",
      "..%2fa",
      "..%c0%af",
      "$HOME",
      "${HOME}/a",
      "`id`",
      "$(id)",
      "a;b",
      "a|b",
      "*",
      "a\nb",
      "a\rb",
      "a\tb",
      "\x1b[31m",
      "a\x7f",
      std::string("a\0b", 3),
      std::string("a\0/../b", 7),
      std::string("\0", 1),
      "\u2024\u2024/a",      // one dot leaders
      "\uff0e\uff0e\uff0fa", // fullwidth dots and solidus: no separator to Linux
      "..\u2215a",
      "..\u2044a", // division and fraction slashes
      "\u202e/a",
      "a\u202eb", // right-to-left override
      "\u202ab",
      "\u202db",
      "\u2066b\u2069", // isolates
      "\u2067b",
      "b\u200e",
      "b\u200f", // marks of direction
      "b\u061c",
      "a\u2028b",
      "a\u2029b", // separators of lines and paragraphs
      "a\u0085b",
      "\u009b31m", // controls of two bytes
      "\ufeffa",
      "a\u00adb",
      "a\u2060b",
      "\U000e0041",
      "\u05d0\u05d1", // a script that is written from the right
      "\u6a21\u578b",
      "\u200b..",
      "..\u200b", // zero width space
      "a\u0308/b",
      "\u00e4", // decomposed and composed
      std::string(255, 'a'),
      std::string(256, 'a'),
      std::string(5000, '/'),
  };
  for (const char* end : {"/a", "a", ""}) { // up from any folder
    std::string up;
    for (int i = 0; i < 40; ++i) {
      up += "../";
    }
    names.push_back(up + end);
  }
  return names;
}

/// Whether a name of a folder's file opens nothing but an entry of it.
bool is_entry(const std::string& name) {
  if (name.size() > 255 || name.find('\0') != std::string::npos) {
    return false;
  }
  const std::filesystem::path folder = "/run/step", place = folder / name;
  return place.has_filename() && place.filename() == name && name != "." && name != ".." &&
         place.parent_path() == folder && place.lexically_normal() == place;
}

/// Whether a terminal would show something else than the name.
bool deceives(const std::string& name) {
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      return true;
    }
  }
  for (const char* mark :
       {"\u202a",
        "\u202d",
        "\u202e",
        "\u2066",
        "\u2067",
        "\u2069",
        "\u200e",
        "\u200f",
        "\u061c",
        "\u2028",
        "\u2029",
        "\u0085",
        "\u009b",
        "\ufeff",
        "\u00ad",
        "\u2060",
        "\U000e0041",
        "\u200b"}) {
    if (name.find(mark) != std::string::npos) {
      return true;
    }
  }
  return false;
}

} // namespace

TEST_CASE("of all tricks with names, no file outside of the folder is named") {
  const std::vector<std::string> names = tricks();
  REQUIRE(names.size() >= 80);
  size_t refusals = 0;
  for (const std::string& name : names) {
    CAPTURE(name);
    const bool is_good = is_entry(name) && !deceives(name);
    refusals += is_good ? 0 : 1;

    const std::string index = nlohmann::json{{"weight_map", {{"w", name}}}}.dump();
    CHECK(refusal([&] { (void)mh::read_hf_index(index, "i.json"); }).empty() == is_good);

    const mh::DcpMetadata metadata{
        {{"w", mh::Dtype::f32, {2}, {{{0}, {2}, {name, 0, 100}}}}}, {{"step", {"a", 100, 50}}}};
    const std::string pickle = mh::dcp_metadata_text(metadata);
    CHECK(refusal([&] { (void)mh::read_dcp_metadata(pickle, "m"); }).empty() == is_good);

    mh::DcpMetadata object = metadata;
    object.tensors[0].chunks[0].place.file = "a";
    object.objects[0].place.file = name;
    const std::string other = mh::dcp_metadata_text(object);
    CHECK(refusal([&] { (void)mh::read_dcp_metadata(other, "m"); }).empty() == is_good);
  }
  CHECK(refusals >= 60);
  CHECK(refusals < names.size());
}

} // namespace file_names_tests
