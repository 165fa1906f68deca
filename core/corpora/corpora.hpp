#pragma once
/// The commands `data ...`, which make token files and look at them, and what they share.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <string>

namespace mh {

int command_data_prepare(const Invocation& invocation, Host& host);
int command_data_inspect(const Invocation& invocation, Host& host);
int command_data_merge(const Invocation& invocation, Host& host);
int command_data_split(const Invocation& invocation, Host& host);
int command_data_shuffle(const Invocation& invocation, Host& host);
int command_data_dedup_exact(const Invocation& invocation, Host& host);

/// `data prepare --format tokens`: flat files of ids.
int prepare_tokens(const Invocation& invocation, Host& host);

/// The prefix that --output names.
///
/// Throws:  mh::Error if it names none, or a folder
[[nodiscard]] std::string output_option(const Invocation& invocation);

/// Whether a corpus may be written at `prefix`.
///
/// Throws:  mh::Error (exit code 5) if one of its files is there, unless --force was given
void require_free(const Invocation& invocation, const std::string& prefix);

/// "1,234 files", "1 file".
[[nodiscard]] std::string count_text(uint64_t count, const char* what);

/// Prints "data/corpus: 12 documents, 3,456 tokens".
void say_corpus(const std::string& prefix, uint64_t documents, uint64_t tokens);

} // namespace mh
