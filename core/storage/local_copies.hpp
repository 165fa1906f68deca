#pragma once
/// Copies of a store's objects in a folder of this machine, for what is mapped into memory or read
/// again and again: corpora and tokenizers.
///
/// ```cpp
/// mh::LocalCopies copies({.folder = "/local/cache", .limit = 100'000'000'000});
/// mh::Path prefix = copies.copy(storage, "s3://bucket/corpus", mh::CopiedFor::corpus);
/// // /local/cache/corpus-0123456789abcdef/corpus, next to which lie corpus.bin and corpus.idx
/// ```
///
/// The objects of a path are copied as a whole into a folder of their own, whose name has a hash of
/// the path and of each object's size and version. So a copy never changes, and an object that did
/// change gets another copy. The folder gets its name when all of it is on the disk. One process at
/// a time fetches, and any other that needs it waits. Copies that a process has asked for stay
/// until it ends; of the others those that were used longest ago make room.
///
///     FOLDER/.lock                    held by the process that fetches
///     FOLDER/.fetching/               what it has so far; left by one that was killed
///     FOLDER/corpus-HASH/.used        held by the processes that use it; the time of the last use

#include "core/storage/file_lock.hpp"
#include "core/storage/file_system.hpp"

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh {

enum class CopiedFor : uint8_t { corpus, tokenizer };

class LocalCopies {
public:
  struct Options {
    Path folder;
    uint64_t limit = 0;                               ///< bytes of all copies together
    std::function<void(const std::string&)> say = {}; ///< prints a line on a long copy
    FileSystem& files = file_system();

    [[nodiscard]] bool same_place(const Options& other) const {
      return folder == other.folder && limit == other.limit;
    }
  };

  explicit LocalCopies(Options options);

  [[nodiscard]] const Options& options() const { return options_; }

  /// The local copy of a store's path: an object, all that lies below a prefix, for a corpus also
  /// the pair PATH.bin and PATH.idx, for a tokenizer only the files that tokenizers are made of,
  /// not a model's weights. A second call returns the same without asking the store.
  ///
  /// Thread:  any; one at a time fetches
  /// Throws:  StorageError; mh::Error (exit code 5) for what is not there, is larger than the
  ///          limit, or finds no room next to the copies in use
  [[nodiscard]] Path copy(Storage& storage, const std::string& path, CopiedFor reader);

private:
  struct Object {
    Path from;
    std::string name; ///< below the copy's folder
    uint64_t size = 0;
    std::string version{};
  };

  using Objects = std::vector<Object>;

  [[nodiscard]] static Objects find(Storage& storage, const Path& path, CopiedFor reader);
  [[nodiscard]] static uint64_t bytes_of(const Objects& objects);
  [[nodiscard]] Path place_of(const std::string& path, const Objects& objects) const;
  [[nodiscard]] std::optional<HeldFile> hold_folder(const std::string& path);
  [[nodiscard]] bool use(const Path& copy, const Objects& objects);
  uint64_t remove_unused(uint64_t bytes);
  void make_room(const std::string& path, uint64_t bytes);
  void discard(const Path& copy);
  void fetch(Storage& storage, const std::string& path, const Objects& objects, const Path& copy);
  void say(const std::string& sentence) const;

  Options options_;
  std::mutex mutex_;
  std::map<std::pair<std::string, CopiedFor>, Path> known_;
  std::vector<HeldFile> used_;
};

} // namespace mh
