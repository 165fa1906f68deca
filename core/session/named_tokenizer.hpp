#pragma once
/// A plugin's tokenizer, whose calls are known as such wherever they are made: in corpora, too.

#include "core/model/plugin_call.hpp"
#include "megahost/tokenizer.hpp"

#include <memory>
#include <utility>

namespace mh {

class NamedTokenizer : public Tokenizer {
public:
  explicit NamedTokenizer(std::unique_ptr<Tokenizer> inner)
      : inner_(std::move(inner)) {}

  [[nodiscard]] int64_t vocab() const override {
    return in_plugin(*inner_, "vocab", [&] { return inner_->vocab(); });
  }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    return in_plugin(*inner_, "encode", [&] { return inner_->encode(text); });
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    return in_plugin(*inner_, "decode", [&] { return inner_->decode(ids); });
  }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override {
    return in_plugin(*inner_, "end_of_document", [&] { return inner_->end_of_document(); });
  }

  [[nodiscard]] SpecialIds special_ids() const override {
    return in_plugin(*inner_, "special_ids", [&] { return inner_->special_ids(); });
  }

  [[nodiscard]] std::string token(int32_t id) const override {
    return in_plugin(*inner_, "token", [&] { return inner_->token(id); });
  }

  [[nodiscard]] bool lossy() const override {
    return in_plugin(*inner_, "lossy", [&] { return inner_->lossy(); });
  }

private:
  std::unique_ptr<Tokenizer> inner_;
};

} // namespace mh
