#include "core/language/source.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"

#include <algorithm>
#include <fstream>
#include <set>

namespace mh {

bool is_run_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder / "metrics.jsonl", ignored) &&
         std::filesystem::exists(folder / "recipe.toml", ignored);
}

void refuse_folder(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(file, ignored)) {
    return;
  }
  const std::string what =
      file.string() + " is a folder, expected a recipe file (.lua, .toml or .json)";
  if (is_run_folder(file)) {
    const std::string run = shell_word(file.string());
    const std::string recipe = shell_word((file / "recipe.toml").string());
    throw Error(
        what,
        "it is the folder of a run: `megahost run " + recipe +
            " --resume` goes on with it, `megahost plan " + run + "` compares it with its plan"
    );
  }
  std::set<std::string> recipes;
  for (const auto& entry : fs::directory_iterator(file, ignored)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".lua" || extension == ".toml") {
      recipes.insert(entry.path().string());
    }
  }
  throw Error(
      what,
      recipes.empty() ? "no recipe is in it; `megahost run recipes/quickstart.lua` is a first one"
                      : "name one that is in it: " +
                            join(std::vector<std::string>(recipes.begin(), recipes.end()))
  );
}

SourcePtr read_source(const std::filesystem::path& file, std::string layer) {
  constexpr std::streamsize kMost = 1 << 20;
  refuse_folder(file);
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw Error("cannot read the recipe " + file.string(), "check the path and its permissions");
  }
  std::string text(kMost + 1, '\0');
  stream.read(text.data(), kMost + 1);
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMost) {
    throw Error(file.string() + " is larger than 1 MiB, expected a recipe");
  }
  if (text.starts_with("\xEF\xBB\xBF")) { // a byte order mark
    text.erase(0, 3);
  }
  auto source =
      std::make_shared<const Source>(Source{file.string(), std::move(text), std::move(layer)});
  check_text(source);
  return source;
}

void check_text(const SourcePtr& source) {
  const std::string& text = source->text;
  const std::string valid = valid_utf8(text);
  const auto differs = std::mismatch(text.begin(), text.end(), valid.begin(), valid.end()).first;
  const auto bad = std::min(differs, std::find(text.begin(), text.end(), '\0'));
  if (bad != text.end()) {
    const auto at = static_cast<size_t>(bad - text.begin());
    throw_problems(
        {{LineIndex(source).at(at, at + 1),
          "",
          "byte " + std::to_string(static_cast<unsigned char>(*bad)) + " is no text",
          "",
          "a recipe is UTF-8 text"}}
    );
  }
}

LineIndex::LineIndex(SourcePtr source)
    : source_(std::move(source))
    , starts_{0} {
  const std::string& text = source_->text;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') {
      starts_.push_back(i + 1);
    }
  }
}

Origin LineIndex::at(size_t begin, size_t end) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), begin);
  const auto line = static_cast<size_t>(next - starts_.begin());
  const size_t line_end = next == starts_.end() ? source_->text.size() : *next - 1;
  const size_t stop = std::max(std::min(end, line_end), begin);
  return {
      source_,
      static_cast<int>(line),
      static_cast<int>(begin - starts_[line - 1]) + 1,
      static_cast<int>(stop - begin)};
}

Origin LineIndex::at_characters(int line, int column, int end_line, int end_column) const {
  return at(offset(line, column), offset(end_line, end_column));
}

Origin LineIndex::whole_line(int line) const {
  const size_t begin = offset(line, 1);
  const std::string& text = source_->text;
  const size_t end = std::min(text.find('\n', begin), text.size());
  const size_t word = std::min(text.find_first_not_of(" \t\r", begin), end);
  const size_t last = text.find_last_not_of(" \t\r\n", end);
  return at(word, last == std::string::npos ? word : std::max(word, last + 1));
}

Origin LineIndex::last_on_line(int line, const std::string& token) const {
  const size_t begin = offset(line, 1);
  const size_t end = std::min(source_->text.find('\n', begin), source_->text.size());
  const size_t found = source_->text.substr(begin, end - begin).rfind(token);
  if (token.empty() || found == std::string::npos) {
    return whole_line(line);
  }
  return at(begin + found, begin + found + token.size());
}

size_t LineIndex::offset(int line, int column) const {
  const auto row = static_cast<size_t>(std::clamp<int>(line, 1, static_cast<int>(starts_.size())));
  size_t at = starts_[row - 1];
  const std::string& text = source_->text;
  for (int i = 1; i < column && at < text.size() && text[at] != '\n'; ++i) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  }
  return at;
}

} // namespace mh
