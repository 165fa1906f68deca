#include "vocabulary.hpp"

#include "core/text/byte_alphabet.hpp"

#include <megahost/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace mh::gpt2 {
namespace {

constexpr int64_t kMostIds = 1 << 24;

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why,
      "the file is damaged, cut short, or belongs to another tokenizer: get both files anew",
      exit_code::data
  );
}

/// A token for messages: no line breaks or colour codes from files.
std::string shown(std::string_view token) {
  return nlohmann::json(std::string(token.substr(0, 60)))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

using IdsByToken = std::unordered_map<std::string, int32_t>;

/// Takes one flat object of non-negative integers, and nothing else.
class VocabHandler : public nlohmann::json_sax<nlohmann::json> {
public:
  explicit VocabHandler(const std::string& file)
      : file_(file) {}

  IdsByToken ids;

  bool start_object(size_t) override { return depth_++ == 0 || no_id("an object"); }

  bool end_object() override { return true; }

  bool key(std::string& token) override {
    token_ = std::move(token);
    return true;
  }

  bool number_unsigned(uint64_t id) override {
    if (depth_ == 0 || id >= static_cast<uint64_t>(kMostIds)) {
      return no_id(std::to_string(id));
    }
    if (!ids.emplace(token_, static_cast<int32_t>(id)).second) {
      refuse(file_, "the token " + shown(token_) + " is given twice");
    }
    return true;
  }

  bool number_integer(int64_t id) override { return no_id(std::to_string(id)); }

  bool number_float(double, const std::string& text) override { return no_id(text); }

  bool null() override { return no_id("null"); }

  bool boolean(bool) override { return no_id("a boolean"); }

  bool string(std::string&) override { return no_id("a string"); }

  bool binary(nlohmann::json::binary_t&) override { return no_id("bytes"); }

  bool start_array(size_t) override { return no_id("an array"); }

  bool end_array() override { return true; }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    refuse(file_, "no valid JSON: syntax error at byte " + std::to_string(at));
  }

private:
  bool no_id(const std::string& found) {
    refuse(
        file_,
        depth_ == 0 ? "found " + found + ", expected an object of tokens and their ids"
                    : "the token " + shown(token_) + " has the id " + found +
                          ", expected a whole number from 0 to " + std::to_string(kMostIds - 1)
    );
  }

  const std::string& file_;
  std::string token_;
  int depth_ = 0;
};

void add_tokens(const IdsByToken& ids, const std::string& file, Vocabulary& ret_vocabulary) {
  int32_t largest = text::kNoId;
  for (const auto& [token, id] : ids) {
    largest = std::max(largest, id);
  }
  ret_vocabulary.size = int64_t{largest} + 1;
  ret_vocabulary.tokens.resize(static_cast<size_t>(ret_vocabulary.size));
  ret_vocabulary.known.resize(static_cast<size_t>(ret_vocabulary.size));
  ret_vocabulary.bytes.fill(text::kNoId);
  for (const auto& [token, id] : ids) {
    const auto place = static_cast<size_t>(id);
    if (ret_vocabulary.known[place]) {
      refuse(file, "the id " + std::to_string(id) + " is given twice");
    }
    ret_vocabulary.known[place] = true;
    ret_vocabulary.tokens[place] = text::token_bytes(token);
    if (ret_vocabulary.tokens[place].size() == 1) {
      ret_vocabulary.bytes[static_cast<unsigned char>(ret_vocabulary.tokens[place][0])] = id;
    }
  }
  const auto missing = std::ranges::find(ret_vocabulary.bytes, text::kNoId);
  if (missing != ret_vocabulary.bytes.end()) {
    refuse(
        file,
        "there is no token for the byte " + std::to_string(missing - ret_vocabulary.bytes.begin()) +
            ": it is no byte-level vocabulary"
    );
  }
}

/// Notes in `ret_made` which ids a merge makes.
void add_merges(
    std::string_view text,
    const IdsByToken& ids,
    const std::string& file,
    Vocabulary& ret_vocabulary,
    std::vector<bool>& ret_made
) {
  size_t number = 0; // number of the line
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (line.empty() || (number == 1 && line.starts_with("#version"))) {
      continue;
    }
    const auto where = [&] { return "line " + std::to_string(number) + ", " + shown(line) + ", "; };
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      refuse(file, where() + "is no pair of tokens with a blank between them");
    }
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) {
        refuse(file, where() + "needs the token " + shown(token) + ", which the vocabulary lacks");
      }
      return found->second;
    };
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const int32_t whole = id_of(left + right);
    const auto rank = static_cast<int32_t>(ret_vocabulary.merges.size());
    text::Merge& merge = ret_vocabulary.merges(id_of(left), id_of(right));
    if (merge.id != text::kNoId) {
      refuse(file, where() + "is given twice");
    }
    merge = {rank, whole};
    ret_made[static_cast<size_t>(whole)] = true;
  }
}

} // namespace

Vocabulary read_vocabulary(
    std::string_view vocab,
    const std::string& vocab_file,
    std::string_view merges,
    const std::string& merges_file,
    const std::vector<std::string>& special
) {
  VocabHandler handler(vocab_file);
  (void)nlohmann::json::sax_parse(vocab, &handler);
  Vocabulary vocabulary;
  add_tokens(handler.ids, vocab_file, vocabulary);
  std::vector<bool> made(vocabulary.tokens.size());
  add_merges(merges, handler.ids, merges_file, vocabulary, made);
  for (const std::string& token : special) {
    const auto found = handler.ids.find(token);
    if (found != handler.ids.end() && !token.empty()) {
      vocabulary.special.emplace(token, found->second);
      vocabulary.tokens[static_cast<size_t>(found->second)] = token;
      made[static_cast<size_t>(found->second)] = true;
    }
  }
  for (const auto& [token, id] : handler.ids) {
    const auto place = static_cast<size_t>(id);
    if (!made[place] && vocabulary.tokens[place].size() != 1) {
      throw Error(
          merges_file + ": no line makes the token " + shown(token) + " (id " + std::to_string(id) +
              ") of " + vocab_file,
          "get both files anew, or, if it is a special token, name it in tokenizer.special_tokens",
          exit_code::data
      );
    }
  }
  return vocabulary;
}

} // namespace mh::gpt2
