#pragma once
/// The functions of a test: `expect(holds, sentence)`, and `failures` as the program's exit status.

#include <cstdio>

inline int failures = 0;

inline void expect(bool holds, const char* sentence) {
  failures += holds ? 0 : 1;
  std::printf("%s: %s\n", holds ? "ok" : "FAILED", sentence);
}
