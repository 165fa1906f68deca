#include "plugins/data/tokenizers/tokenizers.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>

namespace tokenizers_tests {

namespace {

mh::NullTokenizer null_tokenizer(int64_t vocab) {
  return mh::NullTokenizer({vocab}, {});
}

} // namespace

TEST_CASE("every byte string comes back unchanged") {
  const mh::ByteTokenizer tokenizer({}, {});
  CHECK(tokenizer.vocab() == 256);
  CHECK(!tokenizer.end_of_document());
  std::string all;
  for (int i = 0; i < 256; ++i) {
    all += static_cast<char>(i);
  }
  // Overlong, cut off, a surrogate, past the last code point: no UTF-8 at all.
  for (const std::string& text :
       {std::string(),
        all,
        std::string("gr\xc3\xbc\xc3\x9f"),
        std::string("\xc0\xaf\xe2\x82\xed\xa0\x80\xf5\x80\x80\x80"),
        std::string(3, '\0')}) {
    const auto ids = tokenizer.encode(text);
    CHECK(ids.size() == text.size());
    CHECK(tokenizer.decode(ids) == text);
  }
  CHECK(tokenizer.encode(all)[255] == 255);
}

TEST_CASE("bytes with special tokens") {
  const mh::ByteTokenizer tokenizer({.special = true, .extra_ids = 11}, {});
  CHECK(tokenizer.vocab() == 256 + 5 + 11);
  const auto special = tokenizer.special_ids();
  CHECK(special.pad == 256);
  CHECK(special.eos == 257);
  CHECK(tokenizer.end_of_document() == 257);
  CHECK(special.cls == 258);
  CHECK(special.sep == 259);
  CHECK(special.mask == 260);
  REQUIRE(special.extra.size() == 11);
  const std::vector<int32_t> ids{'a', 260, '[', 'M', 261, 271, '<'};
  CHECK(tokenizer.encode("a[MASK][M<extra_id_0><extra_id_10><") == ids);
  CHECK(tokenizer.decode(ids) == "a[MASK][M<extra_id_0><extra_id_10><");
  CHECK(tokenizer.token(261) == "<extra_id_0>");
  const mh::ByteTokenizer plain({}, {});
  CHECK(plain.encode("[MASK]").size() == 6);
}

TEST_CASE("ids that are no bytes are refused") {
  const mh::ByteTokenizer tokenizer({}, {});
  for (int32_t id : {-1, 256, 50256}) {
    CHECK_THROWS_WITH_AS(
        (void)tokenizer.decode(std::vector<int32_t>{65, id}),
        ("id " + std::to_string(id) + " is no byte: the byte tokenizer has ids 0 to 255").c_str(),
        mh::Error
    );
  }
}

TEST_CASE("ids in decimal") {
  const auto tokenizer = null_tokenizer(1000);
  CHECK(tokenizer.vocab() == 1000);
  CHECK(tokenizer.encode("") == std::vector<int32_t>{});
  CHECK(tokenizer.encode(" \n") == std::vector<int32_t>{});
  CHECK(tokenizer.encode("0 999\t7\r\n007") == std::vector<int32_t>{0, 999, 7, 7});
  CHECK(tokenizer.decode(std::vector<int32_t>{0, 999, 7}) == "0 999 7");
  CHECK(tokenizer.decode({}) == "");
}

TEST_CASE("words that are no ids are refused with their place") {
  const auto tokenizer = null_tokenizer(1000);
  for (const char* word : {"1000", "-1", "x", "1.5", "12a", "+1", "99999999999999999999"}) {
    CHECK_THROWS_WITH_AS(
        (void)tokenizer.encode("5 " + std::string(word)),
        ("`" + std::string(word) +
         "` at byte 2 is no id: the null tokenizer reads whole numbers from 0 to 999")
            .c_str(),
        mh::Error
    );
  }
}

TEST_CASE("the null tokenizer wants a vocabulary") {
  const auto fields = mh::fields_of<mh::NullTokenizer>();
  CHECK_THROWS_AS((void)fields.read(mh::Table{}), mh::Error);
  CHECK_THROWS_AS((void)fields.read(mh::Table{{"vocab", 0}}), mh::Error);
  CHECK(fields.read(mh::Table{{"vocab", 5}}).vocab == 5);
}

} // namespace tokenizers_tests
