#include "core/train/closing_text.hpp"

#include "core/base/text.hpp"
#include "core/model/plugin_call.hpp"
#include "core/model/spans.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

namespace mh {

std::optional<ClosingText> closing_text(const Session& session, const ClosingTextOptions& options) {
  constexpr size_t kPromptTokens = 24;
  const auto start = std::chrono::steady_clock::now();
  const auto split = samples_of(*session.corpus, Split::valid) > 0 ? Split::valid : Split::train;
  const auto sample =
      in_plugin(*session.corpus, "sample", [&] { return session.corpus->sample(split, 0); });
  const Tokenizer& tokenizer = *session.tokenizer;
  std::vector<int32_t> prompt = first_document(sample, "");
  if (prompt.empty()) {
    return std::nullopt;
  }
  GenerateOptions how{.sampling = options.sampling, .tokens = options.characters};
  std::vector<int32_t> with_spans;
  for (const auto& [name, length] : session.architecture->sequences()) {
    const auto& ids = how.sequences[name] = first_document(sample, name);
    with_spans = has_spans(ids, tokenizer) ? ids : with_spans;
  }
  const auto taken = first_document(sample, "", with_spans.empty() ? "" : "labels");
  prompt.resize(std::min(prompt.size(), taken.empty() ? kPromptTokens : 1));
  how.sampling.temperature = taken.empty() ? how.sampling.temperature : 0;
  how.tokens = taken.empty() ? how.tokens : std::ssize(taken);
  TextStream stream(tokenizer, prompt);
  std::string text;
  const auto enough = [&](int32_t id) {
    text += stream.add(id);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    return static_cast<int64_t>(text.size()) < options.characters &&
           spent.count() < options.seconds;
  };
  try {
    const Generated made = generate(session, prompt, how, enough);
    if (!taken.empty()) {
      return ClosingText{
          "what the model fills in, {+so+}; before it [-what was there-], if that is another text",
          filled_text(with_spans, made.ids, taken, tokenizer)};
    }
  } catch (const WritesNoText&) {
    return std::nullopt;
  }
  const std::string given = terminal_text(tokenizer.decode(prompt));
  return ClosingText{"what the model writes after \"" + given + "\"", text + stream.finish()};
}

} // namespace mh
