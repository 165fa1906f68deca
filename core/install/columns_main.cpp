// megahost-columns FILE COLUMN...: the rows of a parquet or Arrow file as JSON lines on standard
// output, an object of the named columns; says on the standard error what is wrong. A process of
// its own, over libarrow and libparquet of the pyarrow wheel, which bring much that LibTorch brings
// too.

#include "core/install/columns.hpp"

#include <arrow/io/api.h>
#include <arrow/result.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace {

constexpr int64_t kMostBytes = int64_t{16} << 30;

void print(std::string_view lines) {
  if (std::fwrite(lines.data(), 1, lines.size(), stdout) != lines.size()) {
    throw std::runtime_error("the rows cannot be written");
  }
}

} // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fputs("usage: megahost-columns FILE COLUMN...\n", stderr);
    return 2;
  }
  try {
    using mh::columns::Form;
    const std::string path = words[1];
    const auto file = arrow::io::ReadableFile::Open(path);
    if (!file.ok()) {
      throw std::runtime_error(file.status().message());
    }
    const Form form = path.ends_with(".parquet") ? Form::parquet : Form::arrow;
    mh::columns::write_lines(*file, form, {words + 2, words + count}, kMostBytes, print);
    if (std::fflush(stdout) != 0) {
      throw std::runtime_error("the rows cannot be written");
    }
  } catch (const mh::columns::MissingColumn& error) {
    std::fputs(error.what(), stderr);
    return mh::columns::kMissingColumn;
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    return 1;
  }
  return 0;
}
