#include "core/storage/local_copies.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "megahost/shuffle.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>

namespace mh {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr const char* kUsed = ".used";
constexpr const char* kFetching = ".fetching";
constexpr const char* kRemoved = ".removed";
constexpr size_t kChunk = 64 << 20; // asked for at once: a storage may read it in parallel
constexpr size_t kNameBytes = 100;  // bytes of a path's last part in a copy's name

/// "s3://bucket/a//" -> "s3://bucket/a".
std::string without_slashes(std::string path) {
  while (path.ends_with('/') && !path.ends_with("://")) {
    path.pop_back();
  }
  return path;
}

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

/// Whether a tokenizer may be made of a file with this name. A model's folder holds its weights, too.
bool of_tokenizer(const std::string& name) {
  constexpr std::array kEndings{".json", ".txt", ".model", ".jinja"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](const char* e) {
    return name.ends_with(e);
  });
}

/// A name that is taken as a file's must not lead out of its folder.
void check_name(const Path& prefix, const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw Error(
        prefix.string() + " holds the name " + string_text(name) + ", which no file can have",
        "give the object another name, or name the others one by one",
        exit_code::data
    );
  }
}

/// The names of the objects below a prefix, in order; of a tokenizer those directly below it.
void list_below(
    Storage& storage,
    const Path& prefix,
    const std::string& name,
    CopiedFor reader,
    std::vector<std::string>& ret_names
) {
  for (const Storage::Item& item : storage.list(prefix)) {
    check_name(prefix, item.name);
    if (!item.is_prefix && (reader == CopiedFor::corpus || of_tokenizer(item.name))) {
      ret_names.push_back(name + "/" + item.name);
    } else if (item.is_prefix && reader == CopiedFor::corpus) {
      list_below(storage, prefix / item.name, name + "/" + item.name, reader, ret_names);
    }
  }
}

/// The names of a corpus's pair, and of the masks that belong to it, next to its prefix; none if
/// there is no pair.
std::vector<std::string> pair_names(Storage& storage, const Path& folder, std::string prefix) {
  constexpr std::string_view kDocument = "_document";
  std::vector<std::string> names;
  const auto add = [&](const std::string& of) {
    const bool index = storage.contains(folder / (of + ".idx"));
    if (index || storage.contains(folder / (of + ".bin"))) {
      names.insert(names.end(), {of + ".bin", of + ".idx"}); // who lacks one hears of it
    }
  };
  add(prefix);
  if (!names.empty() && prefix.ends_with(kDocument)) {
    prefix.resize(prefix.size() - kDocument.size());
    add(prefix + "_loss");
  }
  return names;
}

uint64_t bytes_below(FileSystem& files, const Path& path) {
  if (files.kind(path) != FileSystem::Kind::directory) {
    return files.open(path)->size();
  }
  uint64_t bytes = 0;
  for (const std::string& name : files.list(path)) {
    bytes += bytes_below(files, path / name);
  }
  return bytes;
}

std::string size_text(uint64_t bytes) {
  return bytes_text(static_cast<int64_t>(bytes));
}

/// When a copy was used last.
fs::file_time_type used_last(const Path& copy) {
  std::error_code error;
  const auto time = fs::last_write_time(copy / kUsed, error);
  return error ? fs::file_time_type::min() : time;
}

std::string hex(uint64_t number) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, number);
  return text.data();
}

Error changed_meanwhile(const Path& path) {
  return Error(
      path.string() + " was replaced while it was fetched",
      "run again when whoever writes it is done",
      exit_code::data
  );
}

} // namespace

LocalCopies::LocalCopies(Options options)
    : options_(std::move(options)) {}

void LocalCopies::say(const std::string& sentence) const {
  if (options_.say) {
    options_.say(sentence);
  }
}

uint64_t LocalCopies::bytes_of(const Objects& objects) {
  uint64_t bytes = 0;
  for (const Object& object : objects) {
    bytes += object.size;
  }
  return bytes;
}

