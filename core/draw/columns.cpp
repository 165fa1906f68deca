#include "core/draw/columns.hpp"

#include "core/base/visible.hpp"

#include <algorithm>

namespace mh {

namespace {

struct Column {
  int width = 0;
  bool numbers = true;
};

bool is_number(const std::string& cell) {
  return cell.find_first_not_of("0123456789.,-+e%") == std::string::npos;
}

std::vector<Column> measure(const std::vector<TextRow>& rows) {
  std::vector<Column> columns;
  for (const TextRow& row : rows) {
    columns.resize(std::max(columns.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      columns[i].width = std::max(columns[i].width, cells(row[i]));
      columns[i].numbers = columns[i].numbers && (&row == &rows.front() || is_number(row[i]));
    }
  }
  return columns;
}

} // namespace

std::string columns(
    const std::vector<TextRow>& given, const Terminal& terminal, const std::vector<Paint>& paints
) {
  std::vector<TextRow> rows = given;
  for (TextRow& row : rows) {
    for (std::string& cell : row) {
      cell = visible(cell);
    }
  }
  const std::vector<Column> columns = measure(rows);
  std::string text;
  for (const TextRow& row : rows) {
    const bool head = &row == &rows.front();
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<size_t>(columns[i].width - cells(row[i])), ' ');
      const Paint paint = head ? Paint::bold : i < paints.size() ? paints[i] : Paint::plain;
      const std::string cell = terminal.paint(paint, row[i]);
      const bool last = i + 1 == row.size();
      line +=
          (i > 0 ? "  " : "") + (columns[i].numbers ? space + cell : cell + (last ? "" : space));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

} // namespace mh
