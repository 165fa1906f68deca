// Links in a folder that others made.

#include "core/storage/folder_storage.hpp"

#include "core/storage/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

namespace folder_storage_tests {

namespace {

namespace fs = std::filesystem;

/// A secret next to a folder of others.
struct Downloads {
  mh::TemporaryFolder place{"megahost-links"};
  fs::path mine = place.path() / "mine", theirs = place.path() / "theirs";

  Downloads() {
    mh::put_text(mh::local_storage(), mine / "secret", "secret");
    mh::put_text(mh::local_storage(), theirs / "own", "own");
    mh::put_text(mh::local_storage(), theirs / "sub/deep", "deep");
  }

  /// The text of a file of the folder; else the refusal.
  [[nodiscard]] std::string read(const fs::path& folder, const std::string& name) const {
    mh::FolderStorage storage(mh::local_storage(), folder);
    try {
      return mh::get_text(storage, folder / name, 100);
    } catch (const mh::Error& error) {
      return error.what();
    }
  }
};

} // namespace

TEST_CASE_FIXTURE(Downloads, "links out of a folder are refused by name, those inside it are not") {
  const auto refuses = [&](const std::string& name) {
    const std::string said = read(theirs, name);
    CAPTURE(said);
    return said.find((theirs / name).string() + " is or lies below a link to ") == 0 &&
           said.find(", which is not in " + theirs.string()) != std::string::npos;
  };
  fs::create_symlink(mine / "secret", theirs / "absolute");
  fs::create_symlink("../mine/secret", theirs / "relative");
  fs::create_symlink("sub/../../mine/secret", theirs / "winding");
  fs::create_symlink("absolute", theirs / "chain");
  fs::create_symlink("../../mine/secret", theirs / "sub/relative");
  fs::create_directory_symlink("../mine", theirs / "folder");
  fs::create_directory_symlink("/proc/self", theirs / "process");
  fs::create_directory_symlink(place.path(), theirs / "up");
  for (const char* name :
       {"absolute",
        "relative",
        "winding",
        "chain",
        "sub/relative",
        "folder/secret",
        "process/environ",
        "up/mine/secret",
        "../mine/secret"}) {
    CAPTURE(name);
    CHECK(refuses(name));
  }
  mh::FolderStorage storage(mh::local_storage(), theirs);
  CHECK_THROWS_AS((void)storage.list(theirs / "folder"), mh::Error);

  fs::create_symlink("sub/deep", theirs / "inside");
  fs::create_symlink(theirs / "sub/deep", theirs / "inside_absolute");
  fs::create_directory_symlink("sub", theirs / "sub_too");
  for (const char* name : {"inside", "inside_absolute", "sub_too/deep"}) {
    CHECK(read(theirs, name) == "deep");
  }
  CHECK(storage.list(theirs / "sub_too").size() == 2);
  fs::create_directory_symlink(theirs, place.path() / "linked"); // the user's own name of it
  CHECK(read(place.path() / "linked", "own") == "own");
  CHECK(read(place.path() / "linked", "none").find("No such file") != std::string::npos);
}

TEST_CASE_FIXTURE(Downloads, "a snapshot of Hugging Face's cache has its files in blobs") {
  const fs::path model = place.path() / "models--a--b", revision = model / "snapshots/0123";
  mh::put_text(mh::local_storage(), model / "blobs/hash", "weights");
  mh::put_text(mh::local_storage(), model / "refs/main", "0123");
  mh::put_text(mh::local_storage(), place.path() / "models--c--d/blobs/hash", "another's");
  fs::create_directories(revision / "sub");
  fs::create_symlink("../../blobs/hash", revision / "model.safetensors");
  fs::create_symlink("../../../blobs/hash", revision / "sub/model.safetensors");
  fs::create_symlink("../../refs/main", revision / "ref");
  fs::create_symlink("../../../models--c--d/blobs/hash", revision / "other");
  CHECK(read(revision, "model.safetensors") == "weights");
  CHECK(read(revision, "sub/model.safetensors") == "weights");
  CHECK(read(revision, "ref").find(", which is not in ") != std::string::npos);
  CHECK(read(revision, "other").find(", which is not in ") != std::string::npos);
}

} // namespace folder_storage_tests
