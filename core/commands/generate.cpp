#include "core/session/generate.hpp"

#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/given_model.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace mh {

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

GenerateOptions read_options(const Invocation& invocation) {
  GenerateOptions options;
  auto& sampling = options.sampling;
  options.tokens = number_option(invocation, "--tokens", options.tokens, 1, kMost);
  sampling.temperature = real_option(invocation, "--temperature", sampling.temperature, 0.0, 100.0);
  sampling.top_k = number_option(invocation, "--top-k", sampling.top_k, 1, kMost);
  sampling.top_p = real_option(invocation, "--top-p", sampling.top_p, 0.0, 1.0);
  const auto seed = static_cast<int64_t>(sampling.seed);
  sampling.seed = static_cast<uint64_t>(number_option(invocation, "--seed", seed, 0, kMost));
  options.cache = !invocation.has("--no-cache");
  return options;
}

std::vector<int32_t> read_prompt(const std::string& text, const Tokenizer& tokenizer) {
  auto ids = tokenizer.encode(text);
  if (ids.empty() && tokenizer.end_of_document()) {
    ids.push_back(*tokenizer.end_of_document()); // what every document begins after
  }
  return ids;
}

/// The texts of --sequence as tokens.
std::map<std::string, std::vector<int32_t>>
read_sequences(const Invocation& invocation, const Tokenizer& tokenizer) {
  std::map<std::string, std::vector<int32_t>> sequences;
  for (const std::string& one : invocation.all("--sequence")) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos) {
      throw Error("--sequence is \"" + one + "\", expected NAME=TEXT", "write encoder=TEXT");
    }
    sequences[one.substr(0, equals)] = tokenizer.encode(one.substr(equals + 1));
  }
  return sequences;
}

void say_speed(const Generated& made, size_t prompt_tokens, const GenerateOptions& options) {
  const double rest = made.seconds - made.first_seconds;
  const auto steps = static_cast<double>(made.ids.size()) - (made.ended ? 0 : 1);
  std::fprintf(
      stderr,
      "%zu tokens in %.2f s (%.1f tokens/s after the first), prompt of %zu read in %.2f s%s%s\n",
      made.ids.size(),
      made.seconds,
      rest > 0 ? steps / rest : 0.0,
      prompt_tokens,
      made.first_seconds,
      made.cached ? "" : ", without a cache",
      options.cache && !made.cached ? ": not every block of this model says that it reads one" : ""
  );
}

} // namespace

int command_generate(const Invocation& invocation, Host& host) {
  if (!invocation.has("--prompt")) {
    throw Error("megahost generate needs --prompt TEXT", "give what the model is to continue");
  }
  GenerateOptions options = read_options(invocation);
  const auto [processes, session, weights] = given_model(invocation, host);
  const bool json = invocation.has("--json");
  const std::string prompt = invocation.value("--prompt");
  const auto ids = read_prompt(prompt, *session->tokenizer);
  options.sequences = read_sequences(invocation, *session->tokenizer);
  TextStream stream(*session->tokenizer, ids);
  std::string text;
  std::string before = prompt; // shown once the model has been found to continue it
  const auto show = [&](const std::string& news) {
    text += news;
    if (!json) {
      std::fputs((terminal_text(std::exchange(before, "")) + terminal_text(news)).c_str(), stdout);
      std::fflush(stdout);
    }
  };
  const Generated made = generate(*session, ids, options, [&](int32_t id) {
    show(stream.add(id));
    return true;
  });
  show(stream.finish());
  if (json) {
    const nlohmann::json object = {
        {"prompt", valid_utf8(prompt)},
        {"text", text},
        {"prompt_ids", ids},
        {"ids", made.ids},
        {"ended", made.ended},
        {"cached", made.cached},
        {"seconds", made.seconds},
        {"weights", weights.description}};
    std::printf("%s\n", json_text(object).c_str());
  } else {
    std::puts("");
    std::fflush(stdout); // the speed goes elsewhere, and comes after it
    say_speed(made, ids.size(), options);
  }
  return 0;
}

} // namespace mh
