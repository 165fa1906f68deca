#pragma once
/// GPT-2's cut of a text into words, within which tokens are merged.

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace mh::gpt2 {

/// Bytes at the beginning of `text` that are valid UTF-8.
[[nodiscard]] size_t valid_utf8_prefix(std::string_view text);

/// The pattern, compiled; many threads may use one.
class WordPattern {
public:
  WordPattern();
  ~WordPattern();
  WordPattern(const WordPattern&) = delete;
  WordPattern& operator=(const WordPattern&) = delete;

  /// Memory of one match; one for each thread.
  class Scratch {
  public:
    explicit Scratch(const WordPattern& pattern);

  private:
    friend class WordPattern;
    std::shared_ptr<void> match_;
  };

  /// Calls `take` for each word, in order; together they are the text. Each run of bytes that are
  /// no UTF-8 is a word.
  ///
  /// Source:  github.com/openai/gpt-2, src/encoder.py; white space as Unicode has it
  template <class Take>
  void cut(std::string_view text, Scratch& scratch, Take take) const {
    while (!text.empty()) {
      std::string_view valid = text.substr(0, valid_utf8_prefix(text));
      text.remove_prefix(valid.size());
      for (size_t begin = 0; begin < valid.size();) {
        const size_t end = word_end(valid, begin, scratch);
        take(valid.substr(begin, end - begin));
        begin = end;
      }
      size_t broken = 0;
      while (broken < text.size() && valid_utf8_prefix(text.substr(broken, 4)) == 0) {
        ++broken;
      }
      if (broken > 0) {
        take(text.substr(0, broken));
        text.remove_prefix(broken);
      }
    }
  }

private:
  /// The end of the word that begins at `begin`. `text` is valid UTF-8.
  [[nodiscard]] size_t word_end(std::string_view text, size_t begin, Scratch& scratch) const;

  void* code_;
  bool compiled_ = false; // to machine code
};

} // namespace mh::gpt2
