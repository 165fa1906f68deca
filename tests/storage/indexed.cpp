#include "core/storage/indexed_writer.hpp"
#include "megahost/indexed_dataset.hpp"
#include "memory_file_system.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>

using mh::test::contains;
using mh::test::MemoryFileSystem;
using mh::test::refusal;

namespace {

struct Corpus {
  mh::FileSystem& disk = mh::file_system();
  mh::Path folder;
  std::string prefix;

  Corpus() {
    std::string name =
        (std::filesystem::temp_directory_path() / "megahost-indexed-XXXXXX").string();
    folder = mkdtemp(name.data());
    prefix = folder / "c_text_document";
  }

  ~Corpus() { mh::remove_tree(disk, folder); }
};

void add(mh::IndexedWriter& writer, const std::vector<int32_t>& ids) {
  const std::vector<size_t> lengths(ids.empty() ? 0 : 1, ids.size());
  writer.add_document(ids, lengths);
}

void write(mh::FileSystem& files, const std::string& prefix, int32_t first) {
  mh::IndexedWriter writer(files, prefix, mh::token_type_for(300));
  add(writer, {first, 2, 3});
  add(writer, {});
  writer.add_document(std::vector<int32_t>{4, 5, 6, 7}, std::vector<size_t>{1, 3});
  writer.commit();
}

std::string contents(MemoryFileSystem& files, const char* file) {
  return files.kind(file) == mh::FileSystem::Kind::file ? files.contents(file) : "";
}

} // namespace

TEST_CASE_FIXTURE(Corpus, "what is written is read, by prefix or by either file") {
  write(disk, prefix, 1);
  CHECK(
      disk.list(folder) == std::vector<std::string>{"c_text_document.bin", "c_text_document.idx"}
  );
  for (const char* ending : {"", ".bin", ".idx"}) {
    const mh::IndexedDataset corpus(prefix + ending);
    CHECK(corpus.prefix() == prefix);
    CHECK(corpus.type() == "uint16");
    CHECK(corpus.sequences() == 3);
    CHECK(corpus.documents() == 3);
    CHECK(corpus.tokens() == 7);
    CHECK(corpus.length(2) == 3);
    CHECK(corpus.begin(2) == 4);
    CHECK(corpus.begin(3) == 7);
    CHECK(corpus.document_begin(1) == 1);
    CHECK(corpus.document_begin(2) == 1);
    CHECK(corpus.document_begin(3) == 3);
    std::vector<int64_t> ids(2);
    corpus.read(2, 1, ids);
    CHECK(ids == std::vector<int64_t>{6, 7});
    CHECK_THROWS_AS(corpus.read(2, 2, ids), mh::InternalError);
    CHECK_THROWS_AS(corpus.read(3, 0, ids), mh::InternalError);
  }
}

TEST_CASE_FIXTURE(
    Corpus, "documents in a file that is cut and goes on, and an index of their parts"
) {
  const std::string other = folder / "other_text_document";
  write(disk, prefix, 1);
  write(disk, other, 8);
  mh::merge_indexed(disk, {prefix, other}, folder / "merged");
  const mh::Path bin = folder / "parts.bin", index = folder / "parts.idx";
  const auto add_part = [&](mh::WriteFile& file, int32_t first, const mh::Path& part) {
    mh::IndexedDocuments documents(file, bin, "parts", mh::token_type_for(300));
    documents.add(std::vector<int32_t>{first, 2, 3}, std::vector<size_t>{3});
    documents.add({}, {});
    documents.add(std::vector<int32_t>{4, 5}, std::vector<size_t>{1, 1});
    documents.extend(std::vector<int32_t>{6, 7});
    documents.flush();
    file.sync();
    documents.write_index(disk, part);
  };
  add_part(*disk.create(bin), 1, folder / "0.idx");
  const uint64_t size = disk.open(bin)->size();
  CHECK(size == 14);
  mh::write_all(*disk.extend(bin, size), std::as_bytes(std::span("never committed")), bin);
  add_part(*disk.extend(bin, size), 8, folder / "1.idx"); // what was behind is gone
  CHECK(mh::merge_indexes(disk, {folder / "0.idx", folder / "1.idx"}, index) == 28);
  mh::publish_indexed(disk, bin, index, folder / "parted");
  for (const char* ending : {".bin", ".idx"}) {
    CHECK(
        mh::read_file(disk, folder / (std::string("parted") + ending), 1 << 20) ==
        mh::read_file(disk, folder / (std::string("merged") + ending), 1 << 20)
    );
  }
}

