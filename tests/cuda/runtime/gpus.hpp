#pragma once
/// The GPUs that the stand-ins pretend: EMPTY_CUDA_GPUS of them (1), of which CUDA_VISIBLE_DEVICES
/// may show some, as on a real machine.

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace empty {

constexpr const char* kName = "NVIDIA H100 80GB HBM3";
constexpr size_t kMemory = 85'029'158'912;
constexpr int kMajor = 9, kMinor = 0, kDriver = 13000;

/// Numbers of the visible ones, in their order.
inline const std::vector<int>& gpus() {
  static const auto* const visible = [] {
    const char* count = std::getenv("EMPTY_CUDA_GPUS");
    const int all = count == nullptr ? 1 : std::atoi(count);
    auto* found = new std::vector<int>;
    const char* shown = std::getenv("CUDA_VISIBLE_DEVICES");
    if (shown == nullptr) {
      for (int i = 0; i < all; ++i) {
        found->push_back(i);
      }
      return found;
    }
    std::istringstream list(shown);
    for (std::string one; std::getline(list, one, ',');) {
      const int number = std::atoi(one.c_str());
      if (number < 0 || number >= all) {
        break; // as CUDA does: what follows an unknown one is not seen
      }
      found->push_back(number);
    }
    return found;
  }();
  return *visible;
}

/// 16 bytes that tell visible GPU `index` from all others.
inline void uuid(int index, char* bytes) {
  std::memset(bytes, 0, 16);
  bytes[0] = 'G';
  bytes[15] = static_cast<char>(gpus().at(static_cast<size_t>(index)) + 1);
}

} // namespace empty
