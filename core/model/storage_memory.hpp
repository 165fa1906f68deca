#pragma once
/// A storage's memory apart from the storage: it can be freed and come back, and every view of the
/// storage goes along, those that autograd saved too.

#include <c10/core/Storage.h>

namespace mh {

/// The storage has no memory from now on; it may not be read until `share_memory`.
void free_memory(const c10::Storage& storage);

/// `storage` has the memory of `other` from now on, which both keep alive.
void share_memory(const c10::Storage& storage, const c10::Storage& other);

} // namespace mh