TEST_CASE_FIXTURE(Corpus, "ids that a vocabulary does not have are found with their place") {
  write(disk, prefix, 299); // 299 2 3 | | 4 and 5 6 7
  const mh::IndexedDataset small(prefix);
  CHECK(!small.find_outside(300));
  const auto first = small.find_outside(299);
  REQUIRE(first);
  CHECK(std::tuple(first->id, first->document, first->token) == std::tuple(299, 0, 0));
  write(disk, prefix, 1);
  const auto last = mh::IndexedDataset(prefix).find_outside(7);
  REQUIRE(last);
  CHECK(std::tuple(last->id, last->document, last->token) == std::tuple(7, 2, 3));

  std::vector<int32_t> ids(10 << 14, 1);
  ids[(5 << 14) + 3] = 9;
  {
    mh::IndexedWriter writer(disk, prefix, mh::token_type_for(300));
    add(writer, ids);
    writer.commit();
  }
  const mh::IndexedDataset large(prefix, mh::IndexedDataset::Access::read);
  CHECK(large.find_outside(9)->token == (5 << 14) + 3);
  CHECK(!large.find_outside(9, 2 << 14)); // the first block and the last one
  ids.back() = 8;
  {
    mh::IndexedWriter writer(disk, prefix, mh::token_type_for(300));
    add(writer, ids);
    writer.commit();
  }
  CHECK(mh::IndexedDataset(prefix).find_outside(8, 2 << 14)->id == 8);
}

TEST_CASE_FIXTURE(Corpus, "an empty corpus") {
  mh::IndexedWriter writer(disk, prefix, mh::token_type_for(300));
  writer.commit();
  const mh::IndexedDataset corpus(prefix);
  CHECK(corpus.tokens() == 0);
  CHECK(corpus.documents() == 0);
}

TEST_CASE_FIXTURE(Corpus, "files that are missing, cut or of another pair") {
  CHECK(contains(
      refusal([&] { mh::IndexedDataset(prefix.c_str()); }), "there is no " + prefix + ".idx"
  ));
  write(disk, prefix, 1);
  std::filesystem::resize_file(prefix + ".bin", 12);
  CHECK(contains(refusal([&] { mh::IndexedDataset(prefix.c_str()); }), "has only 12 bytes"));
  std::filesystem::remove(prefix + ".bin");
  CHECK(contains(
      refusal([&] { mh::IndexedDataset(prefix.c_str()); }), "there is no " + prefix + ".bin"
  ));
  std::filesystem::create_directory(prefix + ".bin");
  CHECK(contains(refusal([&] { mh::IndexedDataset(prefix.c_str()); }), "no regular file"));
}

TEST_CASE_FIXTURE(
    Corpus, "without commit nothing is left, and the rest of a killed run is in no one's way"
) {
  {
    mh::IndexedWriter writer(disk, prefix, mh::token_type_for(300));
    add(writer, {1});
  }
  CHECK(disk.list(folder).empty());
  mh::write_file(disk, prefix + ".bin.part", "rest");
  mh::write_file(disk, prefix + ".idx.part", "rest");
  write(disk, prefix, 1);
  CHECK(mh::IndexedDataset(prefix).tokens() == 7);
}

TEST_CASE("an id that does not fit is named") {
  MemoryFileSystem files;
  mh::IndexedWriter writer(files, "c", mh::token_type_for(300));
  add(writer, {1});
  CHECK(contains(refusal([&] { add(writer, {2, 70000}); }), "c.bin: document 1 has the id 70000"));
}

