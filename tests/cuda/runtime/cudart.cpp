/// libcudart.so.13 without a GPU: the functions that LibTorch's CUDA half asks for. Nothing is
/// computed: launches, copies and waits are counted and are over at once. A function that is
/// missing here returns 0 and is counted by its name (stand_ins.py).

#include "counts.hpp"
#include "gpus.hpp"
#include "memory.hpp"
#include "streams.hpp"

#include <cuda_runtime_api.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace {

using empty::Memory;

thread_local int current = 0;
thread_local cudaError_t last = cudaSuccess;

cudaError_t fail(cudaError_t error) {
  return last = error;
}

/// A number as a handle, for streams, events and pools.
template <class Handle>
cudaError_t handle(Handle* made) {
  static std::atomic<uintptr_t> next{16};
  *made = reinterpret_cast<Handle>(next++ * 16);
  return cudaSuccess;
}

cudaError_t state_of(void* stream_or_event) {
  return empty::done(stream_or_event) ? cudaSuccess : cudaErrorNotReady;
}

// Launches

/// Names of kernels by the address that a launch gives.
class Kernels {
public:
  static Kernels& own() {
    static auto* const kernels = new Kernels;
    return *kernels;
  }

  void add(const void* function, const char* mangled) {
    const std::scoped_lock lock(mutex_);
    names_[function] = mangled;
  }

  cudaError_t launch(const void* function) {
    const std::string name = name_of(function);
    empty_count("kernel", name.c_str(), 0);
    return cudaSuccess;
  }

private:
  std::string name_of(const void* function) {
    const std::scoped_lock lock(mutex_);
    const auto known = readable_.find(function);
    if (known != readable_.end()) {
      return known->second;
    }
    const auto found = names_.find(function);
    if (found == names_.end()) {
      return "unknown";
    }
    int status = 0;
    char* text = abi::__cxa_demangle(found->second.c_str(), nullptr, nullptr, &status);
    const std::string name = status == 0 ? text : found->second;
    std::free(text);
    return readable_[function] = name;
  }

  std::mutex mutex_;
  std::unordered_map<const void*, std::string> names_, readable_;
};

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};

thread_local Configuration configuration;

// Copies

const char* text(Memory memory) {
  return memory == Memory::pinned ? "pinned" : "pageable";
}

void copy(void* to, const void* from, size_t bytes, const char* how) {
  const Memory target = empty::kind_of(to), source = empty::kind_of(from);
  std::string name;
  if (target == Memory::device && source == Memory::device) {
    name = "D2D";
  } else if (target == Memory::device) {
    name = std::string("H2D ") + text(source);
  } else if (source == Memory::device) {
    name = std::string("D2H ") + text(target);
    empty::fetch(to, bytes);
  } else {
    name = "H2H";
    std::memmove(to, from, bytes);
  }
  empty_count("copy", (name + how).c_str(), static_cast<double>(bytes));
}

cudaError_t allocate(void** made, size_t bytes, Memory kind) {
  *made = empty::take(std::max<size_t>(bytes, 1), kind, current);
  empty_count(
      "allocation", kind == Memory::device ? "device" : "pinned", static_cast<double>(bytes)
  );
  return *made == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

int nothing() {
  return 0;
}

} // namespace

extern "C" {

// Devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(empty::gpus().size());
  return *count == 0 ? fail(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || static_cast<size_t>(device) >= empty::gpus().size()) {
    return fail(cudaErrorInvalidDevice);
  }
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  *p = {};
  std::strcpy(p->name, empty::kName);
  empty::uuid(device, p->uuid.bytes);
  p->totalGlobalMem = empty::kMemory;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = empty::kMajor;
  p->minor = empty::kMinor;
  p->textureAlignment = 512;
  p->multiProcessorCount = 132;
  p->l2CacheSize = 52428800;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->unifiedAddressing = p->concurrentKernels = p->cooperativeLaunch = p->managedMemory = 1;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, device);
  switch (attribute) {
  case cudaDevAttrMultiProcessorCount:
    *value = p.multiProcessorCount;
    break;
  case cudaDevAttrComputeCapabilityMajor:
    *value = p.major;
    break;
  case cudaDevAttrComputeCapabilityMinor:
    *value = p.minor;
    break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = static_cast<int>(p.sharedMemPerBlockOptin);
    break;
  case cudaDevAttrMaxSharedMemoryPerBlock:
    *value = static_cast<int>(p.sharedMemPerBlock);
    break;
  case cudaDevAttrMaxThreadsPerBlock:
    *value = p.maxThreadsPerBlock;
    break;
  case cudaDevAttrMaxThreadsPerMultiProcessor:
    *value = p.maxThreadsPerMultiProcessor;
    break;
  case cudaDevAttrMaxBlocksPerMultiprocessor:
    *value = p.maxBlocksPerMultiProcessor;
    break;
  case cudaDevAttrWarpSize:
    *value = p.warpSize;
    break;
  case cudaDevAttrMaxGridDimX:
    *value = p.maxGridSize[0];
    break;
  case cudaDevAttrMaxGridDimY:
  case cudaDevAttrMaxGridDimZ:
    *value = p.maxGridSize[1];
    break;
  case cudaDevAttrL2CacheSize:
    *value = p.l2CacheSize;
    break;
  default:
    *value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = empty::kDriver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(
      text,
      static_cast<size_t>(length),
      "0000:%02x:00.0",
      empty::gpus().at(static_cast<size_t>(device))
  );
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  return handle(pool);
}

