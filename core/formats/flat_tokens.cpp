#include "core/formats/flat_tokens.hpp"

#include "core/formats/npy.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace mh {

namespace {

constexpr size_t kLlmcHeader = 1024;

struct LlmcKind {
  int32_t magic, version;
  const char* type;
};

constexpr std::array<LlmcKind, 2> kLlmcKinds{{{20240520, 1, "uint16"}, {20240801, 7, "uint32"}}};

[[noreturn]] void refuse_flat(const std::string& file, const std::string& why, const char* hint) {
  throw Error(file + ": " + why, hint, exit_code::data);
}

/// "uint16" of numpy's "<u2"; the type itself where it is none of whole numbers.
std::string type_word(const std::string& npy) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 8> kWords{
      {{"u1", "uint8"},
       {"u2", "uint16"},
       {"u4", "uint32"},
       {"u8", "uint64"},
       {"i1", "int8"},
       {"i2", "int16"},
       {"i4", "int32"},
       {"i8", "int64"}}};
  const std::string_view type = std::string_view(npy).substr(npy.empty() ? 0 : 1);
  const auto found = std::ranges::find(kWords, type, &decltype(kWords)::value_type::first);
  return found == kWords.end() ? npy : found->second;
}

FlatTokens
of_type(const std::string& word, std::span<const std::byte> ids, const std::string& file) {
  const std::string_view held = word == "uint32" ? "int32" : std::string_view(word);
  const auto type = std::ranges::find(kTokenTypes, held, &TokenType::name);
  if (type == kTokenTypes.end()) {
    refuse_flat(
        file,
        "its ids are of the type `" + word + "`",
        "token files hold uint8, uint16, uint32, int8, int16, int32 or int64"
    );
  }
  if (ids.size() % type->bytes != 0) {
    refuse_flat(
        file,
        std::to_string(ids.size()) + " bytes of ids are no whole number of " + word,
        "give the right --token-type, or the whole file"
    );
  }
  return {*type, ids};
}

} // namespace

FlatTokens read_flat_tokens(
    std::span<const std::byte> bytes, const std::string& type, const std::string& file
) {
  if (is_npy(bytes)) {
    const NpyLayout layout = read_npy(bytes, file);
    return of_type(type_word(layout.type), bytes.subspan(layout.begin), file);
  }
  if (bytes.size() >= kLlmcHeader) {
    const auto number = [&](uint64_t index) { return packed<int32_t>(bytes.data(), index); };
    const auto kind = std::ranges::find(kLlmcKinds, number(0), &LlmcKind::magic);
    if (kind != kLlmcKinds.end() && number(1) == kind->version) {
      const FlatTokens tokens = of_type(kind->type, bytes.subspan(kLlmcHeader), file);
      if (std::cmp_not_equal(tokens.count(), number(2))) {
        refuse_flat(
            file,
            "its header counts " + std::to_string(number(2)) + " ids, but " +
                std::to_string(tokens.count()) + " follow",
            "the file is cut short: get it anew"
        );
      }
      return tokens;
    }
  }
  if (type.empty()) {
    refuse_flat(
        file,
        "it has no header that says what its ids are",
        "say --token-type uint16 (nanoGPT, OLMo with small vocabularies) or uint32"
    );
  }
  return of_type(type, bytes, file);
}

} // namespace mh
