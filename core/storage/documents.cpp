#include "core/storage/documents.hpp"

#include "core/base/text.hpp"
#include "core/formats/json.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>

namespace mh {

namespace {

namespace fs = std::filesystem;

template <size_t N>
bool ends_in(const std::string& name, const std::array<const char*, N>& endings) {
  return std::ranges::any_of(endings, [&](const char* ending) { return name.ends_with(ending); });
}

DocumentFile describe_file(const fs::path& path, DocumentFormat format) {
  static constexpr std::array<const char*, 3> kJsonLines{".jsonl", ".ndjson", ".json"};
  static constexpr std::array<const char*, 5> kCompressed{".gz", ".zst", ".xz", ".bz2", ".zip"};
  const std::string name = path.string();
  if (ends_in(name, kCompressed)) {
    throw Error(
        name + " is compressed",
        "give it uncompressed, as in: zcat " + name + " | megahost data prepare - ...",
        exit_code::data
    );
  }
  std::error_code failure;
  const uint64_t bytes = fs::file_size(path, failure);
  const bool json_lines = format == DocumentFormat::by_name ? ends_in(name, kJsonLines)
                                                            : format == DocumentFormat::json_lines;
  return {name, json_lines, failure ? 0 : bytes};
}

void add_folder(
    const fs::path& folder, DocumentFormat format, std::vector<DocumentFile>& ret_files
) {
  std::vector<fs::path> found;
  try {
    for (auto it = fs::recursive_directory_iterator(folder); it != fs::end(it); ++it) {
      if (it->path().filename().string().starts_with('.')) {
        it.disable_recursion_pending();
      } else if (it->is_regular_file()) {
        found.push_back(it->path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw StorageError("list", error.path1(), error.code().value());
  }
  std::ranges::sort(found);
  for (const fs::path& path : found) {
    ret_files.push_back(describe_file(path, format));
  }
}

std::string name_of(const DocumentFile& file) {
  return file.path == "-" ? "standard input" : file.path;
}

std::vector<std::string>
texts_of(const nlohmann::json& document, const std::string& key, const std::string& where) {
  const nlohmann::json& value = json_member(document, key, where);
  if (value.is_array() && std::ranges::all_of(value, [](const auto& v) { return v.is_string(); })) {
    return value.get<std::vector<std::string>>();
  }
  return {json_string(document, key, where)};
}

std::string hint_for(const std::string& where, const nlohmann::json& document) {
  std::vector<std::string> keys;
  if (document.is_object()) {
    for (const auto& [key, value] : document.items()) {
      if (value.is_string() && keys.size() < 10) {
        keys.push_back(key);
      }
    }
  }
  const size_t colon = where.rfind(':');
  return (keys.empty() ? "" : "its texts: " + join(keys) + " (--json-key); else ") +
         "mend the line (sed -n " + where.substr(colon + 1) + "p " + where.substr(0, colon) +
         " prints it), or leave such lines out with --skip-bad";
}

} // namespace

std::vector<DocumentFile>
find_documents(const std::vector<std::string>& inputs, DocumentFormat format) {
  std::vector<DocumentFile> files;
  for (const std::string& input : inputs) {
    std::error_code failure;
    const fs::file_status status = fs::status(input, failure);
    if (input == "-") {
      files.push_back({"-", format != DocumentFormat::text, 0});
    } else if (status.type() == fs::file_type::not_found) {
      throw Error("there is no " + input, "check the path", exit_code::data);
    } else if (failure) {
      throw StorageError("open", input, failure.value());
    } else if (fs::is_directory(status)) {
      add_folder(input, format, files);
    } else {
      files.push_back(describe_file(input, format));
    }
  }
  if (files.empty()) {
    throw Error(
        "there is no file in " + join(inputs),
        "name files, or folders that hold some",
        exit_code::data
    );
  }
  return files;
}

DocumentReader::DocumentReader(const std::vector<DocumentFile>& files, size_t block_bytes)
    : files_(files)
    , block_bytes_(block_bytes)
    , open_(nullptr, std::fclose) {}

bool DocumentReader::open_next() {
  if (number_ == files_.size()) {
    return false;
  }
  const std::string& path = files_[number_++].path;
  open_.reset(path == "-" ? stdin : std::fopen(path.c_str(), "rbe"));
  if (!open_) {
    throw StorageError("open", path, errno);
  }
  rest_.clear();
  line_ = 1;
  return true;
}

bool DocumentReader::read_more(size_t bytes, std::string& ret_text) {
  const size_t before = ret_text.size();
  ret_text.resize(before + bytes);
  const size_t got = std::fread(ret_text.data() + before, 1, bytes, open_.get());
  ret_text.resize(before + got);
  if (got < bytes && std::ferror(open_.get()) != 0) {
    throw StorageError("read", name_of(files_[number_ - 1]), errno);
  }
  return got == bytes;
}

std::optional<DocumentBlock> DocumentReader::next() {
  if (!open_ && !open_next()) {
    return std::nullopt;
  }
  DocumentBlock block{&files_[number_ - 1], line_, std::exchange(rest_, "")};
  bool more = true;
  size_t end = std::string::npos; // of the last whole line
  while (more && end == std::string::npos) {
    more = read_more(block_bytes_, block.text);
    if (block.file->json_lines) {
      end = block.text.rfind('\n');
    }
  }
  if (more) {
    rest_ = block.text.substr(end + 1);
    block.text.resize(end + 1);
    line_ += static_cast<uint64_t>(std::ranges::count(block.text, '\n'));
  } else {
    open_.reset();
  }
  return block;
}

void parse_documents(
    const DocumentBlock& block,
    const std::vector<std::string>& keys,
    const std::function<void(DocumentTexts)>& take,
    const std::function<void(std::string)>& skip
) {
  const auto fail = [&](const std::string& message, const std::string& hint) {
    if (!skip) {
      throw Error(message, hint, exit_code::data);
    }
    skip(message);
  };
  const auto try_to_take = [&](const std::string& where, DocumentTexts texts) {
    try {
      take(std::move(texts));
    } catch (const Error& error) {
      fail(where + ": " + error.what(), error.hint());
    }
  };
  if (!block.file->json_lines) {
    try_to_take(name_of(*block.file), {{block.text}});
    return;
  }
  uint64_t number = block.line;
  const std::string_view text = block.text;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const std::string where = name_of(*block.file) + ":" + std::to_string(number);
    nlohmann::json document;
    DocumentTexts texts;
    try {
      document = parse_json(line, where);
      for (const std::string& key : keys) {
        texts.push_back(texts_of(document, key, where));
      }
    } catch (const Error& error) {
      fail(error.what(), hint_for(where, document));
      continue;
    }
    try_to_take(where, std::move(texts));
  }
}

} // namespace mh
