#include "core/storage/local_copies.hpp"

#include "core/base/number_text.hpp"
#include "core/storage/memory_storage.hpp"
#include "core/storage/temporary_folder.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

using mh::CopiedFor;
using mh::LocalCopies;
using mh::MemoryStorage;
using mh::Path;
using mh::test::contains;
using mh::test::refusal;

namespace {

namespace fs = std::filesystem;

struct Copied {
  mh::TemporaryFolder folder{"megahost-copies"};
  Path cache = folder.path() / "cache";
  MemoryStorage store{{
      {"s3://bucket/web.bin", "tokens"},
      {"s3://bucket/web.idx", "index"},
      {"s3://bucket/chat_document.bin", "abc"},
      {"s3://bucket/chat_document.idx", "def"},
      {"s3://bucket/chat_loss.bin", "ghi"},
      {"s3://bucket/chat_loss.idx", "jkl"},
      {"s3://bucket/texts/a.txt", "first"},
      {"s3://bucket/texts/deep/b.txt", "second"},
      {"s3://bucket/model/tokenizer.json", "{}"},
      {"s3://bucket/model/model.safetensors", "weights"},
      {"s3://bucket/empty.txt", ""},
  }};

  [[nodiscard]] LocalCopies copies(uint64_t limit = 1000) const {
    return LocalCopies({.folder = cache, .limit = limit});
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const std::string& name : mh::file_system().list(cache)) {
      if (!name.starts_with('.')) {
        found.push_back(name.substr(0, name.rfind('-')));
      }
    }
    return found;
  }

  [[nodiscard]] Path only_copy() const {
    for (const std::string& name : mh::file_system().list(cache)) {
      if (!name.starts_with('.')) {
        return cache / name;
      }
    }
    return {};
  }

  static std::string text(const Path& path) { return mh::read_file(path, 100); }
};

} // namespace

TEST_CASE_FIXTURE(Copied, "a path means a pair, an object, or what lies below it") {
  LocalCopies local = copies();
  const auto corpus = [&](const char* path) { return local.copy(store, path, CopiedFor::corpus); };
  const Path web = corpus("s3://bucket/web");
  CHECK(text(web.string() + ".bin") == "tokens");
  CHECK(text(web.string() + ".idx") == "index");
  CHECK(text(corpus("s3://bucket/web.idx")) == "index");
  const Path chat = corpus("s3://bucket/chat_document");
  CHECK(text(chat.parent_path() / "chat_loss.idx") == "jkl");
  const Path texts = corpus("s3://bucket/texts/");
  CHECK(text(texts / "a.txt") == "first");
  CHECK(text(texts / "deep/b.txt") == "second");
  CHECK(texts.filename() == "texts");
  CHECK(text(corpus("s3://bucket/empty.txt")).empty());
  const Path model = local.copy(store, "s3://bucket/model", CopiedFor::tokenizer);
  CHECK(mh::file_system().list(model) == std::vector<std::string>{"tokenizer.json"});
  CHECK(contains(
      refusal([&] { (void)corpus("s3://bucket/none"); }), "there is nothing at s3://bucket/none"
  ));
  store.remove("s3://bucket/web.bin");
  LocalCopies others = copies();
  CHECK(contains(
      refusal([&] { (void)others.copy(store, "s3://bucket/web", CopiedFor::corpus); }),
      "s3://bucket/web.bin"
  ));
}

TEST_CASE_FIXTURE(Copied, "what is unchanged is fetched once, what changed is fetched again") {
  const auto web = [&] {
    LocalCopies local = copies();
    return local.copy(store, "s3://bucket/web", CopiedFor::corpus);
  };
  const Path first = web();
  CHECK(store.bytes_read == 11);
  CHECK(web() == first);
  CHECK(store.bytes_read == 11);
  store.contents("s3://bucket/web.bin") = "others"; // the same size
  const Path second = web();
  CHECK(second != first);
  CHECK(store.bytes_read == 22);
  CHECK(text(second.string() + ".bin") == "others");
  CHECK(text(first.string() + ".bin") == "tokens"); // for who has mapped it
  fs::resize_file(second.string() + ".bin", 2);     // a user's mistake
  CHECK(web() == second);
  CHECK(text(second.string() + ".bin") == "others");
  fs::remove(second.string() + ".idx");
  CHECK(web() == second);
  CHECK(text(second.string() + ".idx") == "index");
}

