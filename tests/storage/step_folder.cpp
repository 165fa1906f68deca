#include "core/storage/step_folder.hpp"

#include "core/storage/local.hpp"
#include "memory_file_system.hpp"
#include "saves.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <cerrno>

using mh::StepFolder;
using mh::test::contains;
using mh::test::MemoryFileSystem;
using mh::test::read_save;
using mh::test::refusal;
using mh::test::save;
using mh::test::verify_in;

namespace {

struct Fixture {
  MemoryFileSystem files;
  mh::LocalStorage disk{files};
  std::vector<std::string> warnings;
  StepFolder folder{
      disk, "/runs/a", "sums", [this](const std::string& text) { warnings.push_back(text); }};

  std::string newest() {
    const auto step = folder.newest(verify_in(disk));
    return step ? std::to_string(*step) : "none";
  }
};

} // namespace

TEST_CASE_FIXTURE(Fixture, "a folder that is not there has no steps") {
  CHECK(folder.steps().empty());
  CHECK(newest() == "none");
}

TEST_CASE_FIXTURE(Fixture, "steps appear when they are committed") {
  folder.recover();
  save(disk, folder, 1000, 1);
  mh::put_text(disk, folder.begin(3000) / "a", "half");
  save(disk, folder, 2000, 2);
  CHECK(folder.path(2000) == "/runs/a/step-000000002000");
  CHECK(folder.steps() == std::vector<int64_t>{2000, 1000});
  CHECK(newest() == "2000");
  CHECK(files.contents("/runs/a/LATEST") == "step-000000002000\n");
  folder.abandon(3000);
  CHECK(
      files.list("/runs/a") ==
      std::vector<std::string>{"LATEST", "step-000000001000", "step-000000002000"}
  );
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Fixture, "names that are no steps are left alone") {
  mh::make_directories(files, folder.root());
  for (const char* name :
       {"step-1", "step-00000000001x", "step-0000000000001", "step--00000000001", "notes"}) {
    files.make_directory(folder.root() / name);
  }
  save(disk, folder, 5, 1);
  folder.recover();
  CHECK(folder.steps() == std::vector<int64_t>{5});
  CHECK(files.list(folder.root()).size() == 7);
  save(disk, folder, 1234567890123, 2);
  CHECK(folder.steps().front() == 1234567890123);
}

TEST_CASE_FIXTURE(Fixture, "a damaged step is passed over, loudly") {
  folder.recover();
  save(disk, folder, 1, 1);
  save(disk, folder, 2, 2);
  files.contents(folder.path(2) / "b") += "x";
  CHECK(newest() == "1");
  REQUIRE(warnings.size() == 1);
  CHECK(contains(
      warnings[0], "the checkpoint of step 2 is damaged (/runs/a/step-000000000002/b: changed)"
  ));
  CHECK(contains(warnings[0], "trying the one of step 1"));
  files.contents(folder.path(1) / "a") = "";
  CHECK(contains(refusal([&] { (void)newest(); }), "/runs/a: no checkpoint can be used"));
}

TEST_CASE_FIXTURE(Fixture, "a folder without its manifest is no step, whatever lies in it") {
  save(disk, folder, 1, 1);
  save(disk, folder, 2, 2);
  disk.remove(folder.path(2) / "sums");
  CHECK(folder.steps() == std::vector<int64_t>{1});
  CHECK(newest() == "1");
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Fixture, "a step that is saved again never touches the objects of the first") {
  save(disk, folder, 1, 1);
  const auto first = folder.path(1);
  const auto second = folder.begin(1);
  CHECK(second == "/runs/a/step-000000000001.2");
  mh::put_text(disk, second / "a", "half");
  CHECK(folder.path(1) == first);
  folder.abandon(1);
  CHECK(read_save(disk, folder.path(1)) == 1);
  save(disk, folder, 1, 2);
  CHECK(folder.path(1) == second);
  CHECK(files.contents("/runs/a/LATEST") == "step-000000000001.2\n");
  CHECK(folder.steps() == std::vector<int64_t>{1});
}

TEST_CASE_FIXTURE(Fixture, "a writer that should be dead changes no checkpoint") {
  StepFolder dead(disk, folder.root(), "sums", [](const std::string&) {});
  const auto directory = dead.begin(1);
  folder.recover();
  save(disk, folder, 1, 1);
  CHECK(contains(
      refusal([&] { mh::put_text(disk, directory / "a", "other", mh::Storage::Existing::refuse); }),
      "File exists"
  ));
  CHECK(contains(refusal([&] { dead.commit(1, "other"); }), "File exists"));
  CHECK(read_save(disk, folder.path(1)) == 1);
}

TEST_CASE_FIXTURE(Fixture, "a step can be saved again") {
  folder.recover();
  save(disk, folder, 1, 1);
  save(disk, folder, 1, 2);
  CHECK(read_save(disk, folder.path(1)) == 2);
  CHECK(files.list(folder.root()).size() == 2);
}

TEST_CASE_FIXTURE(Fixture, "what a dead process left is removed") {
  folder.recover();
  save(disk, folder, 1, 1);
  StepFolder dead(disk, folder.root(), "sums", [](const std::string&) {});
  mh::put_text(disk, dead.begin(2) / "a", "half");
  folder.recover();
  CHECK(files.list(folder.root()) == std::vector<std::string>{"LATEST", "step-000000000001"});
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "step-000000000002, which is not complete"));
}

TEST_CASE("whatever call fails, the last checkpoint stays and the next save works") {
  for (const int code : {ENOSPC, EIO, EROFS, EDQUOT}) {
    for (const bool forever : {true, false}) {
      bool failed = true;
      for (size_t at = 1; failed; ++at) {
        CAPTURE(code);
        CAPTURE(forever);
        CAPTURE(at);
        Fixture f;
        f.files.longest_write = 700; // short writes throughout
        f.folder.recover();
        save(f.disk, f.folder, 1, 1);
        save(f.disk, f.folder, 2, 2);
        f.files.fault = mh::test::Fault{f.files.calls + at, code, forever};
        const std::string message = refusal([&] { save(f.disk, f.folder, 2, 3); });
        mh::test::keep_last(f.disk, f.folder, 1);
        failed = f.files.calls >= f.files.fault->at;
        f.files.fault.reset();
        CHECK((message.empty() || contains(message, "cannot ")));
        CHECK((message.empty() || contains(message, "/runs/a")));

        Fixture next;
        StepFolder again(f.disk, "/runs/a", "sums", [](const std::string&) {});
        again.recover();
        const auto newest = again.newest(verify_in(f.disk));
        REQUIRE(newest == 2);
        const int version = read_save(f.disk, again.path(2));
        CHECK((version == 2 || version == 3));
        CHECK((!message.empty() || version == 3));
        save(f.disk, again, 3, 4);
        CHECK(again.newest(verify_in(f.disk)) == 3);
      }
    }
  }
}
