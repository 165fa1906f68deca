#pragma once
/// Elements of either type for tests, exactly as long as asked for, so that a sanitizer sees a step
/// beyond them.

#include "core/cuda/table.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace mh::test {

/// bf16 to the nearest, ties to even.
inline float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fffU + ((bits >> 16) & 1U)) & 0xffff0000U);
}

class Elements {
public:
  /// `gap` bytes lie before the first: where it is not 0, no packs can be loaded.
  Elements(cuda::GpuType type, int64_t count, size_t gap = 0)
      : type_(type)
      , count_(count)
      , gap_(gap)
      , memory_(new (std::align_val_t(16)) char[bytes() + gap]()) {}

  void fill(std::mt19937& random, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    for (int64_t i = 0; i < count_; ++i) {
      set(i, normal(random));
    }
  }

  [[nodiscard]] void* data() const { return memory_.get() + gap_; }

  [[nodiscard]] cuda::GpuType type() const { return type_; }

  [[nodiscard]] int64_t count() const { return count_; }

  [[nodiscard]] size_t bytes() const { return static_cast<size_t>(count_) * (wide() ? 4 : 2); }

  [[nodiscard]] float operator[](int64_t i) const {
    if (wide()) {
      return static_cast<const float*>(data())[i];
    }
    return std::bit_cast<float>(
        static_cast<uint32_t>(static_cast<const uint16_t*>(data())[i]) << 16
    );
  }

  [[nodiscard]] Elements copy(size_t gap = 0) const {
    Elements made(type_, count_, gap);
    std::memcpy(made.data(), data(), bytes());
    return made;
  }

  [[nodiscard]] bool same(const Elements& other) const {
    return std::memcmp(data(), other.data(), bytes()) == 0;
  }

private:
  struct Free {
    void operator()(char* memory) const { operator delete[](memory, std::align_val_t(16)); }
  };

  [[nodiscard]] bool wide() const { return type_ == cuda::GpuType::fp32; }

  void set(int64_t i, float x) {
    if (wide()) {
      static_cast<float*>(data())[i] = x;
    } else {
      static_cast<uint16_t*>(data())[i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded(x)) >> 16);
    }
  }

  cuda::GpuType type_;
  int64_t count_;
  size_t gap_;
  std::unique_ptr<char[], Free> memory_;
};

} // namespace mh::test
