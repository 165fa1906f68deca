#pragma once
/// The files of a run's tokenizer in its run folder, RUN/tokenizer/tokenizer.json. A folder that was
/// moved, or made by others, is read with these, and with no file elsewhere that its recipe names.

#include "megahost/schema.hpp"
#include "megahost/storage.hpp"
#include "megahost/value.hpp"

#include <filesystem>
#include <map>
#include <string>

namespace mh {

inline constexpr const char* kRunTokenizer = "tokenizer"; ///< subfolder of a run's folder

/// The files that a tokenizer's options name, by their names at Hugging Face: those of a folder that
/// they name, or in which they name a tokenizer.json, too.
[[nodiscard]] std::map<std::string, std::filesystem::path>
tokenizer_files(const Schema& schema, const Table& options);

/// Copies them into a run folder.
///
/// Throws:  StorageError
void keep_tokenizer(Storage& storage, const Path& run, const Schema& schema, const Table& options);

/// The options with the copies that a run folder has in place of files that lie elsewhere, but for
/// those that the command line names. A path to nothing stays.
///
/// Throws:  mh::Error (exit code 5) naming the first of which there is no copy
[[nodiscard]] Table
tokenizer_of_run(const std::filesystem::path& run, const Schema& schema, Table options);

/// Refuses a path that `key` names in the recipe of a run folder, and that leads out of it: in the
/// folder, on the command line or nowhere it may be. `of_list`: the key's value is a list.
///
/// Throws:  mh::Error (exit code 5) that says what to write to mean it
void require_in_run(
    const std::filesystem::path& run,
    const std::string& key,
    const Value& path,
    bool of_list = false
);

} // namespace mh
