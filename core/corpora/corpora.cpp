#include "core/corpora/corpora.hpp"

#include "core/base/number_text.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <cstdio>

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

void require_free(const Invocation& invocation, const std::string& prefix) {
  for (const char* ending : {".bin", ".idx"}) {
    if (!invocation.has("--force") &&
        file_system().kind(prefix + ending) != FileSystem::Kind::none) {
      throw Error(
          prefix + ending + " is there already",
          "choose another --output, or replace it with --force",
          exit_code::data
      );
    }
  }
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