TEST_CASE("killed or without power at any moment, an index tells of the tokens that are there") {
  MemoryFileSystem start;
  write(start, "/c", 1);
  start.sync_directory("/");
  const std::string old_bin = contents(start, "/c.bin"), old_idx = contents(start, "/c.idx");
  const mh::test::Disk disk = start.disk();
  const auto replace = [](mh::FileSystem& files) {
    mh::IndexedWriter writer(files, "/c", mh::token_type_for(300));
    add(writer, {9, 9});
    writer.commit();
  };
  MemoryFileSystem straight(disk);
  replace(straight);
  const std::string new_bin = contents(straight, "/c.bin"), new_idx = contents(straight, "/c.idx");
  const auto whole = [&](MemoryFileSystem& files) {
    const std::string idx = contents(files, "/c.idx"), bin = contents(files, "/c.bin");
    return idx.empty() || (idx == old_idx && bin == old_bin) || (idx == new_idx && bin == new_bin);
  };
  std::mt19937 random(1);
  for (size_t count = 0; count <= straight.log().size(); ++count) {
    CAPTURE(count);
    MemoryFileSystem killed(mh::test::after_kill(straight.log(), count, disk));
    CHECK(whole(killed));
    for (int i = 0; i < 20; ++i) {
      MemoryFileSystem dark(mh::test::after_power_loss(straight.log(), count, random, disk));
      CHECK(whole(dark));
    }
  }
}

TEST_CASE("a full disk at any moment is said, and the next try succeeds") {
  for (size_t call = 1; call < 40; ++call) {
    CAPTURE(call);
    MemoryFileSystem files;
    files.fault = {.at = call, .code = ENOSPC};
    try {
      write(files, "/c", 1);
    } catch (const mh::StorageError& error) {
      CHECK(error.code() == ENOSPC);
    }
    files.fault.reset();
    write(files, "/c", 1);
    CHECK(contents(files, "/c.bin").size() == 14);
  }
}

TEST_CASE_FIXTURE(Corpus, "merged corpora are the bytes of one that was written at once") {
  write(disk, folder / "a", 1);
  {
    mh::IndexedWriter empty(disk, folder / "b", mh::token_type_for(300));
    empty.commit();
  }
  write(disk, folder / "c", 9);
  mh::merge_indexed(
      disk, {(folder / "a").string(), (folder / "b").string(), (folder / "c").string()}, prefix
  );
  {
    mh::IndexedWriter writer(disk, folder / "whole", mh::token_type_for(300));
    for (const int32_t first : {1, 9}) {
      add(writer, {first, 2, 3});
      add(writer, {});
      writer.add_document(std::vector<int32_t>{4, 5, 6, 7}, std::vector<size_t>{1, 3});
    }
    writer.commit();
  }
  for (const char* ending : {".bin", ".idx"}) {
    CHECK(
        mh::read_file(disk, prefix + ending, 1 << 20) ==
        mh::read_file(disk, folder / ("whole" + std::string(ending)), 1 << 20)
    );
  }
  {
    mh::IndexedWriter wide(disk, folder / "wide", mh::token_type_for(100'000));
    add(wide, {1});
    wide.commit();
  }
  CHECK(contains(
      refusal([&] {
        mh::merge_indexed(disk, {(folder / "a").string(), (folder / "wide").string()}, prefix);
      }),
      "wide.idx holds int32 and " + (folder / "a.idx").string() + " uint16"
  ));
  for (const auto& entry : disk.list(folder)) { // and nothing is left of it
    CHECK_FALSE(entry.ends_with(".part"));
  }
}

TEST_CASE_FIXTURE(Corpus, "a document that comes in pieces") {
  mh::IndexedWriter writer(disk, prefix, mh::token_type_for(300));
  add(writer, {1, 2});
  writer.extend_document(std::vector<int32_t>{3});
  writer.extend_document({});
  add(writer, {});
  writer.extend_document(std::vector<int32_t>{4, 5});
  writer.commit();
  const mh::IndexedDataset corpus(prefix);
  CHECK(corpus.documents() == 2);
  CHECK(corpus.sequences() == 2);
  CHECK(corpus.length(0) == 3);
  CHECK(corpus.length(1) == 2);
}
