#include "core/storage/documents.hpp"

#include "megahost/error.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using mh::DocumentFile;
using mh::DocumentFormat;
using mh::test::contains;
using mh::test::refusal;

namespace {

namespace fs = std::filesystem;

struct TextFiles {
  fs::path path;

  TextFiles() {
    std::string name = (fs::temp_directory_path() / "megahost-documents-XXXXXX").string();
    path = mkdtemp(name.data());
  }

  ~TextFiles() { fs::remove_all(path); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
};

/// Every document as "key1|key2", sequences of a key separated by "/"; what is skipped as
/// "!sentence".
std::vector<std::string> read_all(
    const std::vector<DocumentFile>& files,
    size_t block_bytes,
    const std::vector<std::string>& keys,
    bool skip = false
) {
  std::vector<std::string> all;
  mh::DocumentReader reader(files, mh::open_file_input, {}, block_bytes);
  while (const auto block = reader.next()) {
    const auto take = [&](const mh::DocumentTexts& texts) {
      std::string text;
      for (const auto& key : texts) {
        text += &key == texts.data() ? "" : "|";
        for (const auto& sequence : key) {
          text += (&sequence == key.data() ? "" : "/") + sequence;
        }
      }
      all.push_back(text);
    };
    if (skip) {
      mh::parse_documents(*block, keys, take, {.skip = [&](const std::string& s) {
        all.push_back("!" + s);
      }});
    } else {
      mh::parse_documents(*block, keys, take);
    }
  }
  return all;
}

} // namespace

TEST_CASE_FIXTURE(TextFiles, "lines are whole whatever the size of a block") {
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 50; ++i) {
    expected.push_back(std::string(static_cast<size_t>(i * i % 97), 'x') + std::to_string(i));
    text += "{\"text\": \"" + expected.back() + "\"}" + (i % 10 == 3 ? "\r\n \n\n" : "\n");
  }
  for (const bool ends : {true, false}) { // the last line may lack its end
    const auto files = mh::find_documents(
        {write("a.jsonl", ends ? text : text + "{\"text\": \"last\"}")}, DocumentFormat::by_name
    );
    CHECK(files[0].json_lines);
    for (const size_t block : {1U, 7U, 64U, 1000U, 1U << 20}) {
      CAPTURE(block);
      auto all = expected;
      if (!ends) {
        all.emplace_back("last");
      }
      CHECK(read_all(files, block, {"text"}) == all);
    }
  }
}

TEST_CASE_FIXTURE(TextFiles, "several keys, and lists of texts as sequences") {
  const auto files = mh::find_documents(
      {write(
          "a.jsonl",
          R"({"b": ["x", "y"], "n": 1, "text": "t"})"
          "\n"
          R"({"text": "", "b": "z"})"
      )},
      DocumentFormat::by_name
  );
  CHECK(read_all(files, 100, {"text", "b"}) == std::vector<std::string>{"t|x/y", "|z"});
}

TEST_CASE_FIXTURE(TextFiles, "a bad line is named, or skipped") {
  const std::string path = write(
      "a.jsonl",
      "{\"text\": \"1\"}\n{\"text\": \"2\"\n\n[1]\n{\"text\": [1]}\n{\"t\": \"\"}\n{\"text\": "
      "\"3\"}\n"
  );
  const auto files = mh::find_documents({path}, DocumentFormat::by_name);
  for (const size_t block : {5U, 1000U}) {
    const auto all = read_all(files, block, {"text"}, true);
    REQUIRE(all.size() == 6);
    CHECK(all.front() == "1");
    CHECK(all[1] == "!" + path + ":2: no valid JSON: syntax error at byte 13");
    CHECK(all[2] == "!" + path + ":4: found a JSON array, expected an object");
    CHECK(all[3] == "!" + path + ":5: `text` is a JSON array, expected a string");
    CHECK(all[4] == "!" + path + ":6: `text` is missing");
    CHECK(all[5] == "3");
    CHECK(contains(
        refusal([&] { (void)read_all(files, block, {"text"}); }), path + ":2: no valid JSON"
    ));
  }
  try {
    (void)read_all(
        mh::find_documents({write("b.jsonl", "{\"content\": \"1\"}")}, DocumentFormat::by_name),
        9,
        {"text"}
    );
    FAIL("a line without the key");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    CHECK(contains(error.hint(), "its texts: content (--json-key)"));
    CHECK(contains(error.hint(), "sed -n 1p " + (fs::path(path).parent_path() / "b.jsonl").string())
    );
  }
}

