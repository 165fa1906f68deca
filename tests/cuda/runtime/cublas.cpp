/// libcublas.so.13 without a GPU: GEMMs are counted with their shape and their work.

#include "counts.hpp"

#include <cstdint>
#include <cstdio>

namespace {

int gemm(const char* what, int64_t m, int64_t n, int64_t k, int64_t count) {
  char text[160];
  std::snprintf(
      text,
      sizeof(text),
      "%s m %lld n %lld k %lld x %lld",
      what,
      static_cast<long long>(m),
      static_cast<long long>(n),
      static_cast<long long>(k),
      static_cast<long long>(count)
  );
  empty_count(
      "gemm",
      text,
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
          static_cast<double>(count)
  );
  return 0;
}

/// cudaDataType_t, as far as a model's GEMMs have them.
const char* type(int number) {
  switch (number) {
  case 0:
    return "fp32";
  case 1:
    return "fp64";
  case 2:
    return "fp16";
  case 14:
    return "bf16";
  default:
    return "other";
  }
}

int typed(int operand, int result, int64_t m, int64_t n, int64_t k, int64_t count) {
  char text[40];
  std::snprintf(text, sizeof(text), "%s into %s", type(operand), type(result));
  return gemm(text, m, n, k, count);
}

} // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = reinterpret_cast<void*>(0x10);
  return 0;
}

int cublasGetMathMode(void*, int* mode) {
  *mode = 0;
  return 0;
}

int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = 0;
  return 0;
}

int cublasGemmEx(
    void*,
    int,
    int,
    int m,
    int n,
    int k,
    const void*,
    const void*,
    int a,
    int,
    const void*,
    int,
    int,
    const void*,
    void*,
    int c,
    int,
    int,
    int
) {
  return typed(a, c, m, n, k, 1);
}

int cublasSgemmEx(
    void*,
    int,
    int,
    int m,
    int n,
    int k,
    const float*,
    const void*,
    int a,
    int,
    const void*,
    int,
    int,
    const float*,
    void*,
    int c,
    int
) {
  return typed(a, c, m, n, k, 1);
}

int cublasGemmStridedBatchedEx(
    void*,
    int,
    int,
    int m,
    int n,
    int k,
    const void*,
    const void*,
    int a,
    int,
    long long,
    const void*,
    int,
    int,
    long long,
    const void*,
    void*,
    int c,
    int,
    long long,
    int count,
    int,
    int
) {
  return typed(a, c, m, n, k, count);
}

int cublasSgemm_v2(void*, int, int, int m, int n, int k) {
  return gemm("fp32 into fp32", m, n, k, 1);
}

int cublasDgemm_v2(void*, int, int, int m, int n, int k) {
  return gemm("fp64 into fp64", m, n, k, 1);
}

int cublasSgemmStridedBatched(
    void*,
    int,
    int,
    int m,
    int n,
    int k,
    const float*,
    const float*,
    int,
    long long,
    const float*,
    int,
    long long,
    const float*,
    float*,
    int,
    long long,
    int count
) {
  return gemm("fp32 into fp32", m, n, k, count);
}

int cublasDgemmStridedBatched(
    void*,
    int,
    int,
    int m,
    int n,
    int k,
    const double*,
    const double*,
    int,
    long long,
    const double*,
    int,
    long long,
    const double*,
    double*,
    int,
    long long,
    int count
) {
  return gemm("fp64 into fp64", m, n, k, count);
}

int cublasSgemv_v2(void*, int, int m, int n) {
  return gemm("fp32 vector", m, 1, n, 1);
}

int cublasDgemv_v2(void*, int, int m, int n) {
  return gemm("fp64 vector", m, 1, n, 1);
}
}
