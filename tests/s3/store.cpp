// The contract of every storage, in a store that store.py has started: its faults are that
// script's.
// usage: test_s3_store, with MEGAHOST_S3 the prefix to write below, and AWS's variables

#include "plugins/storage/s3/storage.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace {

using mh::Path;
using mh::Storage;
using Item = mh::Storage::Item;

Storage& store() {
  static s3::S3 store({.part_size = 5, .connections = 3, .stall = 1});
  return store;
}

Path place(const std::string& name) {
  return Path(std::getenv("MEGAHOST_S3")) / name;
}

int code_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const mh::StorageError& error) {
    MESSAGE(std::string(error.what()));
    return error.code();
  }
  return 0;
}

/// Bytes that differ from each other over long distances.
std::string bytes_of(size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = 88172645463325252ULL;
  for (char& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return bytes;
}

std::string read_all(const Path& path) {
  return mh::get_text(store(), path, uint64_t{1} << 30);
}

} // namespace

TEST_CASE("an object is there whole, replaced whole, and refused where there is one") {
  const Path path = place("objects/one");
  CHECK_FALSE(store().contains(path));
  CHECK(code_of([&] { (void)store().get(path); }) == ENOENT);
  mh::put_text(store(), path, "first");
  CHECK(store().contains(path));
  CHECK(read_all(path) == "first");
  mh::put_text(store(), path, "second");
  CHECK(read_all(path) == "second");
  CHECK(code_of([&] {
          mh::put_text(store(), path, "third", Storage::Existing::refuse);
        }) == EEXIST);
  CHECK(read_all(path) == "second");
  const Path other = place("objects/other");
  mh::put_text(store(), other, "manifest", Storage::Existing::refuse);
  CHECK(read_all(other) == "manifest");
  mh::put_text(store(), place("objects/empty"), "");
  CHECK(read_all(place("objects/empty")).empty());
  {
    const auto dropped = store().put(place("objects/dropped"));
    dropped->write(std::as_bytes(std::span("bytes")));
  }
  CHECK_FALSE(store().contains(place("objects/dropped")));
  store().remove(path);
  store().remove(path);
  CHECK_FALSE(store().contains(path));
}

TEST_CASE("names of any characters are listed by prefix") {
  const std::vector<std::string> names{
      "a b", "a&b", "a+b=c", "ä", "p%20q", "x/deep/er", "x/y", "xy"};
  for (const std::string& name : names) {
    mh::put_text(store(), place("names/" + name), name);
  }
  CHECK(
      (store().list(place("names")) ==
       std::vector<Item>{
           {"a b", false},
           {"a&b", false},
           {"a+b=c", false},
           {"p%20q", false},
           {"x", true},
           {"xy", false},
           {"ä", false}})
  );
  for (const std::string& name : names) {
    CHECK(read_all(place("names/" + name)) == name);
  }
  CHECK((store().list(place("names/x")) == std::vector<Item>{{"deep", true}, {"y", false}}));
  CHECK(store().list(place("nothing")).empty());
  store().remove_all(place("names/x"));
  CHECK(store().list(place("names")).size() == 6);
  store().remove_all(place("names"));
  CHECK(store().list(place("names")).empty());
}

TEST_CASE("large objects go in parts, and come in ranges") {
  const std::string bytes = bytes_of((11 << 20) + 77);
  const Path path = place("large/object");
  {
    const auto upload = store().put(path, Storage::Existing::refuse);
    for (size_t at = 0; at < bytes.size();) { // in pieces of all sizes
      const size_t count = std::min(bytes.size() - at, 1 + at / 2);
      upload->write(std::as_bytes(std::span(bytes).subspan(at, count)));
      at += count;
    }
    CHECK_FALSE(store().contains(path));
    upload->finish();
  }
  CHECK(read_all(path) == bytes);
  const auto object = store().get(path);
  CHECK(object->size() == bytes.size());
  for (const uint64_t offset : {uint64_t{0}, uint64_t{300'000}, uint64_t{10}, bytes.size() - 3}) {
    std::string some(5, '\0');
    some.resize(object->read(offset, std::as_writable_bytes(std::span(some))));
    CHECK(some == bytes.substr(offset, 5));
  }
  std::byte none{};
  CHECK(object->read(bytes.size(), {&none, 1}) == 0);

  const auto refused = store().put(path, Storage::Existing::refuse);
  refused->write(std::as_bytes(std::span(bytes)));
  CHECK(code_of([&] { refused->finish(); }) == EEXIST);
  mh::put_text(store(), path, "other");
  std::string rest(1 << 20, '\0');
  CHECK(code_of([&] {
          (void)object->read(1 << 20, std::as_writable_bytes(std::span(rest)));
        }) == ESTALE);
}

TEST_CASE("uploads that never finished are removed, below their prefix alone") {
  const std::string bytes = bytes_of(6 << 20);
  const auto mine = store().put(place("unfinished/a"));
  const auto others = store().put(place("unfinished-not/b"));
  for (const auto* upload : {&mine, &others}) {
    (*upload)->write(std::as_bytes(std::span(bytes)));
  }
  for (int i = 0; i < 3; ++i) { // more parts than are in flight: one at least has come
    mine->write(std::as_bytes(std::span(bytes)));
  }
  CHECK(store().list(place("unfinished")).empty());
  const auto rests = store().unfinished(place("unfinished"));
  uint64_t most = 0;
  for (const auto& rest : rests) { // a store whose answer is lost has begun two
    CHECK(rest.name == "a");
    most = std::max(most, rest.bytes);
  }
  CHECK(most >= 5 << 20);
  store().remove_unfinished(place("unfinished"));
  CHECK(store().unfinished(place("unfinished")).empty());
  CHECK(code_of([&] { mine->finish(); }) == ENOENT);
  others->finish();
  CHECK(store().contains(place("unfinished-not/b")));
}