TEST_CASE_FIXTURE(Copied, "copies in use stay, those that were used longest ago make room") {
  store.contents("s3://bucket/empty.txt") = "12345678901234567890";
  const auto used = [&](LocalCopies& local, const char* path) {
    (void)local.copy(store, path, CopiedFor::corpus);
    std::this_thread::sleep_for(std::chrono::milliseconds(20)); // a tick of the file system's clock
  };
  {
    LocalCopies local = copies(33);
    used(local, "s3://bucket/web");   // 11 bytes
    used(local, "s3://bucket/texts"); // 11 bytes
    CHECK(names() == std::vector<std::string>{"texts", "web"});
    CHECK(contains(
        refusal([&] { used(local, "s3://bucket/empty.txt"); }),
        "s3://bucket/empty.txt takes " + mh::bytes_text(20) + ", and of the " + mh::bytes_text(33) +
            " that copies in " + cache.string() + " may take, " + mh::bytes_text(22) + " are in use"
    ));
  }
  {
    LocalCopies local = copies(33);
    used(local, "s3://bucket/web"); // used again
    used(local, "s3://bucket/empty.txt");
    CHECK(names() == std::vector<std::string>{"empty.txt", "web"});
  }
  {
    LocalCopies local = copies(20);
    used(local, "s3://bucket/web"); // found, and the limit is lower than it was
    CHECK(names() == std::vector<std::string>{"web"});
  }
  mh::write_file(cache / "the user's", "else");
  LocalCopies local = copies(10);
  CHECK(contains(
      refusal([&] { used(local, "s3://bucket/web.bin"); }),
      "takes " + mh::bytes_text(11) + ", and all copies in " + cache.string() + " may take " +
          mh::bytes_text(10)
  ));
  used(local, "s3://bucket/chat_loss"); // 6 bytes
  CHECK(names() == std::vector<std::string>{"chat_loss", "the user's"});
}

TEST_CASE_FIXTURE(Copied, "what fails or is killed leaves no copy, and no other waits for it") {
  LocalCopies local = copies();
  const auto web = [&] { return local.copy(store, "s3://bucket/web", CopiedFor::corpus); };
  (void)local.copy(store, "s3://bucket/model", CopiedFor::tokenizer);
  for (size_t call = 1; call <= 7; ++call) {
    store.fault = {.at = store.calls + call, .code = EIO, .forever = false};
    CHECK(contains(refusal([&] { (void)web(); }), "Input/output error"));
    CHECK(names() == std::vector<std::string>{"model"});
    CHECK(!fs::exists(cache / ".fetching"));
  }
  store.fault = {};
  const pid_t child = fork();
  if (child == 0) { // killed while it holds the folder, with half of the corpus
    const auto held = mh::HeldFile::take(cache / ".lock", mh::HeldFile::As::alone);
    mh::make_directories(cache / ".fetching");
    mh::write_file(cache / ".fetching/web.bin", "tok");
    _exit(held ? 0 : 1);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(text(web().string() + ".bin") == "tokens");
  CHECK(names() == std::vector<std::string>{"model", "web"});
}

TEST_CASE_FIXTURE(Copied, "an object that is replaced while it is fetched is refused") {
  class Replaced final : public mh::Storage {
  public:
    explicit Replaced(MemoryStorage& inner)
        : inner_(inner) {}

    std::unique_ptr<mh::Upload> put(const Path& p, Existing e) override { return inner_.put(p, e); }

    std::unique_ptr<mh::ReadFile> get(const Path& path) override {
      if (++gets == 2) { // looked at, not yet copied
        inner_.contents(path) = "another";
      }
      return inner_.get(path);
    }

    bool contains(const Path& path) override { return inner_.contains(path); }

    std::vector<Item> list(const Path& prefix) override { return inner_.list(prefix); }

    void remove(const Path& path) override { inner_.remove(path); }

    void remove_all(const Path& prefix) override { inner_.remove_all(prefix); }

    void remove_unfinished(const Path&) override {}

    int gets = 0;

  private:
    MemoryStorage& inner_;
  } replaced(store);

  LocalCopies local = copies();
  const auto one = [&] {
    return local.copy(replaced, "s3://bucket/texts/a.txt", CopiedFor::corpus);
  };
  CHECK(contains(
      refusal([&] { (void)one(); }), "s3://bucket/texts/a.txt was replaced while it was fetched"
  ));
  CHECK(text(one()) == "another");
}

TEST_CASE_FIXTURE(Copied, "many processes fetch once") {
  int counts[2] = {};
  REQUIRE(pipe(counts) == 0);
  for (int i = 0; i < 8; ++i) {
    if (fork() == 0) {
      LocalCopies local = copies();
      const Path web = local.copy(store, "s3://bucket/web", CopiedFor::corpus);
      const bool good = text(web.string() + ".bin") == "tokens";
      const auto read = static_cast<unsigned char>(good ? store.bytes_read.load() : 99);
      _exit(::write(counts[1], &read, 1) == 1 ? 0 : 1);
    }
  }
  unsigned sum = 0;
  for (int i = 0; i < 8; ++i) {
    unsigned char read = 0;
    REQUIRE(::read(counts[0], &read, 1) == 1);
    sum += read;
  }
  while (wait(nullptr) > 0) {
  }
  close(counts[0]);
  close(counts[1]);
  CHECK(sum == 11);
}

TEST_CASE_FIXTURE(Copied, "names do not lead out of the folder") {
  store.contents("s3://bucket/empty.txt") = "x";
  MemoryStorage odd(MemoryStorage::Objects{{"s3://bucket/odd/../../x", "evil"}});
  LocalCopies local = copies();
  CHECK(contains(
      refusal([&] { (void)local.copy(odd, "s3://bucket/odd", CopiedFor::corpus); }),
      "holds the name \"..\", which no file can have"
  ));
  const std::string escape = "s3://bucket/a/..";
  CHECK(!refusal([&] { (void)local.copy(store, escape, CopiedFor::corpus); }).empty());
}
