#include "core/text/vocabulary_file.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

namespace mh::text {

namespace {

constexpr size_t kBlock = 1 << 20;
constexpr size_t kLongestFile = 256 << 20;

} // namespace

std::string read_vocabulary_file(const std::string& key, const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(path.c_str(), "rbe"), std::fclose
  );
  std::string text;
  size_t got = 0;
  do {
    text.resize(text.size() + kBlock);
    got = file ? std::fread(text.data() + text.size() - kBlock, 1, kBlock, file.get()) : 0;
    text.resize(text.size() - kBlock + got);
  } while (got == kBlock && text.size() <= kLongestFile);
  if (!file || std::ferror(file.get()) != 0) {
    const int failure = errno;
    throw Error(
        key + ": cannot read " + path + ": " + std::generic_category().message(failure),
        "check the path: a relative one is meant from the folder of the recipe file that says it, "
        "on the command line from the working directory",
        exit_code::data
    );
  }
  if (text.size() > kLongestFile) {
    throw Error(
        path + " has more than " + std::to_string(kLongestFile) + " bytes",
        "name a vocabulary",
        exit_code::data
    );
  }
  return text;
}

void refuse_id(int32_t id, size_t vocabulary) {
  throw Error(
      "the id " + std::to_string(id) + " has no token: the vocabulary has ids 0 to " +
          std::to_string(vocabulary - 1),
      "use the tokenizer that the ids were made with",
      exit_code::data
  );
}

void refuse_word(std::string_view word, const std::string& unknown) {
  throw Error(
      string_text(word.substr(0, 40)) + " has no token, and the vocabulary " +
          (unknown.empty() ? "names none for what is unknown"
                           : "lacks " + string_text(unknown) + ", which would stand for it"),
      "give the vocabulary an unknown token, as the library that made it demands",
      exit_code::data
  );
}

} // namespace mh::text
