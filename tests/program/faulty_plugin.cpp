// A PJRT plugin for tests: XLA's CPU plugin, whose reading of a step's numbers fails once. It also notes how often a client
// is made.

#include "plugins/devices/pjrt/pjrt_c_api.h"

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

namespace {

const PJRT_Api* g_real = nullptr;
std::atomic<int> g_reads = 0;
char g_error = 0; // its address is the error
constexpr std::string_view kMessage = "the device is gone";

PJRT_Error* own_error() {
  return reinterpret_cast<PJRT_Error*>(&g_error);
}

void message_of(PJRT_Error_Message_Args* args) {
  if (args->error != own_error()) {
    g_real->PJRT_Error_Message(args);
    return;
  }
  args->message = kMessage.data();
  args->message_size = kMessage.size();
}

void destroy_error(PJRT_Error_Destroy_Args* args) {
  if (args->error != own_error()) {
    g_real->PJRT_Error_Destroy(args);
  }
}

PJRT_Error* code_of(PJRT_Error_GetCode_Args* args) {
  if (args->error != own_error()) {
    return g_real->PJRT_Error_GetCode(args);
  }
  args->code = PJRT_Error_Code_INTERNAL;
  return nullptr;
}

PJRT_Error* make_client(PJRT_Client_Create_Args* args) {
  if (const char* file = std::getenv("MEGAHOST_TEST_CLIENTS")) {
    std::ofstream(file, std::ios::app) << "client\n";
  }
  return g_real->PJRT_Client_Create(args);
}

/// The read of that number of MEGAHOST_TEST_FAILS fails, of those of a scalar.
PJRT_Error* read_buffer(PJRT_Buffer_ToHostBuffer_Args* args) {
  const char* fails = std::getenv("MEGAHOST_TEST_FAILS");
  if (fails != nullptr && args->dst != nullptr && args->dst_size <= sizeof(double) &&
      ++g_reads == std::atoi(fails)) {
    return own_error();
  }
  return g_real->PJRT_Buffer_ToHostBuffer(args);
}

} // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static std::vector<std::max_align_t> table;
  if (table.empty()) {
    void* library = dlopen(std::getenv("MEGAHOST_XLA_CPU"), RTLD_NOW | RTLD_LOCAL);
    g_real = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
    table.resize(g_real->struct_size / sizeof(std::max_align_t) + 1);
    std::memcpy(table.data(), g_real, g_real->struct_size);
    auto* api = reinterpret_cast<PJRT_Api*>(table.data());
    api->PJRT_Error_Message = message_of;
    api->PJRT_Error_Destroy = destroy_error;
    api->PJRT_Error_GetCode = code_of;
    api->PJRT_Client_Create = make_client;
    api->PJRT_Buffer_ToHostBuffer = read_buffer;
  }
  return reinterpret_cast<const PJRT_Api*>(table.data());
}
