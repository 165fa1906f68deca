#pragma once
/// Rows of parquet and Arrow files as JSON lines, over libarrow and libparquet of the pyarrow wheel. Files
/// come from anywhere: what they claim is checked before it is read.

#include <arrow/io/interfaces.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mh::columns {

enum class Form : uint8_t {
  parquet,
  arrow, ///< a file with an index at its end, or a stream, as Hugging Face's `save_to_disk` writes
};

/// A column that was asked for is not there: the file is not at fault.
struct MissingColumn : std::runtime_error {
  using runtime_error::runtime_error;
};

/// The exit status of megahost-columns for it.
inline constexpr int kMissingColumn = 3;

/// Calls `take` with the lines of some rows, an object of the named columns each, in order. Texts are
/// given byte by byte: whether they are UTF-8 is seen by whoever parses the lines.
///
/// most_bytes:  of memory for what is read; a row's line may take a sixteenth of it
/// Throws:      MissingColumn; another std::exception with what is wrong
void write_lines(
    const std::shared_ptr<arrow::io::RandomAccessFile>& file,
    Form form,
    const std::vector<std::string>& columns,
    int64_t most_bytes,
    const std::function<void(std::string_view)>& take
);

} // namespace mh::columns
