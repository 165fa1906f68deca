#include "index_files.hpp"

#include "core/formats/npy.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/mapped_file.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace mh::indexed {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kDescription = "description.txt";
constexpr uint64_t kLongestDescription = 1 << 20;

/// Waits until no other process or thread holds the folder.
class FolderLock {
public:
  explicit FolderLock(const fs::path& folder) {
    const fs::path path = folder / ".lock";
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      throw StorageError("create", path, errno);
    }
    while (::flock(descriptor_, LOCK_EX) != 0) {
      if (errno != EINTR) {
        const int code = errno;
        ::close(descriptor_);
        throw StorageError("lock", path, code);
      }
    }
  }

  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  ~FolderLock() { ::close(descriptor_); }

private:
  int descriptor_;
};

/// Megatron's keys first, in its order; those behind it are ours.
Json description(const IndexedSplit& split, const IndexTerms& terms) {
  Json json{
      {"class", "GPTDataset"},
      {"dataset_path", split.prefix},
      {"num_samples", nullptr},
      {"index_split", split.split},
      {"random_seed", terms.seed},
      {"sequence_length", terms.seq},
      {"bounds", nullptr},
      {"drop_last_partial_sequence", terms.drop_last_partial},
      {"add_extra_token_to_sequence", terms.extra_token},
      {"documents", {terms.first, terms.last}},
      {"tokens", split.corpus_tokens},
      {"lengths", split.lengths},
  };
  if (terms.samples) {
    json["num_samples"] = *terms.samples;
  }
  if (split.shares) {
    json["bounds"] = {split.shares->first, split.shares->second};
  }
  return json;
}

/// Whether a description that Megatron or we wrote has these terms. The terms of its corpus are
/// compared afterwards: files that are of another corpus of this name are an error.
bool tells_of(const Json& told, const IndexedSplit& split, const IndexTerms& terms) {
  const Json wanted = description(split, terms);
  for (const char* key :
       {"class", "num_samples", "index_split", "random_seed", "sequence_length"}) {
    if (!told.contains(key) || told[key] != wanted[key]) {
      return false;
    }
  }
  for (const char* key : {"drop_last_partial_sequence", "add_extra_token_to_sequence"}) {
    if (told.contains(key) && told[key] != wanted[key]) {
      return false;
    }
  }
  Json bounds = told.value("bounds", Json());
  if (const Json matrix = told.value("split_matrix", Json()); matrix.is_array()) {
    const size_t number = split.split == "train" ? 0 : split.split == "valid" ? 1 : 2;
    bounds = number < matrix.size() ? matrix[number] : Json();
  }
  if (bounds != wanted["bounds"] || !told.value("dataset_path", Json()).is_string()) {
    return false;
  }
  const std::string path = told["dataset_path"];
  std::error_code failure;
  return path == split.prefix || fs::weakly_canonical(path + ".idx", failure) ==
                                     fs::weakly_canonical(split.prefix + ".idx", failure);
}

/// "FOLDER/NAME-GPTDataset-train-" of files that describe these terms; empty if there are none.
std::string find_files(const fs::path& folder, const IndexedSplit& split, const IndexTerms& terms) {
  const std::string ending = "-GPTDataset-" + split.split + "-" + kDescription;
  for (const std::string& name : file_system().list(folder)) {
    if (!name.ends_with(ending)) {
      continue;
    }
    const std::string text = read_file(folder / name, kLongestDescription);
    const Json told = Json::parse(text, nullptr, false);
    if (told.is_object() && tells_of(told, split, terms)) {
      return folder / name.substr(0, name.size() - std::string_view(kDescription).size());
    }
  }
  return "";
}

/// Whether files that we wrote are of the corpus as it is now.
void require_corpus(const std::string& base, const IndexedSplit& split, const IndexTerms& terms) {
  const std::string path = base + kDescription;
  const Json told = Json::parse(read_file(path, kLongestDescription), nullptr, false);
  const Json wanted = description(split, terms);
  for (const char* key : {"documents", "tokens", "lengths"}) {
    if (told.contains(key) && told[key] != wanted[key]) {
      throw Error(
          path + " describes " + key +
              (key == std::string_view("lengths")
                   ? " of documents, and those of " + split.prefix + " are others"
                   : " " + told[key].dump() + ", and " + split.prefix + " has " + wanted[key].dump()
              ),
          "the corpus has changed since the file was made: remove the index files, or name another "
          "folder in data.index_files",
          exit_code::data
      );
    }
  }
}