TEST_CASE_FIXTURE(
    TextFiles, "bytes that are no UTF-8 are refused, skipped or replaced, with their place"
) {
  const std::string path = write(
      "a.jsonl",
      "{\"text\": \"1\"}\n{\"text\": \"caf\xE9 au\"}\n{\"text\": \"\xE2\x82\"}\n{\"text\": "
      "\"\xC3\xA9\"}\n"
  );
  const std::string first = path + ":2: byte 14 (0xe9) of the line is no UTF-8";
  const std::string second = path + ":3: byte 11 (0xe2) of the line is no UTF-8";
  const auto files = mh::find_documents({path}, DocumentFormat::by_name);
  for (const size_t block : {5U, 1000U}) { // the place does not depend on the blocks
    CHECK(
        read_all(files, block, {"text"}, true) ==
        std::vector<std::string>{"1", "!" + first, "!" + second, "\xC3\xA9"}
    );
    CHECK(refusal([&] { (void)read_all(files, block, {"text"}); }) == first);
    mh::DocumentReader reader(files, mh::open_file_input, {}, block);
    std::vector<std::string> texts, replaced;
    while (const auto read = reader.next()) {
      mh::parse_documents(
          *read,
          {"text"},
          [&](const mh::DocumentTexts& found) { texts.push_back(found[0][0]); },
          {.replace = [&](const std::string& sentence) { replaced.push_back(sentence); }}
      );
    }
    CHECK(texts == std::vector<std::string>{"1", "caf\xEF\xBF\xBD au", "\xEF\xBF\xBD", "\xC3\xA9"});
    CHECK(replaced == std::vector<std::string>{first, second});
  }
  try {
    (void)read_all(files, 1000, {"text"});
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    CHECK(contains(error.hint(), "sed -n 2p " + path));
    CHECK(contains(error.hint(), "--on-error replace"));
  }
}

TEST_CASE_FIXTURE(TextFiles, "text files hold any bytes, unless they are to be replaced") {
  const std::string path = write("a.txt", "ab\xFF\nAbcdefgh\xFE");
  const auto files = mh::find_documents({path}, DocumentFormat::by_name);
  CHECK(read_all(files, 1000, {"text"}) == std::vector<std::string>{"ab\xFF\nAbcdefgh\xFE"});
  mh::DocumentReader reader(files, mh::open_file_input, {.bytes = 8}, 1000); // in two pieces
  std::string text;
  std::vector<std::string> replaced;
  while (const auto read = reader.next()) {
    mh::parse_documents(
        *read,
        {"text"},
        [&](const mh::DocumentTexts& found) { text += found[0][0]; },
        {.replace = [&](const std::string& sentence) { replaced.push_back(sentence); }}
    );
  }
  CHECK(text == "ab\xEF\xBF\xBD\nAbcdefgh\xEF\xBF\xBD");
  CHECK(
      replaced ==
      std::vector<std::string>{
          path + ": byte 3 (0xff) of the file is no UTF-8",
          path + ": byte 13 (0xfe) of the file is no UTF-8"}
  );
}

TEST_CASE_FIXTURE(TextFiles, "what the taker throws is said with its line") {
  const std::string path = write("a.jsonl", "{\"text\": \"1\"}\n{\"text\": \"2\"}\n");
  const auto files = mh::find_documents({path}, DocumentFormat::by_name);
  mh::DocumentReader reader(files);
  const auto block = reader.next();
  REQUIRE(block);
  const std::string said = refusal([&] {
    mh::parse_documents(*block, {"text"}, [](const mh::DocumentTexts& texts) {
      if (texts[0][0] == "2") {
        throw mh::Error("no id");
      }
    });
  });
  CHECK(said == path + ":2: no id");
}

