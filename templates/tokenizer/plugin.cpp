// Half bytes: each byte of a text becomes two tokens of a vocabulary of 16, and one more ends a
// document. Small enough to read, and complete: any text comes back as it was.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/tokenizer.hpp>

namespace {

class @Name@ : public mh::Tokenizer {
public:
  struct Config {
    bool high_first = true;
  };

  // Each field is an option of the recipe's section: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("high_first", &Config::high_first, "the high half of a byte comes first");
  }

  @Name@(const Config& config, const Args&)
      : first_(config.high_first ? 4 : 0) {}

  int64_t vocab() const override { return 17; }

  std::optional<int32_t> end_of_document() const override { return 16; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size() * 2);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      ids.push_back(byte >> first_ & 15);
      ids.push_back(byte >> (4 - first_) & 15);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    int byte = 0, halves = 0;
    for (const int32_t id : ids) {
      if (id < 0 || id > 16) {
        throw mh::Error(
            "id " + std::to_string(id) + " is not one of the tokenizer @name@: they are 0 to 16",
            "use the tokenizer that the ids were made with",
            mh::exit_code::data
        );
      }
      if (id == 16) { // the end of a document has no text
        continue;
      }
      byte |= id << (halves == 0 ? first_ : 4 - first_);
      if (++halves == 2) {
        text += static_cast<char>(byte);
        byte = halves = 0;
      }
    }
    return text;
  }

private:
  int first_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a tokenizer", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "two tokens for each byte");
})
