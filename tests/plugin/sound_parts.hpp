#pragma once
/// Parts of plugins without a fault, from which faulty ones are made.

#include "megahost/corpus.hpp"
#include "megahost/schema.hpp"
#include "megahost/tokenizer.hpp"

#include <exception>
#include <string>
#include <vector>

namespace sound {

/// An exception without words.
struct Silent : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return ""; }
};

struct None {};

/// An interface without options.
template <class Base>
struct Plain : Base {
  using Config = None;

  static void fields(mh::Fields<None>&) {}
};

/// Four samples of a document of one id.
class OneDocument : public Plain<mh::Corpus> {
public:
  OneDocument(const None&, const Args& args)
      : args_(args) {}

  int64_t size(mh::Split split) const override {
    return args_.split[static_cast<size_t>(split)] > 0 ? 4 : 0;
  }

  mh::Sample sample(mh::Split, int64_t) const override {
    const auto length = static_cast<size_t>(args_.seq_length);
    const std::vector<int64_t> ids(length, 0);
    return {{"tokens", ids}, {"labels", ids}, {"loss_mask", std::vector<float>(length, 1)}};
  }

  std::string summary() const override { return "zeros"; }

private:
  Args args_;
};

/// A byte is an id.
class ByteIds : public Plain<mh::Tokenizer> {
public:
  int64_t vocab() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
};

} // namespace sound
