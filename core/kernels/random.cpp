#include "megahost/random.hpp"

#include "megahost/error.hpp"
#include "megahost/parallel.hpp"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace mh {

uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL ^ (seed * 0x9e3779b97f4a7c15ULL); // FNV-1a, then mixed
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  std::array<uint32_t, 4> c = {
      static_cast<uint32_t>(counter_low),
      static_cast<uint32_t>(counter_low >> 32),
      static_cast<uint32_t>(counter_high),
      static_cast<uint32_t>(counter_high >> 32)};
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0,
        static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1,
        static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

namespace {

/// Four standard normals from four words (Box-Muller).
std::array<float, 4> normals(const std::array<uint32_t, 4>& words) {
  std::array<float, 4> z;
  for (size_t i = 0; i < 4; i += 2) {
    const float u = (static_cast<float>(words[i] >> 8) + 1.0F) * 0x1p-24F; // (0, 1]
    const float angle =
        static_cast<float>(words[i + 1] >> 8) * 0x1p-24F * 2.0F * std::numbers::pi_v<float>;
    const float radius = std::sqrt(-2.0F * std::log(u));
    z[i] = radius * std::cos(angle);
    z[i + 1] = radius * std::sin(angle);
  }
  return z;
}

/// Numbers of which each four come from four words.
template <class Number>
void by_fours(
    uint64_t key,
    int64_t first,
    std::span<double> ret_values,
    std::array<Number, 4> (*four)(const std::array<uint32_t, 4>& words)
) {
  const auto end = first + static_cast<int64_t>(ret_values.size());
  for (int64_t at = first; at < end;) {
    const auto made = four(philox(key, static_cast<uint64_t>(at / 4), 0));
    for (int64_t lane = at % 4; lane < 4 && at < end; ++lane, ++at) {
      ret_values[static_cast<size_t>(at - first)] = made[static_cast<size_t>(lane)];
    }
  }
}

std::array<double, 4> uniforms(const std::array<uint32_t, 4>& words) {
  std::array<double, 4> u;
  std::transform(words.begin(), words.end(), u.begin(), [](uint32_t word) {
    return (word >> 8) * 0x1p-24;
  });
  return u;
}

} // namespace

void standard_normals(uint64_t key, int64_t first, std::span<double> ret_values) {
  by_fours(key, first, ret_values, &normals);
}

void standard_uniforms(uint64_t key, int64_t first, std::span<double> ret_values) {
  by_fours(key, first, ret_values, &uniforms);
}

void fill_rows(
    at::Tensor slice,
    const std::vector<int64_t>& global_shape,
    const std::vector<int64_t>& offset,
    const std::function<void(int64_t first, std::span<double> ret_values)>& write
) {
  if (slice.is_meta() || slice.numel() == 0) {
    return;
  }
  if (!slice.is_cpu()) {
    at::Tensor host = at::Tensor(slice.cpu()).contiguous();
    fill_rows(host, global_shape, offset, write);
    slice.copy_(host);
    return;
  }
  MH_ASSERT(slice.stride(-1) == 1, "the last dimension of a parameter is contiguous");
  const auto sizes = slice.sizes();
  const auto strides = slice.strides();
  const int64_t inner = sizes.back();
  const int64_t rows = slice.numel() / inner;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, slice.scalar_type(), "fill_rows", [&] {
    auto* data = slice.mutable_data_ptr<scalar_t>();
    parallel_for(0, rows, std::max<int64_t>(1, 8192 / inner), [&](int64_t begin, int64_t end) {
      std::vector<double> values(static_cast<size_t>(inner));
      for (int64_t row = begin; row < end; ++row) {
        // The first element of this row, in the slice and in the global tensor.
        int64_t rest = row;
        int64_t local = 0;
        int64_t global = offset.back();
        int64_t global_stride = global_shape.back();
        for (int64_t d = slice.dim() - 2; d >= 0; --d) {
          const int64_t at_d = rest % sizes[d];
          rest /= sizes[d];
          local += at_d * strides[d];
          global += (at_d + offset[static_cast<size_t>(d)]) * global_stride;
          global_stride *= global_shape[static_cast<size_t>(d)];
        }
        write(global, values);
        std::transform(values.begin(), values.end(), data + local, [](double value) {
          return static_cast<scalar_t>(value);
        });
      }
    });
  });
}

} // namespace mh
