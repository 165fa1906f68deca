#include "core/storage/local.hpp"

#include "core/base/host_name.hpp"
#include "core/storage/file_lock.hpp"
#include "core/storage/mapped_file.hpp"
#include "saves.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

using mh::FileSystem;
using mh::LocalStorage;
using mh::Path;
using mh::test::contains;
using mh::test::refusal;

namespace {

struct Folder {
  FileSystem& disk = mh::file_system();
  Path path;

  Folder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "megahost-storage-XXXXXX").string();
    path = mkdtemp(name.data());
  }

  ~Folder() { mh::remove_tree(disk, path); }
};

} // namespace

TEST_CASE_FIXTURE(Folder, "what is written is read") {
  mh::make_directories(disk, path / "a/b/c");
  mh::write_file(disk, path / "a/b/c/x", std::string("1\0002", 3));
  CHECK(mh::read_file(disk, path / "a/b/c/x", 3) == std::string("1\0002", 3));
  CHECK(contains(
      refusal([&] { (void)mh::read_file(disk, path / "a/b/c/x", 2); }),
      "3 bytes, expected at most 2"
  ));
  mh::replace_file(disk, path / "a/x", "old");
  mh::write_file(disk, path / "a/x.tmp", "left by a crash");
  mh::replace_file(disk, path / "a/x", "new");
  CHECK(mh::read_file(disk, path / "a/x", 10) == "new");
  CHECK(disk.list(path / "a") == std::vector<std::string>{"b", "x"});
  CHECK(disk.kind(path / "a") == FileSystem::Kind::directory);
  CHECK(disk.kind(path / "a/x") == FileSystem::Kind::file);
  CHECK(disk.kind(path / "a/x/y") == FileSystem::Kind::none);
  mh::write_file(disk, path / "empty", "");
  CHECK(mh::read_file(disk, path / "empty", 0).empty());
}

TEST_CASE_FIXTURE(Folder, "errors name the path and the reason") {
  mh::write_file(disk, path / "x", "1");
  const std::string x = (path / "x").string();
  CHECK(refusal([&] {
          mh::write_file(disk, path / "x", "2");
        }) == "cannot create " + x + ": File exists");
  CHECK(contains(
      refusal([&] { mh::write_file(disk, path / "no/x", "2"); }), "No such file or directory"
  ));
  CHECK(contains(refusal([&] { (void)disk.open(path / "none"); }), "cannot open "));
  CHECK(contains(refusal([&] { (void)disk.open(path); }), "no regular file"));
  CHECK(contains(refusal([&] { (void)disk.list(path / "none"); }), "cannot list "));
  CHECK(contains(refusal([&] { disk.make_directory(path / "x"); }), "cannot make the folder "));
  CHECK(contains(refusal([&] { disk.rename(path / "none", path / "y"); }), "cannot rename "));
  CHECK(contains(refusal([&] { disk.remove(path / "none"); }), "cannot remove "));
  CHECK(contains(refusal([&] { disk.sync_directory(path / "none"); }), "cannot open "));
  CHECK(contains(refusal([&] { mh::make_directories(disk, path / "x/y"); }), "Not a directory"));
  const auto file = disk.open(path / "x");
  std::byte two[2];
  CHECK(contains(
      refusal([&] { mh::read_exactly(*file, 0, two, path / "x"); }),
      "ends at byte 1, expected 1 more"
  ));
}

TEST_CASE_FIXTURE(Folder, "no FIFO blocks a read, no link is followed to be removed") {
  REQUIRE(mkfifo((path / "fifo").c_str(), 0600) == 0);
  CHECK(contains(refusal([&] { (void)disk.open(path / "fifo"); }), "no regular file"));
  CHECK(contains(refusal([&] { mh::MappedFile map(path / "fifo"); }), "no regular file"));
  mh::make_directories(disk, path / "kept");
  mh::write_file(disk, path / "kept/x", "1");
  mh::make_directories(disk, path / "gone");
  std::filesystem::create_directory_symlink(path / "kept", path / "gone/link");
  mh::remove_tree(disk, path / "gone");
  CHECK(disk.kind(path / "gone") == FileSystem::Kind::none);
  CHECK(mh::read_file(disk, path / "kept/x", 1) == "1");
}

