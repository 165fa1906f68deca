#include "core/session/run_tokenizer.hpp"

#include "core/base/text.hpp"
#include "core/language/source.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <optional>
#include <system_error>

namespace mh {

namespace {

namespace fs = std::filesystem;

/// Files of a Hugging Face folder by which `transformers` makes its tokenizer.
constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "vocab.txt",
    "chat_template.jinja"};

/// The name of a file there; "vocab" is vocab.json, whatever it is called here.
std::string name_there(const Field& field, const fs::path& file) {
  const auto known = std::ranges::find_if(kTokenizerFiles, [&](const fs::path& name) {
    return name.stem() == field.name;
  });
  return known != std::end(kTokenizerFiles) ? *known : file.filename().string();
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// The path of a field; empty for words of the plugin's own, such as "@gpt2".
std::string path_in(const Field& field, const Table& options) {
  const Value* value = field.path ? options.find(field.name) : nullptr;
  const bool is_path =
      value != nullptr && value->is_string() && !value->as_string().starts_with('@');
  return is_path ? value->as_string() : "";
}

bool is_of_command_line(const Value& value) {
  const SourcePtr& source = value.origin.source;
  return source && source->name == source->layer;
}

/// Whether a path is in a folder, whatever links lead there; or is not there at all.
bool is_harmless(const fs::path& run, const std::string& path) {
  std::error_code error;
  if (scheme_of(path)) {
    return false;
  }
  if (!fs::exists(fs::symlink_status(path, error))) {
    return true;
  }
  const fs::path real = fs::weakly_canonical(path, error),
                 folder = fs::weakly_canonical(run, error);
  return !error && std::mismatch(folder.begin(), folder.end(), real.begin(), real.end()).first ==
                       folder.end();
}

/// The copy of a file or folder that a field names.
std::optional<fs::path> kept(const fs::path& run, const Field& field, const std::string& path) {
  const fs::path folder = run / kRunTokenizer;
  if (is_file(folder / name_there(field, path))) {
    return folder / name_there(field, path);
  }
  return is_file(folder / kTokenizerFiles[0]) ? std::optional(folder) : std::nullopt;
}

} // namespace

std::map<std::string, fs::path> tokenizer_files(const Schema& schema, const Table& options) {
  std::map<std::string, fs::path> files;
  for (const Field& field : schema.fields) {
    const fs::path file = path_in(field, options);
    const fs::path folder = file.filename() == kTokenizerFiles[0] ? file.parent_path() : file;
    for (const char* name : kTokenizerFiles) {
      if (!file.empty() && is_file(folder / name)) {
        files[name] = folder / name;
      }
    }
    if (is_file(file)) {
      files.emplace(name_there(field, file), file);
    }
  }
  return files;
}

void keep_tokenizer(Storage& storage, const Path& run, const Schema& schema, const Table& options) {
  for (const auto& [name, file] : tokenizer_files(schema, options)) {
    const fs::path copy = run / kRunTokenizer / name;
    std::error_code ignored;
    if (!fs::equivalent(file, copy, ignored)) {
      constexpr uint64_t kLongest = uint64_t{1} << 30;
      put_text(storage, copy, read_file(file, kLongest));
    }
  }
}

void require_in_run(const fs::path& run, const std::string& key, const Value& path, bool of_list) {
  const std::string text = path.is_string() ? path.as_string() : "";
  if (text.empty() || text.starts_with('@') || is_of_command_line(path) || is_harmless(run, text)) {
    return;
  }
  throw Error(
      "the recipe of " + run.string() + " names " + text + " as " + key +
          ", which is not in that folder: a folder that others may have made has no other files "
          "read unasked",
      "if you mean it, name it yourself: --set " +
          shell_word(key + "=" + (of_list ? "[\"" + text + "\"]" : text)),
      exit_code::data
  );
}

Table tokenizer_of_run(const fs::path& run, const Schema& schema, Table options) {
  for (const Field& field : schema.fields) {
    const std::string path = path_in(field, options);
    if (path.empty()) {
      continue;
    }
    const Value& value = *options.find(field.name);
    const bool is_fine = is_of_command_line(value) ||
                         (!scheme_of(path) && is_harmless(run, path) && fs::exists(path));
    if (const auto copy = is_fine ? std::nullopt : kept(run, field, path)) {
      options.set(field.name, Value(copy->string()));
    } else {
      require_in_run(run, "tokenizer." + field.name, value);
    }
  }
  return options;
}

} // namespace mh
