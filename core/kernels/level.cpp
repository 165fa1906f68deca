#include "core/kernels/level.hpp"

#include "megahost/error.hpp"

#include <ATen/native/CPUBlas.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <cstdlib>
#include <exception>
#include <string>

#define MH_KERNEL_LEVEL(name)                                                                      \
  namespace mh::kernels::name {                                                                    \
  const KernelTable& table();                                                                      \
  }
#if defined(__x86_64__)
MH_KERNEL_LEVEL(avx512bf16)
MH_KERNEL_LEVEL(avx512)
MH_KERNEL_LEVEL(avx2)
#endif
MH_KERNEL_LEVEL(base)
#if defined(__x86_64__)
namespace mh::kernels::amx {
const TileKernels& tile_kernels();
}
#endif

namespace mh::kernels {

namespace {

const at::BFloat16* of(const Bf16* x) {
  return reinterpret_cast<const at::BFloat16*>(x);
}

#if defined(__x86_64__)
/// Whether the CPU has tile registers with bf16 products, and the kernel lets this process use them.
///
/// Source:  Linux, Documentation/arch/x86/xstate.rst: ARCH_REQ_XCOMP_PERM for XTILE_DATA
bool may_use_tiles() {
  constexpr unsigned kBf16 = 1U << 22, kTiles = 1U << 24; // leaf 7, edx
  constexpr int kRequest = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kBf16) != 0 && (d & kTiles) != 0 &&
         ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}
#endif

std::vector<Level> supported() {
  std::vector<Level> found;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && may_use_tiles()) {
    found.push_back({"amx", &avx512bf16::table(), true, &amx::tile_kernels()});
  }
  if (bf16) {
    found.push_back({"avx512bf16", &avx512bf16::table(), true});
  }
  if (avx512) {
    found.push_back({"avx512", &avx512::table(), true});
  }
  if (avx2) {
    found.push_back({"avx2", &avx2::table()});
  }
#endif
  found.push_back({"base", &base::table()});
  return found;
}

Level chosen() {
  const char* wanted = std::getenv("MEGAHOST_CPU_LEVEL");
  std::string names;
  for (const auto& level : levels()) {
    if (wanted == nullptr || level.name == wanted) {
      return level;
    }
    names += (names.empty() ? "" : ", ") + std::string(level.name);
  }
  throw Error(
      "MEGAHOST_CPU_LEVEL is `" + std::string(wanted) + "`, which this CPU does not have",
      "here there are: " + names
  );
}

Level& current() {
  static Level level = chosen();
  return level;
}

} // namespace

const std::vector<Level>& levels() {
  static const std::vector<Level> kLevels = supported();
  return kLevels;
}

const Level& level() {
  return current();
}

const KernelTable& table() {
  return *current().table;
}

void use_level(const Level& level) {
  current() = level;
}

const ProductKernels& products() {
  using at::native::cpublas::brgemm;
  static constexpr ProductKernels kProducts = {
      .bf16 = [](const ProductSize& s, const Bf16* a, const Bf16* b, float* c
              ) { brgemm(s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.add, of(a), of(b), c, true); },
      .fp32 = [](const ProductSize& s, const float* a, const float* b, float* c
              ) { brgemm(s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.add, a, b, c, false); },
  };
  return kProducts;
}

bool multiplies_bf16() {
  static const bool kWorks = [] {
    const std::array<at::BFloat16, 64> a{};
    const std::array<at::BFloat16, 64> b{};
    std::array<float, 16> c{};
    try {
      at::native::cpublas::brgemm(4, 4, 16, 16, 4, 4, false, a.data(), b.data(), c.data(), true);
    } catch (const std::exception&) { // LibTorch's error, or oneDNN's on AVX-512 without bf16
      return false;
    }
    release_tiles();
    return true;
  }();
  return kWorks && level().bf16;
}

void release_tiles() {
  at::native::cpublas::brgemm_release();
}

} // namespace mh::kernels