LocalCopies::Objects LocalCopies::find(Storage& storage, const Path& path, CopiedFor reader) {
  const Path folder = path.parent_path();
  const std::string name = last_part(path.string());
  check_name(folder, name);
  std::vector<std::string> names;
  if (reader == CopiedFor::corpus) {
    const bool ends = name.ends_with(".bin") || name.ends_with(".idx");
    names = pair_names(storage, folder, ends ? name.substr(0, name.size() - 4) : name);
  }
  if (names.empty() && storage.contains(path)) {
    names = {name};
  }
  if (names.empty()) {
    list_below(storage, path, name, reader, names);
  }
  if (names.empty() && name.find_first_of("*?[") != std::string::npos) {
    throw Error(
        path.string() + " is a pattern, and there are none in stores",
        "name an object, or a folder: all below it is read",
        exit_code::data
    );
  }
  if (names.empty()) {
    throw Error(
        "there is nothing at " + path.string() +
            (reader == CopiedFor::corpus
                 ? ", no object, no pair .bin and .idx, and nothing below it"
                 : ", no object, and no tokenizer's file below it"),
        "check the path; `megahost checkpoint ls` lists other places of the store",
        exit_code::data
    );
  }
  Objects objects;
  for (std::string& one : names) {
    const Path from = folder / one;
    const auto file = storage.get(from);
    objects.push_back({from, std::move(one), file->size(), file->version()});
  }
  return objects;
}

Path LocalCopies::place_of(const std::string& path, const Objects& objects) const {
  std::string identity = path;
  for (const Object& object : objects) {
    identity += "\n" + object.name + "\n" + std::to_string(object.size) + "\n" + object.version;
  }
  const std::string name = last_part(path).substr(0, kNameBytes);
  return options_.folder /
         (name.substr(0, whole_characters(name)) + "-" + hex(hash_text(identity)));
}

Path LocalCopies::copy(Storage& storage, const std::string& path, CopiedFor reader) {
  const std::lock_guard guard(mutex_);
  const std::string asked = without_slashes(path);
  Path& known = known_[{asked, reader}];
  if (known.empty()) {
    const Objects objects = find(storage, asked, reader);
    const Path copy = place_of(asked, objects);
    if (use(copy, objects)) {
      if (const auto alone = HeldFile::take(options_.folder / kLock, HeldFile::As::if_free)) {
        (void)remove_unused(0); // the limit may be lower than it was
      }
    } else {
      const auto fetches = hold_folder(asked);
      if (!use(copy, objects)) { // else another process has fetched it meanwhile
        make_room(asked, bytes_of(objects));
        fetch(storage, asked, objects, copy);
        if (!use(copy, objects)) {
          throw changed_meanwhile(copy);
        }
      }
    }
    known = copy / last_part(asked);
  }
  return known;
}

/// For one process at a time.
std::optional<HeldFile> LocalCopies::hold_folder(const std::string& path) {
  make_directories(options_.files, options_.folder);
  const Path lock = options_.folder / kLock;
  if (options_.files.kind(lock) == FileSystem::Kind::none) {
    try {
      write_file(options_.files, lock, "");
    } catch (const StorageError& error) {
      if (error.code() != EEXIST) { // else another was faster
        throw;
      }
    }
  }
  return HeldFile::take(lock, HeldFile::As::alone, [&] {
    say(path + ": waiting for another process that fetches into " + options_.folder.string());
  });
}

/// Whether there is a whole copy; then it stays as long as this process.
bool LocalCopies::use(const Path& copy, const Objects& objects) {
  auto held = HeldFile::take(copy / kUsed, HeldFile::As::shared);
  if (!held) {
    return false;
  }
  for (const Object& object : objects) {
    const Path file = copy / object.name;
    if (options_.files.kind(file) != FileSystem::Kind::file ||
        options_.files.open(file)->size() != object.size) {
      return false;
    }
  }
  std::error_code ignored;
  fs::last_write_time(copy / kUsed, fs::file_time_type::clock::now(), ignored);
  used_.push_back(std::move(*held));
  return true;
}

/// Gone for all who look for it, and then removed.
void LocalCopies::discard(const Path& copy) {
  const Path aside = options_.folder / kRemoved;
  if (options_.files.kind(aside) != FileSystem::Kind::none) {
    remove_tree(options_.files, aside); // left by a process that was killed
  }
  options_.files.rename(copy, aside);
  remove_tree(options_.files, aside);
}

