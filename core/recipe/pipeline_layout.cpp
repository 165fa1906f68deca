#include "megahost/pipeline_layout.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

namespace mh {

namespace {

/// The pieces of a text between separators.
std::vector<std::string_view> pieces(std::string_view text, char separator) {
  std::vector<std::string_view> found;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

std::optional<LayoutChunk> parse_chunk(std::string_view text) {
  LayoutChunk chunk;
  int64_t* const layers = &chunk.layers;
  for (const std::string_view term : pieces(text, '+')) {
    if (term == "embed" && chunk == LayoutChunk{}) {
      chunk.embedding = true;
    } else if (term == "head" && !chunk.head) {
      chunk.head = true;
    } else {
      const auto [end, error] = std::from_chars(term.data(), term.data() + term.size(), *layers);
      if (error != std::errc() || end != term.data() + term.size() || *layers < 1 || chunk.head) {
        return std::nullopt;
      }
    }
  }
  return chunk;
}

} // namespace

std::optional<std::vector<LayoutChunk>> parse_layout(std::string_view text) {
  std::vector<LayoutChunk> chunks;
  for (const std::string_view piece : pieces(text, '|')) {
    const auto chunk = parse_chunk(piece);
    if (!chunk) {
      return std::nullopt;
    }
    chunks.push_back(*chunk);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].embedding != (i == 0) || chunks[i].head != (i + 1 == chunks.size())) {
      return std::nullopt;
    }
  }
  return chunks;
}

std::string layout_text(const std::vector<LayoutChunk>& chunks) {
  std::string text;
  for (const auto& chunk : chunks) {
    std::string piece = chunk.embedding ? "embed" : "";
    if (chunk.layers > 0) {
      piece += (piece.empty() ? "" : "+") + std::to_string(chunk.layers);
    }
    if (chunk.head) {
      piece += piece.empty() ? "head" : "+head";
    }
    text += (text.empty() ? "" : "|") + piece;
  }
  return text;
}

std::vector<LayoutChunk> even_layout(int64_t layers, int64_t chunks) {
  MH_ASSERT(layers % chunks == 0, "an even layout has the same layers in each chunk");
  std::vector<LayoutChunk> all(static_cast<size_t>(chunks), {false, layers / chunks, false});
  all.front().embedding = true;
  all.back().head = true;
  return all;
}

namespace {

/// Cuts layers into chunks by dynamic programming over (chunk, layers before its end).
class Cutter {
public:
  Cutter(const std::vector<double>& costs, size_t chunks)
      : chunks_(chunks)
      , layers_(costs.size() - 2) {
    sums_.push_back(0);
    for (const double cost : costs) {
      sums_.push_back(sums_.back() + cost);
    }
  }

  std::vector<LayoutChunk> cut() {
    using Join = std::function<double(double, double)>;
    const double most =
        best([](double before, double own) { return std::max(before, own); }, kNone);
    (void)best( // the one with the least squares among all with that maximum
        Join([](double before, double own) { return before + own * own; }),
        most * (1 + 1e-9)
    );
    std::vector<LayoutChunk> result(chunks_);
    size_t end = layers_;
    for (size_t chunk = chunks_; chunk-- > 0;) {
      const size_t begin = from_[chunk][end];
      result[chunk] = {chunk == 0, static_cast<int64_t>(end - begin), chunk + 1 == chunks_};
      end = begin;
    }
    return result;
  }

private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  /// The cost of layers [begin, end) as chunk `chunk`, with the embedding or the head.
  [[nodiscard]] double cost(size_t chunk, size_t begin, size_t end) const {
    const size_t first = chunk == 0 ? 0 : begin + 1;
    const size_t last = chunk + 1 == chunks_ ? layers_ + 2 : end + 1;
    return sums_[last] - sums_[first];
  }

  /// The least value of all cuts whose chunks cost at most `limit`.
  double best(const std::function<double(double, double)>& join, double limit) {
    std::vector<double> before(layers_ + 1, kNone);
    before[0] = 0;
    from_.assign(chunks_, std::vector<size_t>(layers_ + 1, 0));
    for (size_t chunk = 0; chunk < chunks_; ++chunk) {
      std::vector<double> now(layers_ + 1, kNone);
      const size_t least = chunk + 1 == chunks_ && chunk > 0 ? 0 : 1;
      for (size_t end = least; end <= layers_; ++end) {
        for (size_t begin = 0; begin + least <= end; ++begin) {
          const double own = cost(chunk, begin, end);
          const double value = own <= limit ? join(before[begin], own) : kNone;
          if (value < now[end]) {
            now[end] = value;
            from_[chunk][end] = begin;
          }
        }
      }
      before = std::move(now);
    }
    return before[layers_];
  }

  size_t chunks_, layers_;
  std::vector<double> sums_;              // costs of the first 0, 1, 2, ... blocks
  std::vector<std::vector<size_t>> from_; // where a chunk that ends at a layer begins
};

} // namespace

std::vector<LayoutChunk> balanced_layout(const std::vector<double>& costs, int64_t chunks) {
  MH_ASSERT(
      chunks >= 1 && static_cast<int64_t>(costs.size()) - 2 >= chunks,
      "a balanced layout has a layer for each chunk"
  );
  return Cutter(costs, static_cast<size_t>(chunks)).cut();
}

} // namespace mh
