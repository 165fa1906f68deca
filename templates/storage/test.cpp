// The plugin as a run would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/error.hpp>
#include <megahost/host.hpp>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  std::string root = std::filesystem::temp_directory_path() / "@name@-XXXXXX";
  if (mkdtemp(root.data()) == nullptr) {
    return 1;
  }
  host.set_storage_options({"@name@", mh::Table{{"root", root}}});
  mh::Storage& storage = host.storage();
  const mh::Path path = "@name@://a/b";

  expect(!storage.contains(path), "nothing is there");
  const auto upload = storage.put(path);
  upload->write(std::as_bytes(std::span("whole", 5)));
  expect(!storage.contains(path), "an object is not seen before it is whole");
  upload->finish();
  expect(mh::get_text(storage, path, 100) == "whole", "what was put comes back");
  int code = 0;
  try {
    mh::put_text(storage, path, "other", mh::Storage::Existing::refuse);
  } catch (const mh::StorageError& error) {
    code = error.code();
  }
  expect(code == EEXIST && mh::get_text(storage, path, 100) == "whole", "the first one stays");
  mh::put_text(storage, path, "other");
  expect(mh::get_text(storage, path, 100) == "other", "or is replaced");
  expect(storage.list("@name@://a").size() == 1, "objects are listed");
  storage.remove_all("@name@://a");
  expect(storage.list("@name@://a").empty(), "and removed");
  std::filesystem::remove_all(root);
  return failures;
}
