#include "core/text/byte_pairs.hpp"

#include "core/text/added_tokens.hpp"
#include "core/text/byte_alphabet.hpp"
#include "tests/text/texts.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace mh::text;

namespace {

using Ids = std::vector<int32_t>;

/// Merges by the definition: the lowest rank of all, the leftmost of those, again and again.
Ids merged_slowly(const PairMap& merges, Ids ids) {
  for (;;) {
    size_t best = ids.size();
    int32_t rank = INT32_MAX;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge merge = merges.find(ids[i], ids[i + 1]);
      if (merge.id != kNoId && merge.rank < rank) {
        rank = merge.rank;
        best = i;
      }
    }
    if (best == ids.size()) {
      return ids;
    }
    ids[best] = merges.find(ids[best], ids[best + 1]).id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

/// Four letters, and random merges of what is there.
PairMap random_merges(std::mt19937& random) {
  PairMap merges;
  for (int32_t id = 4; id < 40; ++id) {
    Merge& merge = merges(static_cast<int32_t>(random() % id), static_cast<int32_t>(random() % id));
    merge = {static_cast<int32_t>(random() % 20), id}; // ranks twice, too
  }
  return merges;
}

std::vector<std::pair<std::string, int32_t>>
parts(const AddedTokens& tokens, std::string_view text) {
  std::vector<std::pair<std::string, int32_t>> all;
  tokens.split(text, [&](std::string_view part, int32_t id) { all.emplace_back(part, id); });
  return all;
}

} // namespace

TEST_CASE("merges of words of any length") {
  std::mt19937 random(4);
  for (int round = 0; round < 40; ++round) {
    const PairMap merges = random_merges(random);
    for (int i = 0; i < 100; ++i) {
      Ids ids(random() % 60);
      std::ranges::generate(ids, [&] { return static_cast<int32_t>(random() % 4); });
      const Ids expected = merged_slowly(merges, ids);
      merge_pairs(merges, ids);
      REQUIRE(ids == expected);
    }
  }
}

TEST_CASE("maps with many entries") {
  TokenMap tokens;
  PairMap pairs;
  for (int32_t i = 0; i < 20000; ++i) {
    CHECK(tokens.add("token " + std::to_string(i), i));
    pairs(i, i + 1) = {i, i};
  }
  CHECK_FALSE(tokens.add("token 7", 8));
  int wrong = 0;
  for (int32_t i = 0; i < 20000; ++i) {
    wrong += tokens.find("token " + std::to_string(i)) != i || pairs.find(i, i + 1).id != i ? 1 : 0;
    wrong += pairs.find(i + 1, i).id != kNoId || tokens.find(std::to_string(i)) != kNoId ? 1 : 0;
  }
  CHECK(wrong == 0);
  CHECK(TokenMap().find("a") == kNoId);
  CHECK(PairMap().find(1, 2).id == kNoId);
}

TEST_CASE("vocabularies by rank say their merges") {
  std::vector<std::string> tokens{"a", "b", "c", "ab", "bc", "abc", "abcabc"};
  BytePairModel model;
  for (size_t i = 0; i < tokens.size(); ++i) {
    model.tokens.add(tokens[i], static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < 3; ++i) {
    model.bytes[static_cast<unsigned char>(tokens[i][0])] = static_cast<int32_t>(i);
  }
  add_pairs_by_rank(tokens, model.tokens, model.merges);
  Ids ids;
  model.encode("abcabcbca", ids);
  CHECK(ids == Ids{6, 4, 0});
}

TEST_CASE("an encoder remembers, and forgets, without being seen") {
  std::mt19937 random(5);
  CharacterPairModel model;
  for (int32_t i = 0; i < 26; ++i) {
    model.tokens.add(std::string(1, static_cast<char>('a' + i)), i);
  }
  model.tokens.add("ab", 26);
  model.merges(0, 1) = {0, 26};
  WordEncoder encoder(model);
  int wrong = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string word;
    for (size_t letters = 1 + random() % 20; letters > 0; --letters) {
      word += static_cast<char>('a' + random() % (i % 2 == 0 ? 3 : 26));
    }
    Ids ids, expected;
    encoder.encode(word, ids);
    model.encode(word, expected);
    wrong += ids != expected ? 1 : 0;
  }
  CHECK(wrong == 0);
  const auto splitter = gpt2_splitter();
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_text(random, 200);
    Ids ids{7}, expected{7};
    encoder.encode(text, *splitter, ids);
    std::vector<size_t> ends(text.size());
    size_t begin = 0;
    for (size_t k = 0, count = splitter->ends(text, 0, ends); k < count; ++k) {
      model.encode(std::string_view(text).substr(begin, ends[k] - begin), expected);
      begin = ends[k];
    }
    REQUIRE(ids == expected);
  }
}

TEST_CASE("characters without a token") {
  CharacterPairModel model;
  model.tokens.add("a", 0);
  model.tokens.add("a</w>", 1);
  Ids ids;
  model.encode("axya", ids);
  CHECK(ids == Ids{0, 0}); // nothing is known of them
  model.unknown = 9;
  ids.clear();
  model.encode("axya", ids);
  CHECK(ids == Ids{0, 9, 9, 0});
  model.fuse_unknown = true;
  model.suffix = "</w>";
  ids.clear();
  model.encode("axya", ids);
  CHECK(ids == Ids{0, 9, 1});
  model.byte_tokens.emplace();
  for (int32_t byte = 0; byte < 256; ++byte) {
    (*model.byte_tokens)[static_cast<size_t>(byte)] = 100 + byte;
  }
  ids.clear();
  model.encode("aéa", ids);
  CHECK(ids == Ids{0, 100 + 0xC3, 100 + 0xA9, 1});
}

TEST_CASE("added tokens: leftmost, longest, with the white space that is theirs") {
  AddedTokens tokens;
  tokens.add({.content = "<a>", .id = 1});
  tokens.add({.content = "<a><b>", .id = 2});
  tokens.add({.content = "[M]", .id = 3, .lstrip = true});
  tokens.add({.content = "[R]", .id = 4, .rstrip = true});
  tokens.add({.content = "word", .id = 5, .single_word = true});
  using Parts = std::vector<std::pair<std::string, int32_t>>;
  CHECK(
      parts(tokens, "x<a><b><a>y") == Parts{{"x", kNoId}, {"<a><b>", 2}, {"<a>", 1}, {"y", kNoId}}
  );
  CHECK(parts(tokens, "x \u3000[M] y") == Parts{{"x", kNoId}, {" \u3000[M]", 3}, {" y", kNoId}});
  CHECK(parts(tokens, "[R]  \n[M]z") == Parts{{"[R]  \n", 4}, {"[M]", 3}, {"z", kNoId}});
  CHECK(
      parts(tokens, "word words éword word") ==
      Parts{{"word", 5}, {" words éword ", kNoId}, {"word", 5}}
  );
  CHECK(
      parts(tokens, "\xFF<a>\xFF[M]") ==
      Parts{{"\xFF", kNoId}, {"<a>", 1}, {"\xFF", kNoId}, {"[M]", 3}}
  );
  CHECK(parts(tokens, "<a") == Parts{{"<a", kNoId}});
  CHECK(parts(tokens, "").empty());
}

TEST_CASE("bytes as letters") {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  CHECK(token_bytes(byte_letters(all)) == all);
  CHECK(byte_letters(" \n!") == "\u0120\u010A!");
  CHECK(is_byte_token("\u0120abc"));
  CHECK_FALSE(is_byte_token("\u2581abc"));
  CHECK(token_bytes("\u2581\u0120") == "\u2581\u0120");
}
