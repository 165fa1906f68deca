#include "core/storage/documents.hpp"

#include "core/base/text.hpp"
#include "core/formats/json.hpp"
#include "core/storage/file_system.hpp"
#include "core/text/utf8.hpp"
#include "megahost/error.hpp"

#include <glob.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
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
  static constexpr std::array<const char*, 4> kJsonLines{".jsonl", ".ndjson", ".json", ".mds"};
  static constexpr std::array<const char*, 3> kArchives{".zip", ".tar", ".7z"};
  const std::string name = path.string(), plain = without_compression(name);
  if (ends_in(plain, kArchives)) {
    throw Error(name + " is an archive", "unpack it, and give the folder", exit_code::data);
  }
  std::error_code failure;
  const uint64_t bytes = fs::file_size(path, failure);
  const bool json_lines = is_columns_name(name) || (format == DocumentFormat::by_name
                                                        ? ends_in(plain, kJsonLines)
                                                        : format == DocumentFormat::json_lines);
  return {name, json_lines, failure ? 0 : bytes, ""};
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
  const auto is_described = [](const fs::path& path) {
    return without_compression(path.string()).ends_with(".mds") || is_columns_name(path.string());
  };
  if (std::ranges::any_of(found, is_described)) { // what describes shards is no document
    std::erase_if(found, [](const fs::path& path) {
      static constexpr std::array<const char*, 5> kDescriptions{
          "index.json", "state.json", "dataset_info.json", "dataset_dict.json", "README.md"};
      return std::ranges::find(kDescriptions, path.filename()) != kDescriptions.end();
    });
  }
  std::ranges::sort(found);
  for (const fs::path& path : found) {
    ret_files.push_back(describe_file(path, format));
  }
}

/// Role and content of each message in turn.
std::vector<std::string>
messages_of(const nlohmann::json& document, const std::string& key, const std::string& where) {
  const nlohmann::json& value = json_member(document, key, where);
  if (!value.is_array()) {
    throw Error(where + ": " + key + " is no list of messages", "", exit_code::data);
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string message = where + ": " + key + "[" + std::to_string(i) + "]";
    texts.push_back(json_string(value[i], "role", message));
    texts.push_back(json_string(value[i], "content", message));
  }
  return texts;
}

std::vector<std::string>
texts_of(const nlohmann::json& document, const std::string& key, const std::string& where) {
  const nlohmann::json& value = json_member(document, key, where);
  if (value.is_array() && std::ranges::all_of(value, [](const auto& v) { return v.is_string(); })) {
    return value.get<std::vector<std::string>>();
  }
  if (value.is_array() && value[0].is_object()) {
    throw Error(
        where + ": " + key + " is a list of objects, such as a conversation's messages",
        "--template chatml or llama3 writes conversations",
        exit_code::data
    );
  }
  return {json_string(document, key, where)};
}

/// "mend the line", and how a person sees it, unless sed cannot read the file.
std::string mend(const DocumentFile& file, const std::string& line) {
  if (is_columns_name(file.path)) {
    return "mend the row";
  }
  const bool plain = file.path != "-" && without_compression(file.path) == file.path;
  return "mend the line" + (plain ? " (sed -n " + line + "p " + file.path + " prints it)" : "");
}

std::string
hint_for(const DocumentFile& file, const std::string& line, const nlohmann::json& document) {
  std::vector<std::string> keys;
  if (document.is_object()) {
    for (const auto& [key, value] : document.items()) {
      if (value.is_string() && keys.size() < 10) {
        keys.push_back(key);
      }
    }
  }
  return (keys.empty() ? "" : "its texts: " + join(keys) + " (--json-key); else ") +
         mend(file, line) + ", or leave such lines out with --on-error skip";
}

std::string hint_for_bytes(const DocumentFile& file, const std::string& line) {
  return mend(file, line) +
         ", leave such lines out with --on-error skip, or take them with U+FFFD for such bytes with "
         "--on-error replace";
}

