#include "gpt2.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

namespace mh::gpt2 {
namespace {

constexpr size_t kBlock = 1 << 20;
constexpr size_t kLongestFile = 256 << 20;

std::string read_file(const char* field, const std::string& path) {
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
        std::string("tokenizer.") + field + ": cannot read " + path + ": " +
            std::generic_category().message(failure),
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

} // namespace

struct Gpt2Tokenizer::Worker {
  WordPattern::Scratch scratch;
  WordEncoder encoder;
};

void Gpt2Tokenizer::fields(Fields<Config>& fields) {
  fields.add("vocab", &Config::vocab, "vocab.json: tokens and their ids (encoder.json)")
      .path()
      .required();
  fields.add("merges", &Config::merges, "merges.txt: pairs of tokens, in order (vocab.bpe)")
      .path()
      .required();
  fields.add("eod", &Config::eod, "token that ends a document");
  fields.add(
      "special_tokens",
      &Config::special_tokens,
      "further tokens of the vocabulary that are not made by merges, such as <|pad|>"
  );
}

Gpt2Tokenizer::Gpt2Tokenizer(const Config& config, const Args&) {
  std::vector<std::string> special = config.special_tokens;
  special.push_back(config.eod);
  const std::string vocab = read_file("vocab", config.vocab);
  const std::string merges = read_file("merges", config.merges);
  vocabulary_ = read_vocabulary(vocab, config.vocab, merges, config.merges, special);
  for (const std::string& token : special) {
    const bool by_default = token == Config().eod;
    if (!vocabulary_.special.contains(token) && !by_default) {
      throw Error(
          config.vocab + " lacks the special token " + token,
          "leave it out of tokenizer.eod and tokenizer.special_tokens, or add it to the vocabulary",
          exit_code::data
      );
    }
  }
  special_.assign(vocabulary_.special.begin(), vocabulary_.special.end());
  std::ranges::sort(special_, [](const auto& a, const auto& b) {
    return std::pair(b.first.size(), a.first) < std::pair(a.first.size(), b.first);
  });
  if (const auto eod = vocabulary_.special.find(config.eod); eod != vocabulary_.special.end()) {
    eod_ = eod->second;
  }
}

Gpt2Tokenizer::~Gpt2Tokenizer() = default;

std::unique_ptr<Gpt2Tokenizer::Worker> Gpt2Tokenizer::take_worker() const {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    return std::make_unique<Worker>(Worker{WordPattern::Scratch(pattern_), WordEncoder(vocabulary_)}
    );
  }
  auto worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

std::vector<int32_t> Gpt2Tokenizer::encode(std::string_view text) const {
  auto worker = take_worker();
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 1);
  const auto encode_plain = [&](std::string_view plain) {
    pattern_.cut(plain, worker->scratch, [&](std::string_view word) {
      worker->encoder.encode(word, ids);
    });
  };
  std::vector<size_t> next(special_.size(), 0); // where each special token stands next
  size_t begin = 0;
  while (begin < text.size()) {
    size_t first = std::string_view::npos, which = 0;
    for (size_t i = 0; i < special_.size(); ++i) {
      if (next[i] != std::string_view::npos && (next[i] < begin || begin == 0)) {
        next[i] = text.find(special_[i].first, begin);
      }
      if (next[i] < first) {
        first = next[i];
        which = i;
      }
    }
    encode_plain(text.substr(begin, first - begin));
    if (first == std::string_view::npos) {
      break;
    }
    ids.push_back(special_[which].second);
    begin = first + special_[which].first.size();
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(worker));
  return ids;
}

std::string Gpt2Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary_.size || !vocabulary_.known[static_cast<size_t>(id)]) {
      throw Error(
          "the id " + std::to_string(id) + " has no token: the vocabulary has ids 0 to " +
              std::to_string(vocabulary_.size - 1),
          "use the tokenizer that the ids were made with",
          exit_code::data
      );
    }
    text += vocabulary_.tokens[static_cast<size_t>(id)];
  }
  return text;
}

} // namespace mh::gpt2
