#include "core/train/closing_text.hpp"

#include "core/model/plugin_call.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace mh {

std::optional<ClosingText> closing_text(const Session& session, const ClosingTextOptions& options) {
  constexpr int64_t kPromptTokens = 24;
  const auto start = std::chrono::steady_clock::now();
  const auto split = samples_of(*session.corpus, Split::valid) > 0 ? Split::valid : Split::train;
  const auto sample =
      in_plugin(*session.corpus, "sample", [&] { return session.corpus->sample(split, 0); });
  const auto found = sample.find("tokens");
  if (found == sample.end()) {
    return std::nullopt;
  }
  const auto& given = std::get<std::vector<int64_t>>(found->second);
  const auto length = std::min(static_cast<int64_t>(given.size()), kPromptTokens);
  const std::vector<int32_t> prompt(given.begin(), given.begin() + length);
  ClosingText result{session.tokenizer->decode(prompt), ""};
  TextStream stream(*session.tokenizer, prompt);
  const auto enough = [&](int32_t id) {
    result.text += stream.add(id);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return static_cast<int64_t>(result.text.size()) < options.characters &&
           spent.count() < options.seconds;
  };
  GenerateOptions how{.sampling = options.sampling, .tokens = options.characters};
  for (const auto& [name, length] : session.architecture->sequences()) {
    if (const auto other = sample.find(name + "_tokens"); other != sample.end()) {
      const auto& tokens = std::get<std::vector<int64_t>>(other->second);
      how.sequences[name].assign(tokens.begin(), tokens.end());
    }
  }
  try {
    static_cast<void>(generate(session, prompt, how, enough));
  } catch (const WritesNoText&) {
    return std::nullopt;
  }
  result.text += stream.finish();
  return result;
}

} // namespace mh
