#include "core/model/storage_memory.hpp"

namespace mh {

void free_memory(const c10::Storage& storage) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(0);
}

void share_memory(const c10::Storage& storage, const c10::Storage& other) {
  const auto release = [](void* held) { delete static_cast<c10::Storage*>(held); };
  storage.set_data_ptr_noswap(
      {other.mutable_data(), new c10::Storage(other), release, other.device()}
  );
  storage.set_nbytes(other.nbytes());
}

} // namespace mh
