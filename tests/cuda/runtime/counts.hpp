#pragma once
/// The counts of the stand-ins, in one file per process that always shows the current figures,
/// however the process ends.
///
/// The folder is named by EMPTY_CUDA_COUNTS (without it nothing is kept), the file by the process's
/// number. It is a table of records (`CountRecord`), the first without a name ends it; counts.py
/// reads it.

#include <cstddef>
#include <cstdint>

struct CountRecord {
  char name[240]; ///< "kind name": "kernel void at::...", "wait stream", "copy D2H pinned"
  uint64_t count;
  double amount; ///< bytes, floating-point operations, or a peak
};

constexpr size_t kCountRecords = 4096;

extern "C" {

/// One more of `kind` `name`, and so much of it.
void empty_count(const char* kind, const char* name, double amount);

/// The largest amount that was ever told.
void empty_most(const char* kind, const char* name, double amount);
}