/// Removes copies that no process uses, until so many bytes fit; returns the bytes of those left.
uint64_t LocalCopies::remove_unused(uint64_t bytes) {
  struct Copy {
    fs::file_time_type used;
    Path path;
    uint64_t bytes;
  };

  std::vector<Copy> copies;
  uint64_t sum = 0;
  for (const std::string& name : options_.files.list(options_.folder)) {
    const Path copy = options_.folder / name;
    if (options_.files.kind(copy / kUsed) == FileSystem::Kind::file) { // others are not ours
      copies.push_back({used_last(copy), copy, bytes_below(options_.files, copy)});
      sum += copies.back().bytes;
    }
  }
  std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
    return a.used < b.used;
  });
  for (const Copy& copy : copies) {
    if (sum + bytes <= options_.limit) {
      break;
    }
    if (const auto alone = HeldFile::take(copy.path / kUsed, HeldFile::As::if_free)) {
      discard(copy.path);
      sum -= copy.bytes;
    }
  }
  return sum;
}

void LocalCopies::make_room(const std::string& path, uint64_t bytes) {
  const std::string place = options_.folder.string();
  if (bytes > options_.limit) {
    throw Error(
        path + " takes " + size_text(bytes) + ", and all copies in " + place + " may take " +
            size_text(options_.limit),
        "raise data.cache_limit, or copy it to a disk yourself and name that",
        exit_code::data
    );
  }
  if (const Path left = options_.folder / kFetching;
      options_.files.kind(left) != FileSystem::Kind::none) {
    remove_tree(options_.files, left);
  }

  const uint64_t sum = remove_unused(bytes);
  if (sum + bytes > options_.limit) {
    throw Error(
        path + " takes " + size_text(bytes) + ", and of the " + size_text(options_.limit) +
            " that copies in " + place + " may take, " + size_text(sum) + " are in use",
        "raise data.cache_limit, or wait until other runs end",
        exit_code::data
    );
  }
}

void LocalCopies::fetch(
    Storage& storage, const std::string& path, const Objects& objects, const Path& copy
) {
  FileSystem& files = options_.files;
  const Path aside = options_.folder / kFetching;
  const uint64_t total = bytes_of(objects);
  uint64_t done = 0;
  std::error_code error;
  const fs::space_info space = fs::space(options_.folder, error);
  if (!error && space.available < total) {
    throw Error(
        path + " takes " + size_text(total) + ", and the disk of " + options_.folder.string() +
            " has " + size_text(space.available) + " free",
        "free some space there, or name a folder of another disk with data.cache",
        exit_code::data
    );
  }
  say("fetching " + path + ", " + size_text(total) + ", into " + copy.string());
  auto last_said = std::chrono::steady_clock::now();
  std::vector<std::byte> chunk(std::min<uint64_t>(kChunk, total));
  try {
    for (const Object& object : objects) {
      const auto from = storage.get(object.from);
      if (from->size() != object.size || from->version() != object.version) {
        throw changed_meanwhile(object.from);
      }
      const Path to = aside / object.name;
      make_directories(files, to.parent_path());
      const auto file = files.create(to);
      for (uint64_t at = 0; at < object.size;) {
        const size_t count = std::min<uint64_t>(chunk.size(), object.size - at);
        const std::span<std::byte> part = std::span(chunk).first(count);
        read_exactly(*from, at, part, object.from);
        write_all(*file, part, to);
        at += count;
        done += count;
        if (const auto now = std::chrono::steady_clock::now();
            now - last_said > std::chrono::seconds(10)) {
          last_said = now;
          say(path + ": " + size_text(done) + " of " + size_text(total));
        }
      }
      file->sync();
      files.sync_directory(to.parent_path());
    }
    write_file(files, aside / kUsed, "");
    files.sync_directory(aside);
    if (files.kind(copy) != FileSystem::Kind::none) { // damaged
      discard(copy);
    }
    files.rename(aside, copy);
    files.sync_directory(options_.folder);
  } catch (const Error&) {
    try {
      remove_tree(files, aside);
    } catch (const Error&) { // the next one that fetches does it
    }
    throw;
  }
}

} // namespace mh
