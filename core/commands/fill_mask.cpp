#include "core/encoders/fill_mask.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/given_model.hpp"
#include "core/draw/columns.hpp"
#include "core/draw/terminal.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdio>
#include <span>

namespace mh {

namespace {

/// The text with the likeliest token at each hidden place.
std::string filled(
    MaskedText text, const std::vector<std::vector<Guess>>& guesses, const Tokenizer& tokenizer
) {
  for (size_t i = 0; i < guesses.size(); ++i) {
    text.ids[text.hidden[i]] = guesses[i].front().id;
  }
  return valid_utf8(tokenizer.decode(
      std::span<const int32_t>(text.ids).subspan(text.first, text.last - text.first)
  ));
}

} // namespace

int command_fill_mask(const Invocation& invocation, Host& host) {
  if (!invocation.has("--text")) {
    throw Error("megahost fill-mask needs --text TEXT", "write [MASK] where the model is to guess");
  }
  constexpr int64_t kMost = 1000;
  const int64_t most = number_option(invocation, "--top", 5, 1, kMost);
  const auto [processes, session, weights] = given_model(invocation, host);
  require_fills_masks(*session->architecture);
  const Tokenizer& tokenizer = *session->tokenizer;
  const MaskedText text = masked_text(invocation.value("--text"), tokenizer);
  const auto guesses = fill_mask(*session, text, most);
  const std::string whole = filled(text, guesses, tokenizer);
  if (invocation.has("--json")) {
    nlohmann::json object{
        {"text", whole}, {"hidden", nlohmann::json::array()}, {"weights", weights.description}};
    for (const auto& place : guesses) {
      auto& row = object["hidden"].emplace_back(nlohmann::json::array());
      for (const Guess& guess : place) {
        row.push_back(
            {{"id", guess.id},
             {"token", valid_utf8(tokenizer.token(guess.id))},
             {"probability", guess.share}}
        );
      }
    }
    std::printf("%s\n", json_text(object).c_str());
    return 0;
  }
  std::vector<TextRow> rows{{"GUESS"}};
  for (size_t i = 0; i < guesses.size(); ++i) {
    rows.front().push_back(std::string(kMaskWord) + " " + std::to_string(i + 1));
  }
  for (size_t rank = 0; rank < guesses.front().size(); ++rank) {
    TextRow& row = rows.emplace_back(TextRow{std::to_string(rank + 1)});
    for (const auto& place : guesses) {
      row.push_back(
          terminal_text(valid_utf8(tokenizer.token(place[rank].id))) +
          formatted(" %.1f%%", 100 * place[rank].share)
      );
    }
  }
  const std::string table = columns(rows, Terminal::of(STDOUT_FILENO));
  std::printf("%s\n\n%s", terminal_text(whole).c_str(), table.c_str());
  return 0;
}

} // namespace mh