TEST_CASE_FIXTURE(TextFiles, "text files are documents, of folders in the order of their names") {
  write("c/b.txt", "one\ntwo\n");
  write("c/a.md", std::string("\0\xFF", 2));
  write("c/.hidden", "no");
  write("c/.git/d.txt", "no");
  write("c/d/e", "");
  write("c/z.jsonl", "{\"text\": \"line\"}\n");
  const auto files = mh::find_documents({path / "c"}, DocumentFormat::by_name);
  CHECK(
      read_all(files, 3, {"text"}) ==
      std::vector<std::string>{std::string("\0\xFF", 2), "one\ntwo\n", "", "line"}
  );
  CHECK(files[1].bytes == 8);
  const auto as_text = mh::find_documents({path / "c/z.jsonl"}, DocumentFormat::text);
  CHECK(read_all(as_text, 3, {"text"}) == std::vector<std::string>{"{\"text\": \"line\"}\n"});
  const auto as_json =
      mh::find_documents({write("x.log", "{\"text\": \"line\"}")}, DocumentFormat::json_lines);
  CHECK(read_all(as_json, 3, {"text"}) == std::vector<std::string>{"line"});
}

TEST_CASE_FIXTURE(TextFiles, "inputs that are none") {
  const auto why = [&](const std::string& name) {
    return refusal([&] { (void)mh::find_documents({path / name}, DocumentFormat::by_name); });
  };
  CHECK(contains(why("absent.jsonl"), "there is no " + (path / "absent.jsonl").string()));
  write("a.zip", "");
  CHECK(contains(why("a.zip"), "a.zip is an archive"));
  CHECK(contains(why("*.parquet"), "no file matches"));
  fs::create_directory(path / "empty");
  CHECK(contains(why("empty"), "there is no file in"));
  const std::vector<DocumentFile> gone{{path / "gone", true, 0}};
  CHECK(contains(refusal([&] { (void)read_all(gone, 1, {"text"}); }), "cannot open"));
}

TEST_CASE_FIXTURE(TextFiles, "patterns, lists of inputs, and compressed names") {
  write("a.jsonl", "{}");
  write("b.jsonl.gz", "");
  write("c.txt", "");
  const auto names = [&](const std::vector<std::string>& inputs) {
    std::string text;
    for (const DocumentFile& file : mh::find_documents(inputs, DocumentFormat::by_name)) {
      text += fs::path(file.path).filename().string() + (file.json_lines ? "+ " : "- ");
    }
    return text;
  };
  CHECK(names({(path / "*").string()}) == "a.jsonl+ b.jsonl.gz+ c.txt- ");
  CHECK(names({(path / "[bc].*").string()}) == "b.jsonl.gz+ c.txt- ");
  write("list", (path / "c.txt").string() + "\r\n\n" + (path / "?.jsonl").string() + "\n");
  CHECK(names({"@" + (path / "list").string()}) == "c.txt- a.jsonl+ ");
}

TEST_CASE_FIXTURE(TextFiles, "a long text comes in pieces that end before a line with a letter") {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    text += i % 3 == 0 ? "line\nnext\n" : i % 3 == 1 ? "  indented\n" : "\n\n";
  }
  write("a.txt", text);
  const auto files = mh::find_documents({(path / "a.txt").string()}, DocumentFormat::by_name);
  mh::DocumentReader reader(files, mh::open_file_input, {.bytes = 100}, 1);
  std::string joined;
  std::vector<mh::DocumentPlace> places;
  size_t pieces = 0, begins = 0, ends = 0;
  while (const auto block = reader.next()) {
    CHECK(block->begins == (pieces == 0));
    begins += block->begins ? 1 : 0;
    ends += block->ends ? 1 : 0;
    ++pieces;
    joined += block->text;
    places.push_back(reader.place());
  }
  CHECK(joined == text);
  CHECK(pieces > 5);
  CHECK(begins == 1);
  CHECK(ends == 1);
}