IndexArray map_array(const std::string& path, uint64_t numbers) {
  static constexpr std::array<std::pair<const char*, IndexArray::Type>, 3> kTypes{
      {{"<i4", IndexArray::Type::int32},
       {"<u4", IndexArray::Type::uint32},
       {"<i8", IndexArray::Type::int64}}};
  const auto file = std::make_shared<MappedFile>(path);
  const NpyLayout layout = read_npy(file->bytes(), path);
  const auto type = std::ranges::find(kTypes, layout.type, &decltype(kTypes)::value_type::first);
  if (type == kTypes.end() || layout.count() != numbers) {
    throw Error(
        path + " holds " + std::to_string(layout.count()) + " numbers of type " + layout.type +
            ", and the corpus makes an index of " + std::to_string(numbers),
        "the corpus has changed since the file was made, or it is of another one: remove the index "
        "files, or name another folder in data.index_files",
        exit_code::data
    );
  }
  return {type->second, file->bytes().subspan(layout.begin), file};
}

/// Every document is one of the split's: what is not looked at here is when samples are read.
void check_documents(
    const IndexTerms& terms, const IndexArray& documents, const std::string& path
) {
  for (uint64_t i = 0; i < documents.size(); ++i) {
    const int64_t document = documents[i];
    if (document < static_cast<int64_t>(terms.first) ||
        document >= static_cast<int64_t>(terms.last)) {
      throw Error(
          path + ": number " + std::to_string(i) + " is document " + std::to_string(document) +
              ", but the split has documents " + std::to_string(terms.first) + " to " +
              std::to_string(terms.last - 1),
          "the file is of another corpus: remove the index files, or name another folder in "
          "data.index_files",
          exit_code::data
      );
    }
  }
}

void write_array(const fs::path& path, const IndexArray& array, std::vector<uint64_t> shape) {
  const std::string_view type = array.type() == IndexArray::Type::int32    ? "<i4"
                                : array.type() == IndexArray::Type::uint32 ? "<u4"
                                                                           : "<i8";
  const fs::path part = path.string() + ".part";
  FileSystem& files = file_system();
  if (files.kind(part) != FileSystem::Kind::none) {
    files.remove(part); // left by a process that was killed
  }
  const auto file = files.create(part);
  const std::string header = npy_header(type, shape);
  write_all(*file, std::as_bytes(std::span(header)), part);
  write_all(*file, array.bytes(), part);
  file->sync();
  files.rename(part, path);
}

} // namespace

void write_index_files(
    const fs::path& folder,
    const IndexedSplit& split,
    const IndexTerms& terms,
    const MegatronIndex& index
) {
  const std::string text = description(split, terms).dump(4);
  const uint64_t hash = hash_text(text);
  std::string name;
  for (int shift = 60; shift >= 0; shift -= 4) {
    name += "0123456789abcdef"[hash >> shift & 15];
  }
  const std::string base = folder / (name + "-GPTDataset-" + split.split + "-");
  write_array(base + "document_index.npy", index.documents, {index.documents.size()});
  write_array(base + "sample_index.npy", index.samples, {index.samples.size() / 2, 2});
  write_array(base + "shuffle_index.npy", index.shuffle, {index.shuffle.size()});
  replace_file(base + kDescription, text);
}

MegatronIndex kept_index(
    const fs::path& folder,
    const IndexedSplit& split,
    const IndexTerms& terms,
    const IndexSizes& sizes,
    const std::function<MegatronIndex()>& make
) {
  make_directories(folder);
  const FolderLock lock(folder);
  std::string base = find_files(folder, split, terms);
  if (base.empty()) {
    write_index_files(folder, split, terms, make());
    base = find_files(folder, split, terms);
  }
  require_corpus(base, split, terms);
  const auto samples = static_cast<uint64_t>(sizes.samples);
  const uint64_t documents = static_cast<uint64_t>(sizes.epochs) * (terms.last - terms.first);
  MegatronIndex index{
      .documents = map_array(base + "document_index.npy", documents),
      .samples = map_array(base + "sample_index.npy", 2 * (samples + 1)),
      .shuffle = map_array(base + "shuffle_index.npy", samples)};
  check_documents(terms, index.documents, base + "document_index.npy");
  return index;
}

} // namespace mh::indexed
