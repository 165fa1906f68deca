#pragma once
/// Small tokenised corpora for tests, and what they say.

#include "core/storage/file_system.hpp"
#include "core/storage/indexed_writer.hpp"
#include "plugins/data/indexed/indexed.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace {

using mh::indexed::IndexedCorpus;

using Ids = std::vector<int64_t>;
using Documents = std::vector<std::vector<int32_t>>;

/// A folder of corpora that goes when the test ends.
class Folder {
public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-corpus-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  ~Folder() { std::filesystem::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string write(const std::string& name, const Documents& documents) const {
    mh::IndexedWriter writer(mh::file_system(), path_ / name, mh::token_type_for(100'000));
    for (const auto& ids : documents) {
      writer.add_document(ids, std::vector<size_t>{ids.size()});
    }
    writer.commit();
    return path_ / name;
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

/// Documents of 0 to 12 tokens; all tokens count on.
inline Documents counting(size_t documents) {
  Documents all;
  int32_t next = 0;
  for (size_t i = 0; i < documents; ++i) {
    all.emplace_back(i * 7 % 13);
    std::iota(all.back().begin(), all.back().end(), next);
    next += static_cast<int32_t>(all.back().size());
  }
  return all;
}

inline mh::Corpus::Args arguments(std::array<double, 3> split = {1, 0, 0}, int64_t seq = 8) {
  mh::Corpus::Args args;
  args.seq_length = seq;
  args.vocab = 100'000;
  args.split = split;
  return args;
}

inline IndexedCorpus::Config config(std::vector<std::string> paths) {
  IndexedCorpus::Config config;
  config.paths = std::move(paths);
  return config;
}

inline const Ids& array(const mh::Sample& sample, const char* name) {
  return std::get<Ids>(sample.find(name)->second);
}

inline const std::vector<float>& loss_mask(const mh::Sample& sample) {
  return std::get<std::vector<float>>(sample.find("loss_mask")->second);
}

/// Runs it and returns the error, with its exit code.
template <class Run>
std::string failure(Run run, int exit_code = mh::exit_code::data) {
  try {
    run();
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == exit_code);
    CHECK((exit_code == mh::exit_code::recipe || !error.hint().empty()));
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

} // namespace