TEST_CASE_FIXTURE(Folder, "the kernel's own short write and refusal") {
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message =
      refusal([&] { mh::write_file(disk, path / "x", std::string(1500, 'x')); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  CHECK(message == "cannot write " + (path / "x").string() + ": File too large");
  CHECK(std::filesystem::file_size(path / "x") == 1000);
}

TEST_CASE_FIXTURE(
    Folder, "large files, in pieces of any size, on disks that take no O_DIRECT, too"
) {
  for (const Path& where : {path / "x", Path("/dev/shm") / (path.filename().string() + ".x")}) {
    std::string expected;
    {
      const auto file = disk.create_large(where);
      for (size_t size = 1; expected.size() < 9'500'000; size = size * 3 + 1) {
        std::string piece(std::min<size_t>(size, 3'000'000), 'a');
        piece.back() = static_cast<char>('b' + size % 7);
        mh::write_all(*file, std::as_bytes(std::span(piece)), where);
        expected += piece;
      }
      file->sync();
      CHECK(mh::read_file(disk, where, 20'000'000) == expected);
      mh::write_all(*file, std::as_bytes(std::span("end", 3)), where);
      file->sync();
    }
    CHECK(mh::read_file(disk, where, 20'000'000) == expected + "end");
    CHECK(contains(refusal([&] { (void)disk.create_large(where); }), "File exists"));
    disk.remove(where);
  }
}

TEST_CASE_FIXTURE(Folder, "a large file that the disk does not take whole is refused") {
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{5'000'001, old.rlim_max};
  const auto file = disk.create_large(path / "x");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = refusal([&] {
    const std::string text(6'000'000, 'x');
    mh::write_all(*file, std::as_bytes(std::span(text)), path / "x");
    file->sync();
  });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  CHECK(message == "cannot write " + (path / "x").string() + ": File too large");
}

TEST_CASE("hints by cause") {
  CHECK(contains(mh::StorageError("write", "x", ENOSPC).hint(), "free some space"));
  CHECK(contains(mh::StorageError("write", "x", EROFS).hint(), "may write to"));
  CHECK(contains(mh::StorageError("write", "x", EIO).hint(), "the disk"));
  CHECK(mh::StorageError("write", "x", EIO).code() == EIO);
  CHECK(mh::StorageError("write", "x", EIO).exit_code() == mh::exit_code::data);
}

TEST_CASE_FIXTURE(Folder, "the step folder on a real disk") {
  LocalStorage storage;
  mh::StepFolder folder(storage, path / "runs/a", "sums", [](const std::string& text) {
    FAIL(text);
  });
  folder.recover();
  for (int version = 1; version <= 4; ++version) {
    mh::test::save(storage, folder, version / 2, version);
    mh::test::keep_last(storage, folder, 2);
  }
  folder.recover();
  CHECK(folder.newest(mh::test::verify_in(storage)) == 2);
  CHECK(
      disk.list(folder.root()) ==
      std::vector<std::string>{"LATEST", "step-000000000001.2", "step-000000000002"}
  );
}

TEST_CASE_FIXTURE(Folder, "an object is there when it is finished, and not before") {
  LocalStorage storage;
  const auto text = [&] { return mh::get_text(storage, path / "a/b/x", 10); };
  {
    const auto upload = storage.put(path / "a/b/x", mh::Storage::Existing::replace);
    upload->write(std::as_bytes(std::span("old", 3)));
    CHECK_FALSE(storage.contains(path / "a/b/x"));
    CHECK(storage.list(path / "a/b").empty());
    CHECK(disk.list(path / "a/b").size() == 1); // a file under another name
  }
  CHECK(disk.list(path / "a/b").empty()); // given up
  mh::put_text(storage, path / "a/b/x", "old");
  CHECK(contains(
      refusal([&] { mh::put_text(storage, path / "a/b/x", "new", mh::Storage::Existing::refuse); }),
      "File exists"
  ));
  CHECK(text() == "old");
  CHECK(disk.list(path / "a/b") == std::vector<std::string>{"x"});
  mh::put_text(storage, path / "a/b/x", "new");
  CHECK(text() == "new");
  mh::put_text(storage, path / "a/y", "", mh::Storage::Existing::refuse);
  CHECK(storage.list(path / "a") == std::vector<mh::Storage::Item>{{"b", true}, {"y", false}});
  CHECK(storage.list(path / "none").empty());
  CHECK_FALSE(storage.contains(path / "a/b"));
  storage.remove(path / "a/none");
  storage.remove(path / "a/b/x");
  CHECK_FALSE(storage.contains(path / "a/b/x"));
  auto killed = storage.put(path / "a/z", mh::Storage::Existing::replace);
  const std::string large(5 << 20, 'x'); // whole blocks of it are in the file
  killed->write(std::as_bytes(std::span(large)));
  const auto rests = storage.unfinished(path);
  REQUIRE(rests.size() == 1);
  CHECK(rests[0].name == "a/z");
  CHECK(rests[0].bytes >= 1 << 20);
  CHECK(rests[0].bytes <= large.size());
  storage.remove_unfinished(path);
  CHECK(storage.unfinished(path).empty());
  CHECK(disk.list(path / "a") == std::vector<std::string>{"b", "y"});
  killed.reset();
  storage.remove_all(path / "a");
  CHECK(disk.kind(path / "a") == FileSystem::Kind::none);
}

TEST_CASE_FIXTURE(Folder, "links stand for what they point to") {
  LocalStorage storage;
  mh::put_text(storage, path / "blobs/1", "text");
  mh::put_text(storage, path / "model/config", "");
  std::filesystem::create_symlink(path / "blobs/1", path / "model/weights");
  std::filesystem::create_directory_symlink(path / "model", path / "linked");
  CHECK(storage.contains(path / "model/weights"));
  CHECK(mh::get_text(storage, path / "linked/weights", 10) == "text");
  CHECK(storage.list(path / "linked").size() == 2);
}

TEST_CASE_FIXTURE(Folder, "a lock is held by one process and dies with it") {
  const pid_t child = fork();
  if (child == 0) {
    auto* lock = new mh::FileLock(path / ".lock");
    _exit(lock == nullptr); // without unlocking
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  {
    const mh::FileLock lock(path / ".lock");
    CHECK(contains(
        refusal([&] { mh::FileLock second(path / ".lock"); }),
        "another run is writing to this folder (process " + std::to_string(getpid()) + " of "
    ));
  }
  const mh::FileLock again(path / ".lock");
}

TEST_CASE_FIXTURE(Folder, "a lock says who holds it or held it last") {
  CHECK(!mh::lock_owner(path / ".lock"));
  {
    const mh::FileLock lock(path / ".lock");
    const auto owner = mh::lock_owner(path / ".lock");
    REQUIRE(owner);
    CHECK(owner->process == getpid());
    CHECK(owner->host == mh::host_name());
    CHECK(owner->holds);
  }
  const auto owner = mh::lock_owner(path / ".lock");
  REQUIRE(owner);
  CHECK(owner->process == getpid());
  CHECK(!owner->holds);
  for (const char* text :
       {"", "host", "host no-number", "\n\n"}) { // a lock of older versions is empty
    mh::write_file(disk, path / "other", text);
    CHECK(!mh::lock_owner(path / "other"));
    std::filesystem::remove(path / "other");
  }
}

TEST_CASE_FIXTURE(Folder, "asking who holds a lock does not take it from a run that starts") {
  { const mh::FileLock lock(path / ".lock"); }
  std::atomic<bool> stops = false;
  std::thread asks([&] {
    while (!stops) { // about every second moment, which is worse than anybody who asks
      static_cast<void>(mh::lock_owner(path / ".lock"));
      usleep(10);
    }
  });
  for (int i = 0; i < 200; ++i) {
    CHECK_NOTHROW(mh::FileLock(path / ".lock"));
  }
  stops = true;
  asks.join();
}

TEST_CASE_FIXTURE(Folder, "a mapped file can be written to without changing the file") {
  mh::write_file(disk, path / "x", "abc");
  const mh::MappedFile map(path / "x");
  REQUIRE(map.bytes().size() == 3);
  map.bytes()[0] = std::byte{'z'};
  CHECK(mh::read_file(disk, path / "x", 3) == "abc");
  mh::write_file(disk, path / "empty", "");
  CHECK(mh::MappedFile(path / "empty").bytes().empty());
  CHECK(contains(refusal([&] { mh::MappedFile none(path / "none"); }), "cannot open "));
}
