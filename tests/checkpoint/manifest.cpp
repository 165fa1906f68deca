#include "core/formats/manifest.hpp"

#include "core/formats/crc32c.hpp"
#include "megahost/error.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <cmath>

using mh::Chunk;
using mh::Dtype;
using mh::Manifest;
using mh::StoredTensor;
using mh::test::contains;
using mh::test::refusal;

namespace {

Manifest sample() {
  Manifest manifest;
  manifest.step = 7;
  manifest.state = {{"samples", 56}, {"loss_scale", 65536.5}, {"plugins", {"a 1"}}};
  manifest.files = {{"b.safetensors", 20, 2}, {"a.safetensors", 10, 1}};
  manifest.tensors = {
      {"w",
       Dtype::f32,
       {4, 6},
       {{"b.safetensors", {2, 0}, {2, 6}, 4}, {"a.safetensors", {0, 0}, {2, 6}, 3}}},
      {"s", Dtype::bf16, {}, {{"a.safetensors", {}, {}, 5}}},
  };
  return manifest;
}

/// A text with a right checksum, whatever it says.
std::string sealed(const std::string& body) {
  return body + ",\n\"crc32c\":\"" + mh::crc_text(mh::crc32c(body)) + "\"}\n";
}

std::string why(const std::string& text) {
  return refusal([&] { (void)mh::read_manifest(text, "m.json"); });
}

std::string body(const std::string& files, const std::string& tensors) {
  return R"({"format":"megahost.checkpoint","version":1,"step":1,"state":{},"files":[)" + files +
         "],\"tensors\":[" + tensors + "]";
}

constexpr const char* kFile = R"({"name":"f","size":8,"crc32c":"00000000"})";

std::string tensor(const std::string& shape, const std::string& chunks) {
  return R"({"name":"w","dtype":"U8","shape":)" + shape + ",\"chunks\":[" + chunks + "]}";
}

std::string
chunk(const std::string& offset, const std::string& shape, const std::string& file = "f") {
  return "{\"file\":\"" + file + R"(","offset":)" + offset + ",\"shape\":" + shape +
         R"(,"crc32c":"00000000"})";
}

StoredTensor cover(std::vector<int64_t> shape, std::vector<Chunk> chunks) {
  return {"w", Dtype::f32, std::move(shape), std::move(chunks)};
}

} // namespace

TEST_CASE("a manifest is read as it was written, in an order of its own") {
  const std::string text = mh::manifest_text(sample());
  const Manifest read = mh::read_manifest(text, "m.json");
  CHECK(read.step == 7);
  CHECK(read.state == sample().state);
  REQUIRE(read.files.size() == 2);
  CHECK(read.files[0].name == "a.safetensors");
  CHECK(read.files[1].size == 20);
  REQUIRE(read.find("w") != nullptr);
  CHECK(read.find("w")->shape == std::vector<int64_t>{4, 6});
  CHECK(read.find("w")->chunks[1].crc32c == 4);
  CHECK(read.find("s")->dtype == Dtype::bf16);
  CHECK(read.find("x") == nullptr);
  CHECK(mh::manifest_text(read) == text);
}

TEST_CASE("any flipped bit and any cut is found") {
  const std::string text = mh::manifest_text(sample());
  for (size_t at = 0; at < text.size(); ++at) {
    CHECK(contains(why(text.substr(0, at)), "m.json: "));
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << bit);
      CAPTURE(at);
      CHECK(contains(why(damaged), "m.json: "));
    }
  }
  CHECK(contains(why(text + "\n"), "does not end in its checksum"));
  CHECK(contains(why(""), "does not end in its checksum"));
}

