#pragma once
/// The commands `data ...`, which make token files and look at them, and what they share.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace mh {

class TemporaryFolder;

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
void require_free(const Invocation& invocation, Host& host, const std::string& prefix);

/// Where a corpus is written: at the prefix that --output names with an ending, or, where that is in
/// a store, in a folder below TMPDIR until `publish` puts it there.
class CorpusOutput {
public:
  /// Throws:  mh::Error (exit code 5) if one of its files is there, unless --force was given
  CorpusOutput(const Invocation& invocation, Host& host, const std::string& ending = "");
  ~CorpusOutput();
  CorpusOutput(CorpusOutput&&) noexcept;
  CorpusOutput& operator=(CorpusOutput&&) = delete;

  /// The name that a person gave it.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// On this machine.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }

  /// Puts a corpus that is whole where it belongs: the tokens first, then the index.
  void publish();

  /// Removes the corpus that --force would have replaced; there need be none.
  void remove();

private:
  Host& host_;
  std::string name_, prefix_;
  std::unique_ptr<TemporaryFolder> folder_; // none: `prefix` is where it belongs
};

/// "1,234 files", "1 file".
[[nodiscard]] std::string count_text(uint64_t count, const char* what);

/// Prints "data/corpus: 12 documents, 3,456 tokens".
void say_corpus(const std::string& prefix, uint64_t documents, uint64_t tokens);

} // namespace mh