cudaError_t cudaDeviceSynchronize() {
  empty_count("wait", "device", 0);
  empty::await_all();
  return cudaSuccess;
}

// Errors

cudaError_t cudaGetLastError() {
  return std::exchange(last, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return last;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess:
    return "no error";
  case cudaErrorMemoryAllocation:
    return "out of memory";
  case cudaErrorNoDevice:
    return "no CUDA-capable device is detected";
  case cudaErrorInvalidDevice:
    return "invalid device ordinal";
  default:
    return "an error of the empty runtime";
  }
}

// Memory

cudaError_t cudaMalloc(void** made, size_t bytes) {
  return allocate(made, bytes, Memory::device);
}

cudaError_t cudaMallocAsync(void** made, size_t bytes, cudaStream_t) {
  return allocate(made, bytes, Memory::device);
}

cudaError_t cudaHostAlloc(void** made, size_t bytes, unsigned) {
  return allocate(made, bytes, Memory::pinned);
}

cudaError_t cudaFree(void* start) {
  empty::drop(start);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* start, cudaStream_t) {
  empty::drop(start);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* start) {
  empty::drop(start);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* start, size_t bytes, unsigned) {
  empty::pin(start, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* start) {
  empty::unpin(start);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = empty::free_bytes(current);
  *total = empty::kMemory;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  *found = {};
  switch (empty::kind_of(address, &found->device)) {
  case Memory::device:
    found->type = cudaMemoryTypeDevice;
    break;
  case Memory::pinned:
    found->type = cudaMemoryTypeHost;
    break;
  case Memory::pageable:
    found->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
  }
  found->devicePointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** found, const void*) {
  *found = empty::take(1 << 16, Memory::device, current);
  return cudaSuccess;
}

// Copies

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  copy(to, from, bytes, " blocking");
  return cudaSuccess;
}

cudaError_t
cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  copy(to, from, bytes, "");
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(
    void* to,
    size_t to_pitch,
    const void* from,
    size_t from_pitch,
    size_t width,
    size_t height,
    cudaMemcpyKind,
    cudaStream_t
) {
  for (size_t row = 0; row < height; ++row) {
    copy(
        static_cast<char*>(to) + row * to_pitch,
        static_cast<const char*>(from) + row * from_pitch,
        width,
        " rows"
    );
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t bytes, cudaStream_t) {
  empty_count("copy", "peer", static_cast<double>(bytes));
  return cudaSuccess;
}

cudaError_t cudaMemset(void*, int, size_t bytes) {
  empty_count("fill", "blocking", static_cast<double>(bytes));
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void*, int, size_t bytes, cudaStream_t) {
  empty_count("fill", "async", static_cast<double>(bytes));
  return cudaSuccess;
}

// Streams and events

cudaError_t cudaStreamCreate(cudaStream_t* made) {
  return handle(made);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* made, unsigned, int) {
  return handle(made);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  empty_count("wait", "stream", 0);
  empty::await(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return state_of(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  empty::wait_for(stream, event);
  return cudaSuccess;
}

cudaError_t
cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t
cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return fail(cudaErrorNotSupported);
}

cudaError_t cudaEventCreate(cudaEvent_t* made) {
  return handle(made);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  return handle(made);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  empty::record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  empty::record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return state_of(event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  empty_count("wait", "event", 0);
  empty::await(event);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

// Kernels

void** __cudaRegisterFatBinary(void*) {
  static void* handle[2];
  return handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) {
  return 0;
}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
  Kernels::own().add(function, name);
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return Kernels::own().launch(kernel);
}

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return Kernels::own().launch(function);
}

cudaError_t
cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return Kernels::own().launch(function);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return Kernels::own().launch(function);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  *found = {};
  found->maxThreadsPerBlock = 1024;
  found->numRegs = 64;
  found->binaryVersion = found->ptxVersion = empty::kMajor * 10 + empty::kMinor;
  found->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  *count = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* count, const void*, int, size_t, unsigned
) {
  *count = 2;
  return cudaSuccess;
}

/// The driver's functions, for those who do not link it: its stand-in's, or one that returns 0.
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name,
    void** found,
    unsigned,
    unsigned long long,
    cudaDriverEntryPointQueryResult* result
) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  *found = driver == nullptr ? nullptr : dlsym(driver, name);
  if (*found == nullptr) {
    *found = reinterpret_cast<void*>(&nothing);
  }
  if (result != nullptr) {
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
}