/// "byte 17 (0xff) of the line is no UTF-8": the byte after the valid ones, counted from 1 behind
/// those before the text.
std::string
broken_byte(std::string_view text, size_t valid, uint64_t before, const std::string& whole) {
  std::array<char, 8> byte{};
  std::snprintf(byte.data(), byte.size(), "0x%02x", static_cast<unsigned char>(text[valid]));
  return "byte " + std::to_string(before + valid + 1) + " (" + byte.data() + ") of the " + whole +
         " is no UTF-8";
}

} // namespace

namespace {

/// The lines of "@FILE", the files of a pattern, or the input itself.
void expand(
    const std::string& input, std::vector<std::string>& ret_inputs, const std::string& list = ""
) {
  std::error_code failure;
  if (input.starts_with("@") && list.empty()) {
    const std::string text = read_file(input.substr(1), 64 << 20);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      line.resize(line.size() - (line.ends_with('\r') ? 1 : 0));
      if (!line.empty()) {
        expand(line, ret_inputs, input);
      }
      begin = end + 1;
    }
  } else if (input.find_first_of("*?[") != std::string::npos && !scheme_of(input) && !fs::exists(input, failure)) {
    glob_t found{};
    const int status = ::glob(input.c_str(), GLOB_BRACE | GLOB_ERR, nullptr, &found);
    ret_inputs.insert(ret_inputs.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (status != 0) {
      throw Error("no file matches " + input, "check the pattern", exit_code::data);
    }
  } else {
    ret_inputs.push_back(input);
  }
}

} // namespace

std::string name_of(const DocumentFile& file) {
  return file.path == "-" ? "standard input" : file.name.empty() ? file.path : file.name;
}

