#pragma once
/// Objects that are read and written.

#include "client.hpp"

namespace s3 {

/// Reads by ranges in parallel, and ahead of a reader that goes on in order: at most 72 MiB are in
/// memory or in flight. An object that is replaced meanwhile is not read on.
///
/// Throws:  mh::StorageError, with ENOENT if there is no such object
[[nodiscard]] std::unique_ptr<mh::ReadFile>
open_object(std::shared_ptr<StoreClient> client, const mh::Path& path);

/// Writes in parts while bytes come, each with its CRC-32C, and small objects by one request.
[[nodiscard]] std::unique_ptr<mh::Upload> put_object(
    std::shared_ptr<StoreClient> client, const mh::Path& path, mh::Storage::Existing existing
);

} // namespace s3
