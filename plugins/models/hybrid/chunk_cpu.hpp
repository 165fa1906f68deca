#pragma once
/// Parts that the drivers of chunked recurrences' CPU kernels share: the choice of an instruction set,
/// threads and their memory, and what plans count.

#include "chunk_kernels.hpp"

#include <megahost/placement.hpp>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace mh::hybrid {

/// The best instruction set that this CPU has, or a lower one that the core is told to use.
enum class InstructionSet : uint8_t { base, avx2, avx512, avx512bf16 };

[[nodiscard]] InstructionSet instruction_set();

/// Whether it multiplies bf16.
[[nodiscard]] inline bool multiplies_bf16() {
  return instruction_set() == InstructionSet::avx512bf16;
}

/// Tile registers read a row's last numbers together with what lies behind them, unless these are
/// whole tiles. x has four dimensions.
[[nodiscard]] bool whole_tiles(const at::Tensor& x);

/// x as an argument of an autograd function.
inline std::optional<at::Tensor> if_defined(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

/// x with a contiguous last dimension.
[[nodiscard]] at::Tensor whole_rows(const at::Tensor& x);

/// The place of a tensor's elements, which those of the Meta device do not have.
template <class T>
T* data_of(const at::Tensor& x) {
  return x.is_meta() ? nullptr : static_cast<T*>(x.data_ptr());
}

[[nodiscard]] kernels::Strided strided(const at::Tensor& x);

/// The elements of a contiguous float tensor.
[[nodiscard]] float* floats(const at::Tensor& x);

/// Runs kernels over chunks, by all threads, each of which has memory of its own.
class ChunkTasks {
public:
  explicit ChunkTasks(const std::vector<TokenRun>& chunks);

  [[nodiscard]] const kernels::ChunkRows* rows() const { return rows_.data(); }

  [[nodiscard]] int64_t count() const { return static_cast<int64_t>(rows_.size()); }

  [[nodiscard]] int64_t longest() const;

  /// Runs a kernel over so many tasks. On the Meta device of `like` it takes the same memory, and
  /// `counted` is called with the rows of each chunk: plans count its GEMMs.
  template <class Kernels, class Call>
  void
  run(const Kernels& table,
      kernels::ChunkKernel<Call> Kernels::*kernel,
      const Call& call,
      const at::Tensor& like,
      int64_t tasks,
      const std::function<void(int64_t rows)>& counted) {
    const auto part =
        [&](const kernels::ProductKernels& products, void* memory, int64_t begin, int64_t end) {
          (table.*kernel)(call, products, memory, begin, end);
        };
    run(static_cast<int64_t>(table.bytes(call)), tasks, like, part, counted);
  }

  /// Counts GEMMs: what they multiply is any number, so they take no memory.
  void product(int64_t batch, int64_t m, int64_t n, int64_t k) const;

private:
  using Part =
      std::function<void(const kernels::ProductKernels&, void* memory, int64_t begin, int64_t end)>;

  void
  run(int64_t bytes,
      int64_t tasks,
      const at::Tensor& like,
      const Part& part,
      const std::function<void(int64_t rows)>& counted);

  std::vector<kernels::ChunkRows> rows_;
  at::Tensor number_; // what counted GEMMs read and write
};

} // namespace mh::hybrid

/// Declares the tables of each instruction set, and best_NAME(), that of the best one.
#define MH_CHUNK_LEVEL(Kernels, name, level)                                                       \
  namespace mh::kernels::level {                                                                   \
  const ByTypes<Kernels>& name();                                                                  \
  }
#if defined(__x86_64__)
#define MH_CHUNK_KERNELS(Kernels, name)                                                            \
  MH_CHUNK_LEVEL(Kernels, name, base)                                                              \
  MH_CHUNK_LEVEL(Kernels, name, avx2)                                                              \
  MH_CHUNK_LEVEL(Kernels, name, avx512)                                                            \
  MH_CHUNK_LEVEL(Kernels, name, avx512bf16)                                                        \
  namespace mh::hybrid {                                                                           \
  static const kernels::ByTypes<kernels::Kernels>& best_##name() {                                 \
    switch (instruction_set()) {                                                                   \
    case InstructionSet::avx512bf16:                                                               \
      return kernels::avx512bf16::name();                                                          \
    case InstructionSet::avx512:                                                                   \
      return kernels::avx512::name();                                                              \
    case InstructionSet::avx2:                                                                     \
      return kernels::avx2::name();                                                                \
    case InstructionSet::base:                                                                     \
      break;                                                                                       \
    }                                                                                              \
    return kernels::base::name();                                                                  \
  }                                                                                                \
  }
#else
#define MH_CHUNK_KERNELS(Kernels, name)                                                            \
  MH_CHUNK_LEVEL(Kernels, name, base)                                                              \
  namespace mh::hybrid {                                                                           \
  static const kernels::ByTypes<kernels::Kernels>& best_##name() {                                 \
    return kernels::base::name();                                                                  \
  }                                                                                                \
  }
#endif
