#include "core/corpora/corpora.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/storage/copy_object.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/temporary_folder.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cstdio>
#include <span>
#include <vector>

namespace mh {

std::string output_option(const Invocation& invocation) {
  const std::string output = invocation.value("--output");
  if (output.empty() || output.ends_with('/')) {
    throw Error(
        "megahost " + invocation.command + " needs --output PREFIX",
        "as in --output data/corpus: the files are PREFIX and an ending"
    );
  }
  return output;
}

void require_free(const Invocation& invocation, Host& host, const std::string& prefix) {
  for (const char* ending : {".bin", ".idx"}) {
    if (!invocation.has("--force") && host.storage().contains(prefix + ending)) {
      throw Error(
          prefix + ending + " is there already",
          "choose another --output, or replace it with --force",
          exit_code::data
      );
    }
  }
}

CorpusOutput::CorpusOutput(const Invocation& invocation, Host& host, const std::string& ending)
    : host_(host)
    , name_(output_option(invocation) + ending)
    , prefix_(name_) {
  require_free(invocation, host, name_);
  if (scheme_of(name_)) {
    folder_ = std::make_unique<TemporaryFolder>("megahost-corpus");
    prefix_ = folder_->path() / Path(name_).filename();
  } else {
    make_directories(Path(name_).parent_path());
  }
}

CorpusOutput::~CorpusOutput() = default;
CorpusOutput::CorpusOutput(CorpusOutput&&) noexcept = default;

void CorpusOutput::publish() {
  if (folder_ == nullptr) {
    return;
  }
  host_.storage().remove(name_ + ".idx"); // else it would tell of the new tokens for a moment
  for (const char* ending : {".bin", ".idx"}) {
    copy_object(local_storage(), prefix_ + ending, host_.storage(), name_ + ending);
  }
}

void CorpusOutput::remove() {
  host_.storage().remove(name_ + ".idx");
  host_.storage().remove(name_ + ".bin");
}

std::string count_text(uint64_t count, const char* what) {
  return grouped(static_cast<int64_t>(count)) + " " + what + (count == 1 ? "" : "s");
}

void say_corpus(const std::string& prefix, uint64_t documents, uint64_t tokens) {
  std::printf(
      "%s: %s, %s\n",
      prefix.c_str(),
      count_text(documents, "document").c_str(),
      count_text(tokens, "token").c_str()
  );
}

} // namespace mh
