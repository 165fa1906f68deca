// megahost-columns FILE COLUMN...: the rows of a parquet or Arrow file as JSON lines on standard
// output, an object of the named columns; says on the standard error what is wrong. A process of
// its own, over libarrow and libparquet of the pyarrow wheel, which bring much that LibTorch brings
// too.

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Columns = std::vector<std::string>;

template <class T>
T value_of(arrow::Result<T> result) {
  if (!result.ok()) {
    throw std::runtime_error(result.status().message());
  }
  return std::move(result).ValueUnsafe();
}

void require(const arrow::Status& status) {
  if (!status.ok()) {
    throw std::runtime_error(status.message());
  }
}

void append_text(std::string_view text, std::string& ret_json) {
  ret_json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      ret_json += '\\';
      ret_json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(c));
      ret_json += code;
    } else {
      ret_json += c;
    }
  }
  ret_json += '"';
}

void append_value(const arrow::Array& array, int64_t row, std::string& ret_json);

template <class List>
void append_list(const arrow::Array& array, int64_t row, std::string& ret_json) {
  const auto& list = static_cast<const List&>(array);
  ret_json += '[';
  for (auto i = list.value_offset(row); i < list.value_offset(row + 1); ++i) {
    ret_json += i > list.value_offset(row) ? "," : "";
    append_value(*list.values(), i, ret_json);
  }
  ret_json += ']';
}

void append_struct(const arrow::StructArray& array, int64_t row, std::string& ret_json) {
  ret_json += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    ret_json += i > 0 ? "," : "";
    append_text(array.struct_type()->field(i)->name(), ret_json);
    ret_json += ':';
    append_value(*array.field(i), row, ret_json);
  }
  ret_json += '}';
}

/// Lists and structs as JSON's; what is no text, number or truth as a text.
void append_value(const arrow::Array& array, int64_t row, std::string& ret_json) {
  if (array.IsNull(row)) {
    ret_json += "null";
    return;
  }
  switch (array.type_id()) {
  case arrow::Type::STRING:
    return append_text(static_cast<const arrow::StringArray&>(array).GetView(row), ret_json);
  case arrow::Type::LARGE_STRING:
    return append_text(static_cast<const arrow::LargeStringArray&>(array).GetView(row), ret_json);
  case arrow::Type::STRING_VIEW:
    return append_text(static_cast<const arrow::StringViewArray&>(array).GetView(row), ret_json);
  case arrow::Type::LIST:
    return append_list<arrow::ListArray>(array, row, ret_json);
  case arrow::Type::LARGE_LIST:
    return append_list<arrow::LargeListArray>(array, row, ret_json);
  case arrow::Type::STRUCT:
    return append_struct(static_cast<const arrow::StructArray&>(array), row, ret_json);
  case arrow::Type::DICTIONARY: {
    const auto& words = static_cast<const arrow::DictionaryArray&>(array);
    return append_value(*words.dictionary(), words.GetValueIndex(row), ret_json);
  }
  default:
    const std::string text = value_of(array.GetScalar(row))->ToString();
    if (arrow::is_integer(array.type_id()) || array.type_id() == arrow::Type::BOOL) {
      ret_json += text;
    } else {
      append_text(text, ret_json);
    }
  }
}

void write_rows(const arrow::RecordBatch& batch, const Columns& columns) {
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const std::string& column : columns) {
    arrays.push_back(batch.GetColumnByName(column));
  }
  std::string lines;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    lines += '{';
    for (size_t i = 0; i < columns.size(); ++i) {
      lines += i > 0 ? "," : "";
      append_text(columns[i], lines);
      lines += ':';
      append_value(*arrays[i], row, lines);
    }
    lines += "}\n";
    if (lines.size() > 1 << 20 || row + 1 == batch.num_rows()) {
      if (std::fwrite(lines.data(), 1, lines.size(), stdout) != lines.size()) {
        throw std::runtime_error("the rows cannot be written");
      }
      lines.clear();
    }
  }
}

void require_columns(const arrow::Schema& schema, const Columns& columns) {
  for (const std::string& column : columns) {
    if (schema.GetFieldIndex(column) < 0) {
      std::string there;
      for (const std::string& name : schema.field_names()) {
        there += (there.empty() ? "" : ", ") + name;
      }
      throw std::runtime_error("it has no column " + column + ", but " + there);
    }
  }
}

void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& ret_leaves) {
  if (field.is_leaf()) {
    ret_leaves.push_back(field.column_index);
  }
  for (const auto& child : field.children) {
    add_leaves(child, ret_leaves);
  }
}

void read_parquet(
    const std::shared_ptr<arrow::io::RandomAccessFile>& file, const Columns& columns
) {
  const auto reader = value_of(parquet::arrow::OpenFile(file, arrow::default_memory_pool()));
  std::shared_ptr<arrow::Schema> schema;
  require(reader->GetSchema(&schema));
  require_columns(*schema, columns);
  std::vector<int> leaves;
  for (const auto& field : reader->manifest().schema_fields) {
    if (std::ranges::find(columns, field.field->name()) != columns.end()) {
      add_leaves(field, leaves);
    }
  }
  reader->set_use_threads(false);
  reader->set_batch_size(1024);
  for (int group = 0; group < reader->num_row_groups(); ++group) {
    const auto batches = value_of(reader->GetRecordBatchReader({group}, leaves));
    while (const auto batch = value_of(batches->Next())) {
      write_rows(*batch, columns);
    }
  }
}

/// A file with an index at its end, or a stream, as Hugging Face's `save_to_disk` writes.
void read_arrow(const std::shared_ptr<arrow::io::RandomAccessFile>& file, const Columns& columns) {
  const auto magic = value_of(file->ReadAt(0, 6));
  if (magic->ToString() == "ARROW1") {
    const auto reader = value_of(arrow::ipc::RecordBatchFileReader::Open(file));
    require_columns(*reader->schema(), columns);
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      write_rows(*value_of(reader->ReadRecordBatch(i)), columns);
    }
    return;
  }
  require(file->Seek(0));
  const auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(file));
  require_columns(*reader->schema(), columns);
  while (const auto batch = value_of(reader->Next())) {
    write_rows(*batch, columns);
  }
}

} // namespace

int main(int count, char** words) {
  if (count < 3) {
    std::fputs("usage: megahost-columns FILE COLUMN...\n", stderr);
    return 2;
  }
  try {
    const std::string path = words[1];
    const Columns columns(words + 2, words + count);
    const auto file = value_of(arrow::io::ReadableFile::Open(path));
    if (path.ends_with(".parquet")) {
      read_parquet(file, columns);
    } else {
      read_arrow(file, columns);
    }
    if (std::fflush(stdout) != 0) {
      throw std::runtime_error("the rows cannot be written");
    }
  } catch (const std::exception& error) {
    std::fputs(error.what(), stderr);
    return 1;
  }
  return 0;
}
