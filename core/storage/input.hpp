#pragma once
/// Bytes that are read from their beginning to their end: a file, the standard input, or what
/// another program makes of a file.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace mh {

class InputStream {
public:
  virtual ~InputStream();

  /// Fills the buffer, or less of it; 0 at the end.
  ///
  /// Throws:  mh::Error (exit code 5) if it cannot be read, or is damaged
  [[nodiscard]] virtual size_t read(std::span<char> ret_buffer) = 0;

  /// Leaves out bytes; fewer at the end.
  virtual void skip(uint64_t bytes);
};

/// Opens a path; "-" is the standard input.
using OpenInput = std::function<std::unique_ptr<InputStream>(const std::string& path)>;

/// A file as it is. Throws:  StorageError
[[nodiscard]] std::unique_ptr<InputStream> open_file_input(const std::string& path);

/// Whether a name is that of a compressed file: .gz, .zst, .xz or .bz2.
[[nodiscard]] bool is_compressed_name(const std::string& name);

/// Whether a name is that of a file of columns: .parquet or .arrow.
[[nodiscard]] bool is_columns_name(const std::string& name);

/// The name without the ending of compression.
[[nodiscard]] std::string without_compression(const std::string& name);

} // namespace mh