/// A file that cannot be read beyond some bytes, as a compressed one that is damaged there.
class Damaged : public mh::InputStream {
public:
  Damaged(const std::string& path, size_t sound)
      : stream_(mh::open_file_input(path))
      , left_(sound) {}

  size_t read(std::span<char> ret_buffer) override {
    if (left_ == 0) {
      throw mh::Error("damaged", "", mh::exit_code::data);
    }
    const size_t got = stream_->read(ret_buffer.first(std::min(left_, ret_buffer.size())));
    left_ -= got;
    return got;
  }

private:
  std::unique_ptr<mh::InputStream> stream_;
  size_t left_;
};

TEST_CASE_FIXTURE(TextFiles, "who stops at the lines before a damage meets it again") {
  write("a.jsonl", "{\"text\": \"1\"}\n{\"text\": \"2\"}\n{\"text\": \"3\"}\n");
  write("b.jsonl", "{\"text\": \"4\"}\n");
  const auto files = mh::find_documents({path.string()}, DocumentFormat::by_name);
  const auto open = [](const std::string& name) -> std::unique_ptr<mh::InputStream> {
    return std::make_unique<Damaged>(name, name.ends_with("a.jsonl") ? 34 : 1000);
  };
  mh::DocumentReader reader(files, open, {}, 1 << 20);
  CHECK(reader.next()->text == "{\"text\": \"1\"}\n{\"text\": \"2\"}\n");
  const mh::DocumentPlace place = reader.place();
  CHECK(place.file == 0);
  CHECK(place.offset == 28);
  CHECK(place.line == 3);
  CHECK(refusal([&] { (void)reader.next(); }) == "damaged");
  CHECK(reader.place().file == 1);
  CHECK(reader.next()->text == "{\"text\": \"4\"}\n");

  mh::DocumentReader other(files, open, {}, 1 << 20);
  other.seek(place);
  CHECK(refusal([&] { (void)other.next(); }) == "damaged");
}

TEST_CASE_FIXTURE(TextFiles, "texts and messages are told apart") {
  write("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
  write("b.jsonl", "{\"messages\": [\"a\", \"b\"]}\n");
  const auto parse = [&](const std::string& name, mh::DocumentMembers members) {
    const auto files = mh::find_documents({(path / name).string()}, DocumentFormat::by_name);
    mh::DocumentReader reader(files);
    std::vector<std::string> texts;
    const auto take = [&](const mh::DocumentTexts& found) { texts = found[0]; };
    mh::parse_documents(*reader.next(), {"messages"}, take, {}, members);
    return texts;
  };
  using enum mh::DocumentMembers;
  CHECK(parse("a.jsonl", messages) == std::vector<std::string>{"user", "Hi"});
  CHECK(parse("b.jsonl", texts) == std::vector<std::string>{"a", "b"});
  CHECK(contains(refusal([&] { (void)parse("a.jsonl", texts); }), "messages is a list of objects"));
  CHECK(contains(refusal([&] { (void)parse("b.jsonl", messages); }), "messages[0]"));
}

TEST_CASE_FIXTURE(TextFiles, "reading goes on behind any block") {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += "{\"text\": \"" + std::to_string(i) + "\"}\n";
  }
  write("a.jsonl", lines);
  write("b.jsonl", lines);
  const auto files = mh::find_documents({path.string()}, DocumentFormat::by_name);
  mh::DocumentReader reader(files, mh::open_file_input, {}, 64);
  // The places where each block begins, and all that was read before.
  std::vector<std::pair<mh::DocumentPlace, std::string>> places;
  std::string before;
  do {
    places.emplace_back(reader.place(), before);
    const auto block = reader.next();
    before += block ? block->text : "";
  } while (reader.place().file < 2);
  CHECK(before == lines + lines);
  REQUIRE(places.size() > 10);
  for (const auto& [from, text] : places) {
    mh::DocumentReader other(files, mh::open_file_input, {}, 64);
    other.seek(from);
    std::string rest;
    while (const auto block = other.next()) {
      CHECK(block->text.starts_with("{\"text\": \"" + std::to_string(block->line - 1) + "\"}"));
      rest += block->text;
    }
    CHECK(text + rest == lines + lines);
  }
}
