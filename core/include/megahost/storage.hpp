#pragma once
/// The storage of checkpoints and weights: objects under names, on a disk or in an object store.
///
/// ```cpp
/// mh::Storage& disk = mh::local_storage();
/// mh::put_text(disk, "a/notes.txt", "text");  // whole and durable, or an exception
/// std::string text = mh::get_text(disk, "a/notes.txt", 1 << 20);
/// ```
///
/// Objects that readers must see as one are committed by the last of them: write all others first,
/// then the one that names them, its manifest. Readers ignore objects without a manifest, and a
/// deletion begins with the manifest. So nothing here renames, appends, or needs folders: a prefix
/// is there as long as an object lies below it.
///
/// The word before `://` in a path is the name of a storage plugin, which gets paths whole:
///
/// ```cpp
/// mh::Host host;
/// host.storage().contains("s3://bucket/runs/a/step-1/manifest.json");
/// ```
///
/// Others are files of this machine. A plugin is opened when a path first names it, with the
/// options of the recipe's `storage`, if that is its name:
///
/// ```lua
/// return { checkpoint = { dir = "mine://runs/a" }, storage = { use = "mine", root = "/data" } }
/// ```
///
/// Thread:  any, on different objects

#include "megahost/error.hpp"
#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A name of an object or a prefix of names, its parts separated by slashes.
using Path = std::filesystem::path;

/// An operation on a file or an object failed: "cannot ACTION PATH: REASON".
class MH_API StorageError : public Error {
public:
  /// `code` is an errno value.
  StorageError(const std::string& action, const Path& path, int code);
  /// `reason`, "the bucket does not exist", takes the place of the errno value's.
  StorageError(
      const std::string& action,
      const Path& path,
      int code,
      const std::string& reason,
      const std::string& hint
  );
  ~StorageError() override;

  [[nodiscard]] int code() const { return code_; }

private:
  int code_;
};

/// An object being read.
class MH_API ReadFile {
public:
  virtual ~ReadFile();
  [[nodiscard]] virtual uint64_t size() const = 0;
  /// Reads some bytes at `offset`; returns how many, 0 only at the end.
  [[nodiscard]] virtual size_t read(uint64_t offset, std::span<std::byte> into) = 0;

  /// Another one whenever the object's bytes are others, such as an ETag; empty where the storage
  /// tells none.
  [[nodiscard]] virtual std::string version() const { return ""; }
};

/// An object being written. It is seen after `finish`, and never without.
class MH_API Upload {
public:
  virtual ~Upload();
  /// Appends all of the bytes.
  virtual void write(std::span<const std::byte> bytes) = 0;
  /// Returns when the object is there, whole and durable. To be called once.
  virtual void finish() = 0;
};

/// Throws:  StorageError from every function, with the path
class MH_API Storage {
public:
  static constexpr Kind kKind = Kind::storage;

  struct Args {};

  /// The behaviour of `finish` if there is an object of the name: it puts the new one in its place,
  /// or refuses with EEXIST (an object store's `If-None-Match: *`).
  enum class Existing : uint8_t { replace, refuse };

  /// Something directly below a prefix.
  struct Item {
    std::string name;
    bool is_prefix = false; ///< a prefix of further objects; else it is an object

    [[nodiscard]] bool operator==(const Item&) const = default;
  };

  /// The rest of an upload that never finished.
  struct Unfinished {
    std::string name;   ///< its object's, below the prefix: "step-1/model.safetensors"
    uint64_t bytes = 0; ///< bytes of it that the storage keeps
  };

  virtual ~Storage();
  [[nodiscard]] virtual std::unique_ptr<Upload>
  put(const Path& path, Existing existing = Existing::replace) = 0;
  /// Throws:  StorageError with ENOENT if there is no such object
  [[nodiscard]] virtual std::unique_ptr<ReadFile> get(const Path& path) = 0;
  /// Whether there is an object of this name.
  [[nodiscard]] virtual bool contains(const Path& path) = 0;
  /// Sorted by name; nothing if there is nothing. Unfinished uploads are not listed.
  [[nodiscard]] virtual std::vector<Item> list(const Path& prefix) = 0;
  /// Returns when the object is durably gone; nothing happens where there is none.
  virtual void remove(const Path& path) = 0;
  /// Removes everything below a prefix, in any order.
  virtual void remove_all(const Path& prefix) = 0;

  /// The rests of uploads that never finished below a prefix, sorted by name; nothing where the
  /// storage cannot tell.
  [[nodiscard]] virtual std::vector<Unfinished> unfinished(const Path& /*prefix*/) { return {}; }

  /// Removes them, where no one may be writing.
  virtual void remove_unfinished(const Path& prefix) = 0;
};

/// Files of this machine: objects are files, prefixes are folders.
[[nodiscard]] MH_API Storage& local_storage();

/// Fills `into`. Throws:  mh::Error if the object ends before
MH_API void
read_exactly(ReadFile& file, uint64_t offset, std::span<std::byte> into, const Path& path);

MH_API void put_text(
    Storage& storage,
    const Path& path,
    std::string_view text,
    Storage::Existing existing = Storage::Existing::replace
);
/// A whole object. Throws:  mh::Error if it is longer than `limit`
[[nodiscard]] MH_API std::string get_text(Storage& storage, const Path& path, uint64_t limit);

} // namespace mh