TEST_CASE("a right checksum does not excuse wrong contents") {
  const std::string good = chunk("[0]", "[4]");
  CHECK(why(sealed(body(kFile, tensor("[4]", good)))) == "");
  CHECK(contains(why(sealed("{\"a\":1")), "`format` is missing"));
  CHECK(contains(why(sealed(R"({"format":"x")")), "`format` is \"x\""));
  CHECK(contains(
      why(sealed(R"({"format":"megahost.checkpoint","version":2)")), "version 2, expected 1"
  ));
  CHECK(contains(
      why(sealed(R"({"format":"megahost.checkpoint","version":1,"step":-1)")),
      "`step` is no integer"
  ));
  CHECK(contains(why(sealed("{")), "syntax error"));
  for (const char* name : {"../f", "", "/f", "a/b"}) {
    CAPTURE(name);
    const std::string file =
        R"({"name":")" + std::string(name) + R"(","size":8,"crc32c":"00000000"})";
    CHECK(contains(why(sealed(body(file, ""))), "no bare file name"));
  }
  CHECK(contains(why(sealed(body(kFile + std::string(",") + kFile, ""))), "\"f\" is given twice"));
  CHECK(contains(
      why(sealed(body(R"({"name":"f","size":-8,"crc32c":"00000000"})", ""))), "`size` is no integer"
  ));
  CHECK(contains(
      why(sealed(body(R"({"name":"f","size":8,"crc32c":"0"})", ""))), "eight hexadecimal digits"
  ));
  CHECK(contains(why(sealed(body("1", ""))), "expected an object"));
  CHECK(contains(
      why(sealed(body(kFile, tensor("[4]", good) + "," + tensor("[4]", good)))), "given twice"
  ));
  CHECK(contains(why(sealed(body(kFile, tensor("[-4]", good)))), "`shape` is no array"));
  CHECK(contains(
      why(sealed(body(kFile, tensor("[4]", chunk("[0]", "[4]", "g"))))), "\"g\" is not in `files`"
  ));
  CHECK(contains(why(sealed(body(kFile, tensor("[4]", chunk("[0]", "[3]"))))), "hold 3 of 4 bytes")
  );
}

TEST_CASE("chunks cover a tensor exactly") {
  const auto problem = [](const StoredTensor& tensor) { return mh::cover_problem(tensor); };
  CHECK(problem(cover({}, {{"f", {}, {}, 0}})) == "");
  CHECK(problem(cover({0, 3}, {})) == "");
  CHECK(
      problem(cover(
          {4, 4}, {{"f", {0, 0}, {4, 1}, 0}, {"f", {0, 1}, {2, 3}, 0}, {"f", {2, 1}, {2, 3}, 0}}
      )) == ""
  );
  CHECK(problem(cover({4}, {})) == "its chunks hold 0 of 16 bytes");
  CHECK(
      problem(cover({4}, {{"f", {0}, {2}, 0}, {"f", {2}, {1}, 0}})) ==
      "its chunks hold 12 of 16 bytes"
  );
  CHECK(
      problem(cover({4}, {{"f", {0}, {2}, 0}, {"f", {1}, {2}, 0}})) ==
      "the chunk of shape [2] at [1] overlaps the chunk of shape [2] at [0]"
  );
  CHECK(contains(problem(cover({}, {{"f", {}, {}, 0}, {"f", {}, {}, 0}})), "overlaps"));
  CHECK(contains(problem(cover({4}, {{"f", {3}, {2}, 0}})), "is not within shape [4]"));
  CHECK(
      contains(problem(cover({4}, {{"f", {INT64_MAX}, {INT64_MAX}, 0}})), "is not within shape [4]")
  );
  CHECK(contains(problem(cover({4}, {{"f", {0, 0}, {4, 1}, 0}})), "is not within shape [4]"));
  CHECK(contains(problem(cover({4}, {{"f", {0}, {0}, 0}})), "is empty"));
  CHECK(contains(problem(cover({INT64_MAX, 2}, {})), "overflows"));
}

TEST_CASE("parts of several ranks become one") {
  Manifest first = sample();
  Manifest second;
  second.files = {std::move(first.files[0])};
  first.files.erase(first.files.begin());
  second.tensors = {cover({4, 6}, {first.tensors[0].chunks[0]})};
  first.tensors[0].chunks.erase(first.tensors[0].chunks.begin());
  CHECK(mh::manifest_text(mh::merge_manifests({first, second})) == mh::manifest_text(sample()));
  CHECK(contains(
      refusal([&] { (void)mh::merge_manifests({first}); }), "tensor \"w\": its chunks hold 48 of 96"
  ));
  CHECK(contains(refusal([&] { (void)mh::merge_manifests({first, second, second}); }), "overlaps"));
  second.tensors[0].dtype = Dtype::f16;
  CHECK(contains(refusal([&] { (void)mh::merge_manifests({first, second}); }), "ranks disagree"));
}

TEST_CASE("a number that JSON lacks is our bug") {
  Manifest manifest;
  manifest.state = {{"a", {1.0, {{"b", std::nan("")}}}}};
  CHECK_THROWS_AS((void)mh::manifest_text(manifest), mh::InternalError);
}
