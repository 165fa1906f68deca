#pragma once
/// Objects that are copied from one storage to another.

#include "megahost/storage.hpp"

namespace mh {

/// Copies an object piece by piece; a log that grows meanwhile, as long as it was. Returns its bytes.
///
/// Throws:  StorageError
uint64_t copy_object(
    Storage& from,
    const Path& path,
    Storage& to,
    const Path& copy,
    Storage::Existing existing = Storage::Existing::replace
);

} // namespace mh
