#include "core/install/columns.hpp"

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <arrow/util/byte_size.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace mh::columns {

namespace {

using ColumnNames = std::vector<std::string>;
using Take = std::function<void(std::string_view)>;

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

constexpr int kMostLevels = 64;        // structs and lists within each other
constexpr int64_t kManyRows = 1 << 20; // rows of a batch

/// The place of a value in its row.
struct RowPlace {
  size_t most = 0; ///< bytes of the text when the row ends
  int level = 0;

  [[nodiscard]] RowPlace below() const { return {most, level + 1}; }
};

void append_value(const arrow::Array& array, int64_t row, RowPlace place, std::string& ret_json);

template <class List>
void append_list(const arrow::Array& array, int64_t row, RowPlace place, std::string& ret_json) {
  const auto& list = static_cast<const List&>(array);
  ret_json += '[';
  for (auto i = list.value_offset(row); i < list.value_offset(row + 1); ++i) {
    ret_json += i > list.value_offset(row) ? "," : "";
    append_value(*list.values(), i, place.below(), ret_json);
  }
  ret_json += ']';
}

void append_struct(
    const arrow::StructArray& array, int64_t row, RowPlace place, std::string& ret_json
) {
  ret_json += '{';
  for (int i = 0; i < array.num_fields(); ++i) {
    ret_json += i > 0 ? "," : "";
    append_text(array.struct_type()->field(i)->name(), ret_json);
    ret_json += ':';
    append_value(*array.field(i), row, place.below(), ret_json);
  }
  ret_json += '}';
}

/// Lists and structs as JSON's; what is no text, number or truth as a text.
void append_value(const arrow::Array& array, int64_t row, RowPlace place, std::string& ret_json) {
  if (place.level > kMostLevels) {
    throw std::runtime_error("a column has more than 64 levels");
  }
  if (ret_json.size() > place.most) {
    throw std::runtime_error("a row is longer than is held in memory");
  }
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
    return append_list<arrow::ListArray>(array, row, place, ret_json);
  case arrow::Type::LARGE_LIST:
    return append_list<arrow::LargeListArray>(array, row, place, ret_json);
  case arrow::Type::STRUCT:
    return append_struct(static_cast<const arrow::StructArray&>(array), row, place, ret_json);
  case arrow::Type::DICTIONARY: {
    const auto& words = static_cast<const arrow::DictionaryArray&>(array);
    return append_value(*words.dictionary(), words.GetValueIndex(row), place.below(), ret_json);
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

/// The same type with bytes in place of texts.
std::shared_ptr<arrow::DataType> without_texts(const std::shared_ptr<arrow::DataType>& type) {
  const auto field = [&](int i) {
    return type->field(i)->WithType(without_texts(type->field(i)->type()));
  };
  switch (type->id()) {
  case arrow::Type::STRING:
    return arrow::binary();
  case arrow::Type::LARGE_STRING:
    return arrow::large_binary();
  case arrow::Type::STRING_VIEW:
    return arrow::binary_view();
  case arrow::Type::LIST:
    return arrow::list(field(0));
  case arrow::Type::LARGE_LIST:
    return arrow::large_list(field(0));
  case arrow::Type::STRUCT: {
    arrow::FieldVector fields;
    for (int i = 0; i < type->num_fields(); ++i) {
      fields.push_back(field(i));
    }
    return arrow::struct_(fields);
  }
  case arrow::Type::DICTIONARY: {
    const auto& words = static_cast<const arrow::DictionaryType&>(*type);
    return arrow::dictionary(
        words.index_type(), without_texts(words.value_type()), words.ordered()
    );
  }
  default:
    return type;
  }
}

std::shared_ptr<arrow::ArrayData> with_type(
    const std::shared_ptr<arrow::ArrayData>& data, const std::shared_ptr<arrow::DataType>& type
) {
  const auto changed = data->Copy();
  changed->type = type;
  for (size_t i = 0; i < changed->child_data.size() && type->num_fields() > static_cast<int>(i);
       ++i) {
    changed->child_data[i] =
        with_type(changed->child_data[i], type->field(static_cast<int>(i))->type());
  }
  if (type->id() == arrow::Type::DICTIONARY && changed->dictionary != nullptr) {
    const auto& words = static_cast<const arrow::DictionaryType&>(*type);
    changed->dictionary = with_type(changed->dictionary, words.value_type());
  }
  return changed;
}

struct RowSink {
  const Take& take;
  size_t most_bytes;
};

/// Lengths, offsets and indices lie where they must. Texts are looked at as bytes: what is no UTF-8
/// is no damage of the file.
void check(const arrow::Array& array, int64_t rows, const std::string& column) {
  if (array.length() != rows) {
    throw std::runtime_error(
        "column " + column + " has " + std::to_string(array.length()) + " rows of " +
        std::to_string(rows)
    );
  }
  if (rows > kManyRows && arrow::util::TotalBufferSize(array) < rows / 8) { // nulls take no byte
    throw std::runtime_error(
        "column " + column + " claims " + std::to_string(rows) + " rows, and holds nothing of them"
    );
  }
  require(arrow::MakeArray(with_type(array.data(), without_texts(array.type())))->ValidateFull());
}

void write_rows(const arrow::RecordBatch& batch, const ColumnNames& columns, const RowSink& sink) {
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const std::string& column : columns) {
    arrays.push_back(batch.GetColumnByName(column));
    if (arrays.back() == nullptr) {
      throw std::runtime_error("rows without the column " + column);
    }
    check(*arrays.back(), batch.num_rows(), column);
  }
  std::string lines;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    lines += '{';
    for (size_t i = 0; i < columns.size(); ++i) {
      lines += i > 0 ? "," : "";
      append_text(columns[i], lines);
      lines += ':';
      append_value(*arrays[i], row, {.most = lines.size() + sink.most_bytes / 16}, lines);
    }
    lines += "}\n";
    if (lines.size() > 1 << 20 || row + 1 == batch.num_rows()) {
      sink.take(lines);
      lines.clear();
    }
  }
}

void require_columns(const arrow::Schema& schema, const ColumnNames& columns) {
  for (const std::string& column : columns) {
    const auto found = schema.GetAllFieldIndices(column).size();
    if (found > 1) {
      throw std::runtime_error("it has " + std::to_string(found) + " columns " + column);
    }
    if (found == 0) {
      std::string there;
      for (const std::string& name : schema.field_names()) {
        there += (there.empty() ? "" : ", ") + name;
      }
      throw MissingColumn("it has no column " + column + ", but " + there);
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

struct ColumnFile {
  std::shared_ptr<arrow::io::RandomAccessFile> file;
  arrow::MemoryPool* pool;
};

void read_parquet(const ColumnFile& source, const ColumnNames& columns, const RowSink& sink) {
  const auto reader = value_of(parquet::arrow::OpenFile(source.file, source.pool));
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
      write_rows(*batch, columns, sink);
    }
  }
}

void read_arrow(const ColumnFile& source, const ColumnNames& columns, const RowSink& sink) {
  arrow::ipc::IpcReadOptions options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = source.pool;
  options.use_threads = false;
  const auto magic = value_of(source.file->ReadAt(0, 6));
  if (magic->ToString() == "ARROW1") {
    const auto reader = value_of(arrow::ipc::RecordBatchFileReader::Open(source.file, options));
    require_columns(*reader->schema(), columns);
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      write_rows(*value_of(reader->ReadRecordBatch(i)), columns, sink);
    }
    return;
  }
  require(source.file->Seek(0));
  const auto reader = value_of(arrow::ipc::RecordBatchStreamReader::Open(source.file, options));
  require_columns(*reader->schema(), columns);
  while (const auto batch = value_of(reader->Next())) {
    write_rows(*batch, columns, sink);
  }
}

} // namespace

void write_lines(
    const std::shared_ptr<arrow::io::RandomAccessFile>& file,
    Form form,
    const std::vector<std::string>& columns,
    int64_t most_bytes,
    const std::function<void(std::string_view)>& take
) {
  arrow::CappedMemoryPool pool(arrow::default_memory_pool(), most_bytes);
  const ColumnFile source{file, &pool};
  const RowSink sink{take, static_cast<size_t>(most_bytes)};
  if (form == Form::parquet) {
    read_parquet(source, columns, sink);
  } else {
    read_arrow(source, columns, sink);
  }
}

} // namespace mh::columns
