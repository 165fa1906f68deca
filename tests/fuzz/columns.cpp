// A fuzz target for parquet and Arrow files, which libarrow reads; the variable FUZZ_PARSER says which. A
// refusal is an exception; a fault, ten seconds or 2 GB are a finding.

#include "core/install/columns.hpp"

#include <arrow/buffer.h>
#include <arrow/io/memory.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace {

mh::columns::Form chosen() {
  const char* name = std::getenv("FUZZ_PARSER");
  const std::string_view parser = name == nullptr ? "" : name;
  if (parser != "parquet" && parser != "arrow") {
    std::fputs("FUZZ_PARSER names no parser; there are\narrow\nparquet\n", stderr);
    std::exit(2);
  }
  return parser == "parquet" ? mh::columns::Form::parquet : mh::columns::Form::arrow;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const mh::columns::Form form = chosen();
  const auto file = std::make_shared<arrow::io::BufferReader>(
      std::make_shared<arrow::Buffer>(data, static_cast<int64_t>(size))
  );
  for (const char* column : {"text", "messages", "kind"}) {
    size_t bytes = 0;
    try {
      mh::columns::write_lines(file, form, {column}, 256 << 20, [&](std::string_view lines) {
        bytes += lines.size();
        if (bytes > 64 << 20) { // one value that is named again and again
          throw std::runtime_error("more text than a fuzzed file needs");
        }
      });
    } catch (const std::exception&) {
    }
  }
  return 0;
}
