/// libnccl.so.2 without a GPU: collectives are counted with their bytes and are over at once.
///
/// EMPTY_CUDA_NCCL_FAILS=N: the process's N-th collective never ends, and its communicator says
/// that another rank is gone (ncclRemoteError) until it is aborted.

#include "counts.hpp"
#include "streams.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace {

struct UniqueId {
  char bytes[128];
};

/// Bytes of an element of each ncclDataType_t.
double size_of(int type) {
  constexpr int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

std::atomic<bool> failed = false;

int collective(const char* name, size_t elements, int type, void* stream) {
  static std::atomic<int> number = 0;
  static const char* const fails = std::getenv("EMPTY_CUDA_NCCL_FAILS");
  empty_count("collective", name, static_cast<double>(elements) * size_of(type));
  if (fails != nullptr && ++number == std::atoi(fails)) {
    failed = true;
    empty_stick(stream);
  }
  return 0;
}

int communicator(void** made) {
  *made = reinterpret_cast<void*>(0x40);
  empty_count("communicator", "made", 0);
  return 0;
}

} // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

int ncclGetUniqueId(UniqueId* id) {
  *id = {};
  return 0;
}

int ncclCommInitRankConfig(void** made, int, UniqueId, int, void*) {
  return communicator(made);
}

int ncclCommInitRank(void** made, int, UniqueId, int) {
  return communicator(made);
}

int ncclCommSplit(void*, int, int, void** made, void*) {
  return communicator(made);
}

int ncclCommGetAsyncError(void*, int* error) {
  constexpr int kRemoteError = 6;
  *error = failed ? kRemoteError : 0;
  return 0;
}

int ncclCommAbort(void*) {
  empty_release();
  return 0;
}

const char* ncclGetErrorString(int) {
  return "an error of the empty NCCL";
}

const char* ncclGetLastError(void*) {
  return "";
}

int ncclAllReduce(const void*, void*, size_t elements, int type, int, void*, void* stream) {
  return collective("all-reduce", elements, type, stream);
}

int ncclAllGather(const void*, void*, size_t elements, int type, void*, void* stream) {
  return collective("all-gather", elements, type, stream);
}

int ncclReduceScatter(const void*, void*, size_t elements, int type, int, void*, void* stream) {
  return collective("reduce-scatter", elements, type, stream);
}

int ncclBroadcast(const void*, void*, size_t elements, int type, int, void*, void* stream) {
  return collective("broadcast", elements, type, stream);
}

int ncclAlltoAll(const void*, void*, size_t elements, int type, void*, void* stream) {
  return collective("all-to-all", elements, type, stream);
}

int ncclSend(const void*, size_t elements, int type, int, void*, void* stream) {
  return collective("send", elements, type, stream);
}

int ncclRecv(void*, size_t elements, int type, int, void*, void* stream) {
  return collective("receive", elements, type, stream);
}
}
