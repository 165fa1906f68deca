// The test of storages: the contract of storage.hpp, on which checkpoints count.

#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <string_view>

namespace mh::check {

namespace {

constexpr uint64_t kLongest = 100; // bytes of an object

/// The code of the error that `call` throws, -1 if it has none; 0: nothing is thrown.
template <class Call>
int code_of(const Call& call) {
  try {
    call();
  } catch (const StorageError& error) {
    return error.code();
  } catch (const Error&) {
    return -1;
  }
  return 0;
}

void require_kept(Storage& storage, const Path& prefix) {
  const Path path = prefix / "a/object";
  const auto upload = storage.put(path);
  upload->write(std::as_bytes(std::span("whole", 5)));
  if (storage.contains(path)) {
    fail("an object is there before its upload has finished", "show it when `finish` returns");
  }
  upload->finish();
  if (!storage.contains(path) || get_text(storage, path, kLongest) != "whole") {
    fail("an object that was put does not come back");
  }
  const int refusal = code_of([&] { put_text(storage, path, "other", Storage::Existing::refuse); });
  if (refusal == 0 || get_text(storage, path, kLongest) != "whole") {
    fail(
        "a second writer with Existing::refuse is not told of the first one's object",
        "throw StorageError with EEXIST from `finish`, and leave the object: two runs would write "
        "one checkpoint else"
    );
  }
  put_text(storage, path, "other");
  if (get_text(storage, path, kLongest) != "other") {
    fail("an object that is put again keeps its old bytes");
  }
  put_text(storage, prefix / "a/next", "");
  if (storage.list(prefix / "a") !=
      std::vector<Storage::Item>{{"next", false}, {"object", false}}) {
    fail("an object that was put is not listed", "`list` names what is directly below, sorted");
  }
  if (storage.list(prefix) != std::vector<Storage::Item>{{"a", true}}) {
    fail("a prefix of objects is not listed as one", "set Storage::Item::is_prefix");
  }
  storage.remove(prefix / "a/next");
  storage.remove(prefix / "a/next"); // nothing happens
  if (storage.contains(prefix / "a/next")) {
    fail("an object that was removed is there");
  }
  if (code_of([&] { (void)storage.get(prefix / "a/next"); }) != ENOENT) {
    fail("an object that is not there is read", "throw StorageError with ENOENT from `get`");
  }
  storage.remove_all(prefix);
  if (!storage.list(prefix).empty()) {
    fail("`remove_all` leaves objects");
  }
}

} // namespace

void objects_kept(const Case& c) {
  const auto& fields = c.entry->schema.fields;
  if (std::ranges::any_of(fields, [&](const Field& field) { return made_up(c, field); })) {
    not_applicable("it needs options that say where", "--set storage.KEY=VALUE for each");
  }
  const auto storage = make<Storage>(c);
  const Path prefix = c.entry->name + "://megahost-plugins-check-" + std::to_string(getpid());
  try {
    put_text(*storage, prefix / "first", "");
    storage->remove_all(prefix);
  } catch (const Error& error) {
    not_applicable("it cannot be written to from here: " + std::string(error.what()));
  }
  require_kept(*storage, prefix);
}

} // namespace mh::check
