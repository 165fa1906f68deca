#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<Tokenizer> needed_tokenizer(const Invocation& invocation, Host& host) {
  auto tokenizer = given_tokenizer(invocation, host);
  if (tokenizer == nullptr) {
    throw Error(
        "megahost " + invocation.command + " needs a tokenizer",
        "give --tokenizer NAME, with its options as --set tokenizer.KEY=VALUE, or --recipe RECIPE"
    );
  }
  return tokenizer;
}

/// The ids that a line says.
std::vector<int32_t> read_ids(std::string_view text) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    int32_t id = -1;
    const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (failure != std::errc() || stop != word.data() + word.size() || id < 0) {
      throw Error(
          string_text(word.substr(0, 40)) + " is no id",
          "give whole numbers from 0, separated by blanks or commas"
      );
    }
    ids.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return ids;
}

void print_text(const Tokenizer& tokenizer, std::string_view ids, bool as_json) {
  const std::string text = tokenizer.decode(read_ids(ids));
  std::cout << (as_json ? json_text(Json(valid_utf8(text))) : text) << '\n';
}

using NamedId = std::pair<const char*, std::optional<int32_t>>;

std::vector<NamedId> named_ids(const SpecialIds& special) {
  return {
      {"bos", special.bos},
      {"eos", special.eos},
      {"pad", special.pad},
      {"unk", special.unk},
      {"mask", special.mask},
      {"cls", special.cls},
      {"sep", special.sep},
  };
}

Json json_of(const Tokenizer& tokenizer) {
  Json named = Json::object();
  const SpecialIds special = tokenizer.special_ids();
  for (const auto& [name, id] : named_ids(special)) {
    if (id) {
      named[name] = {{"id", *id}, {"token", valid_utf8(tokenizer.token(*id))}};
    }
  }
  const auto end = tokenizer.end_of_document();
  return {
      {"vocab", tokenizer.vocab()},
      {"lossy", tokenizer.lossy()},
      {"end_of_document", end ? Json(*end) : Json()},
      {"special", named},
      {"extra", special.extra},
  };
}

void print_special(const Tokenizer& tokenizer, const char* name, int32_t id) {
  std::printf("  %-9s  %d  %s\n", name, id, string_text(tokenizer.token(id)).c_str());
}

} // namespace

int command_tokenizer_encode(const Invocation& invocation, Host& host) {
  const auto tokenizer = needed_tokenizer(invocation, host);
  std::string text = invocation.arguments[0];
  if (text == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  const std::vector<int32_t> ids = tokenizer->encode(text);
  if (invocation.has("--json")) {
    Json tokens = Json::array();
    for (const int32_t id : ids) {
      tokens.push_back(valid_utf8(tokenizer->token(id)));
    }
    std::puts(json_text(Json{{"ids", ids}, {"tokens", tokens}}).c_str());
    return 0;
  }
  if (invocation.has("--ids")) {
    std::vector<std::string> words;
    std::ranges::transform(ids, std::back_inserter(words), [](int32_t id) {
      return std::to_string(id);
    });
    std::puts(join(words, " ").c_str());
    return 0;
  }
  for (const int32_t id : ids) {
    std::printf("%8d  %s\n", id, string_text(tokenizer->token(id)).c_str());
  }
  std::printf("%zu token%s of %zu bytes\n", ids.size(), ids.size() == 1 ? "" : "s", text.size());
  return 0;
}

int command_tokenizer_decode(const Invocation& invocation, Host& host) {
  const auto tokenizer = needed_tokenizer(invocation, host);
  const bool as_json = invocation.has("--json");
  if (invocation.arguments == std::vector<std::string>{"-"}) {
    for (std::string line; std::getline(std::cin, line);) {
      print_text(*tokenizer, line, as_json);
    }
    return 0;
  }
  print_text(*tokenizer, join(invocation.arguments, " "), as_json);
  return 0;
}

int command_tokenizer_inspect(const Invocation& invocation, Host& host) {
  const auto tokenizer = needed_tokenizer(invocation, host);
  if (invocation.has("--json")) {
    std::puts(json_of(*tokenizer).dump(2).c_str());
    return 0;
  }
  std::printf("  ids        %s\n", grouped(tokenizer->vocab()).c_str());
  std::printf(
      "  texts      %s\n",
      tokenizer->lossy() ? "may come back changed: they are normalized, or tokens are unknown"
                         : "come back byte by byte"
  );
  const auto end = tokenizer->end_of_document();
  if (end) {
    print_special(*tokenizer, "document", *end);
  } else {
    std::puts("  document   no end of document: `data prepare --append-eod` needs one");
  }
  const SpecialIds special = tokenizer->special_ids();
  for (const auto& [name, id] : named_ids(special)) {
    if (id) {
      print_special(*tokenizer, name, *id);
    }
  }
  if (!special.extra.empty()) {
    std::printf(
        "  extra      %zu: %d %s to %d %s\n",
        special.extra.size(),
        special.extra.front(),
        string_text(tokenizer->token(special.extra.front())).c_str(),
        special.extra.back(),
        string_text(tokenizer->token(special.extra.back())).c_str()
    );
  }
  return 0;
}

} // namespace mh