std::vector<DocumentFile> find_documents(
    const std::vector<std::string>& inputs,
    DocumentFormat format,
    const std::function<fs::path(const std::string&)>& here
) {
  std::vector<std::string> expanded;
  for (const std::string& input : inputs) {
    expand(input, expanded);
  }
  std::vector<DocumentFile> files;
  for (const std::string& given : expanded) {
    const bool in_store = here && scheme_of(given);
    const std::string input = in_store ? here(given).string() : given;
    const size_t before = files.size();
    std::error_code failure;
    const fs::file_status status = fs::status(input, failure);
    if (input == "-") {
      files.push_back({"-", format != DocumentFormat::text, 0, ""});
    } else if (status.type() == fs::file_type::not_found) {
      throw Error("there is no " + input, "check the path", exit_code::data);
    } else if (failure) {
      throw StorageError("open", input, failure.value());
    } else if (fs::is_directory(status)) {
      add_folder(input, format, files);
    } else {
      files.push_back(describe_file(input, format));
    }
    for (size_t i = before; in_store && i < files.size(); ++i) {
      files[i].name = given + files[i].path.substr(input.size());
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

DocumentReader::DocumentReader(
    const std::vector<DocumentFile>& files,
    OpenInput open,
    DocumentPieces pieces,
    size_t block_bytes
)
    : files_(files)
    , open_(std::move(open))
    , block_bytes_(block_bytes)
    , pieces_(pieces) {}

void DocumentReader::seek(const DocumentPlace& place) {
  close();
  place_ = place;
}

void DocumentReader::open_next() {
  input_ = open_(files_[place_.file].path);
  if (place_.offset > 0) {
    input_->skip(place_.offset);
  }
  rest_.clear();
}

void DocumentReader::close() {
  input_.reset();
  rest_.clear();
}

bool DocumentReader::read_more(size_t bytes, std::string& ret_text) {
  const size_t end = ret_text.size() + bytes;
  for (size_t got = ret_text.size(); got < end;) {
    ret_text.resize(end);
    size_t more = 0;
    try {
      more = input_->read(std::span(ret_text).subspan(got));
    } catch (const Error&) {
      ret_text.resize(got);
      throw;
    }
    got += more;
    ret_text.resize(got);
    if (more == 0) {
      return false;
    }
  }
  return true;
}

std::optional<DocumentBlock> DocumentReader::next() {
  if (failure_) { // the place was before the damage until now: who stops here meets it again
    place_ = {.file = place_.file + 1};
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
  if (place_.file == files_.size()) {
    return std::nullopt;
  }
  const DocumentFile& file = files_[place_.file];
  DocumentBlock block{&file, place_.line, place_.offset, "", !place_.within};
  try {
    if (!input_) {
      open_next();
    }
    block.text = std::exchange(rest_, "");
    const size_t bytes = file.json_lines ? block_bytes_ : pieces_.bytes;
    bool more = true;
    size_t end = std::string::npos; // end of the last whole line
    while (more && end == std::string::npos) {
      const size_t searched = block.text.size();
      more = read_more(bytes, block.text);
      if (more && file.json_lines) {
        const size_t last = std::string_view(block.text).substr(searched).rfind('\n');
        end = last == std::string_view::npos ? std::string::npos : searched + last + 1;
      } else if (more) {
        end = pieces_.end(block.text);
      }
    }
    if (more) {
      rest_ = block.text.substr(end);
      block.text.resize(end);
      block.ends = file.json_lines;
      place_.offset += end;
      place_.line += static_cast<uint64_t>(std::ranges::count(block.text, '\n'));
      place_.within = !file.json_lines;
      return block;
    }
  } catch (const Error&) {
    const size_t lines = file.json_lines ? block.text.rfind('\n') + 1 : 0;
    if (lines == 0) {
      close();
      place_ = {.file = place_.file + 1};
      throw;
    }
    block.text.resize(lines);
    failure_ = std::current_exception();
    close();
    place_.offset += lines;
    place_.line += static_cast<uint64_t>(std::ranges::count(block.text, '\n'));
    return block;
  }
  close();
  place_ = {.file = place_.file + 1};
  return block;
}

void parse_documents(
    const DocumentBlock& block,
    const std::vector<std::string>& keys,
    const std::function<void(DocumentTexts)>& take,
    const DocumentFaults& faults,
    DocumentMembers members
) {
  const auto fail = [&](const std::string& message, const std::string& hint) {
    if (!faults.skip) {
      throw Error(message, hint, exit_code::data);
    }
    faults.skip(message);
  };
  const auto try_to_take = [&](const std::string& where, DocumentTexts texts) {
    try {
      take(std::move(texts));
    } catch (const Error& error) {
      fail(where + ": " + error.what(), error.hint());
    }
  };
  if (!block.file->json_lines) {
    const auto& say = faults.replace ? faults.replace : faults.keep;
    const size_t valid = say ? text::valid_prefix(block.text) : block.text.size();
    if (valid < block.text.size()) {
      say(name_of(*block.file) + ": " + broken_byte(block.text, valid, block.offset, "file"));
    }
    const bool changes = valid < block.text.size() && faults.replace;
    try_to_take(name_of(*block.file), {{changes ? text::replace_invalid(block.text) : block.text}});
    return;
  }
  uint64_t number = block.line;
  const std::string_view lines = block.text;
  for (size_t begin = 0; begin < lines.size(); ++number) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    std::string_view line = lines.substr(begin, end - begin);
    std::string replaced; // the line, where it had to be changed
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    const std::string where = name_of(*block.file) + ":" + std::to_string(number);
    if (const size_t valid = text::valid_prefix(line); valid < line.size()) {
      const std::string message = where + ": " + broken_byte(line, valid, 0, "line");
      if (!faults.replace) {
        fail(message, hint_for_bytes(*block.file, std::to_string(number)));
        continue;
      }
      faults.replace(message);
      replaced = text::replace_invalid(line);
      line = replaced;
    }
    nlohmann::json document;
    DocumentTexts texts;
    try {
      document = parse_json(line, where);
      for (const std::string& key : keys) {
        texts.push_back(
            members == DocumentMembers::messages ? messages_of(document, key, where)
                                                 : texts_of(document, key, where)
        );
      }
    } catch (const Error& error) {
      const std::string hint = error.hint().empty() || document.is_null()
                                   ? hint_for(*block.file, std::to_string(number), document)
                                   : error.hint();
      fail(error.what(), hint);
      continue;
    }
    document = nullptr; // a long one is held once
    try_to_take(where, std::move(texts));
  }
}

} // namespace mh
