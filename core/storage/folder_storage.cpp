#include "core/storage/folder_storage.hpp"

#include "core/base/text.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace mh {

namespace {

namespace fs = std::filesystem;

bool lies_in(const Path& folder, const Path& path) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

} // namespace

FolderStorage::FolderStorage(Storage& all, const Path& folder)
    : all_(all)
    , folder_(folder) {
  if (scheme_of(folder.native())) {
    return;
  }
  std::error_code error;
  real_ = fs::canonical(folder.empty() ? Path(".") : folder, error);
  if (real_.parent_path().filename() == "snapshots") {
    blobs_ = real_.parent_path().parent_path() / "blobs";
  }
}

void FolderStorage::require_inside(const Path& path) const {
  std::error_code error;
  const Path real = real_.empty() ? Path() : fs::canonical(path, error);
  if (real.empty() || error || lies_in(real_, real) || real.parent_path() == blobs_) {
    return; // what is not there is the other storage's to say
  }
  throw Error(
      path.string() + " is or lies below a link to " + real.string() + ", which is not in " +
          folder_.string(),
      "a folder from others may not name other files of this machine: if you made the link, "
      "copy what it leads to in its place, or give the folder that it leads to",
      exit_code::data
  );
}

std::unique_ptr<Upload> FolderStorage::put(const Path& path, Existing existing) {
  return all_.put(path, existing);
}

std::unique_ptr<ReadFile> FolderStorage::get(const Path& path) {
  require_inside(path);
  return all_.get(path);
}

bool FolderStorage::contains(const Path& path) {
  return all_.contains(path);
}

std::vector<Storage::Item> FolderStorage::list(const Path& prefix) {
  require_inside(prefix);
  return all_.list(prefix);
}

void FolderStorage::remove(const Path& path) {
  all_.remove(path);
}

void FolderStorage::remove_all(const Path& prefix) {
  all_.remove_all(prefix);
}

std::vector<Storage::Unfinished> FolderStorage::unfinished(const Path& prefix) {
  return all_.unfinished(prefix);
}

void FolderStorage::remove_unfinished(const Path& prefix) {
  all_.remove_unfinished(prefix);
}

} // namespace mh
