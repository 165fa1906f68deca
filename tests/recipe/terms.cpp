// The names of a recipe's keys in other programs.

#include "core/schema/terms.hpp"

#include "core/megatron/arguments.hpp"
#include "core/schema/sections.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>

namespace terms_tests {

namespace {

const mh::SectionSchemas& known() {
  static const mh::SectionSchemas schemas =
      mh::section_schemas(mh::test::Plugins().of(mh::Kind::strategy));
  return schemas;
}

std::string key_of(const char* path) {
  const auto meaning = mh::meaning_of(path, known());
  return meaning ? meaning->key : "unknown";
}

/// Whether the core or a plugin of the key's section can have it.
bool may_be(std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) {
    return mh::recipe_schema().find(key) != nullptr;
  }
  const auto section = key.substr(0, dot);
  const auto& names = mh::section_names();
  return std::find(names.begin(), names.end(), section) != names.end() &&
         (mh::plugin_section(section) || known().find(section)->second.find(key.substr(dot + 1)));
}

/// The words in backticks of a cell.
std::vector<std::string> quoted(const std::string& cell) {
  static const std::regex code("`([^`]+)`");
  std::vector<std::string> words;
  for (std::sregex_iterator at(cell.begin(), cell.end(), code), end; at != end; ++at) {
    words.push_back((*at)[1]);
  }
  return words;
}

/// The first table of docs/terms.md: a key of ours, then other programs' terms for it.
std::vector<std::vector<std::string>> documented_terms() {
  const char* source = std::getenv("MEGAHOST_SOURCE");
  REQUIRE(source != nullptr);
  std::ifstream file(std::string(source) + "/docs/terms.md");
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `")) {
      std::vector<std::string> words = quoted(line.substr(0, line.find('|', 1)));
      for (std::string& term : quoted(line.substr(line.find('|', 1)))) {
        words.push_back(std::move(term));
      }
      rows.push_back(std::move(words));
    } else if (!rows.empty()) {
      break;
    }
  }
  return rows;
}

} // namespace

TEST_CASE("docs/terms.md says what the program says") {
  const auto rows = documented_terms();
  CHECK(rows.size() > 60);
  std::set<std::string> keys;
  for (const auto& row : rows) {
    const std::string& key = row.front();
    CAPTURE(key);
    CHECK(may_be(key));
    CHECK(keys.insert(key).second);
    CHECK(row.size() > 1);
    for (size_t i = 1; i < row.size(); ++i) {
      const std::string term = row[i].starts_with("--") ? row[i].substr(2) : row[i];
      CAPTURE(term);
      CHECK((term == key || key_of(term.c_str()) == key));
    }
  }
}

TEST_CASE("names of Megatron-LM, torchtitan and Hugging Face, at any level") {
  CHECK(key_of("save_interval") == "checkpoint.interval");
  CHECK(key_of("train.save-interval") == "checkpoint.interval");
  CHECK(key_of("global_batch_size") == "batch.global");
  CHECK(key_of("batch.GLOBAL_BATCH_SIZE") == "batch.global");
  CHECK(key_of("training.local_batch_size") == "batch.micro");
  CHECK(key_of("training.steps") == "train.iters");
  CHECK(key_of("validation.steps") == "train.eval_iters");
  CHECK(key_of("parallelism.tensor_parallel_degree") == "parallel.tensor");
  CHECK(key_of("model.num_hidden_layers") == "model.layers");
  CHECK(key_of("per_device_train_batch_size") == "batch.micro");
  CHECK(key_of("torch_dtype") == "precision");
}

TEST_CASE("our own keys in another section") {
  CHECK(key_of("lr") == "optimizer.lr");
  CHECK(key_of("train.clip_grad") == "optimizer.clip_grad");
  CHECK(key_of("train.iters") == "unknown"); // where it belongs
  CHECK(key_of("optimizer.lrr") == "unknown");
}

TEST_CASE("other programs' words for a value") {
  const std::vector<std::string> formats{"auto", "fp32", "bf16", "fp16", "fp8"};
  CHECK(mh::word_meant("bfloat16", formats) == "bf16");
  CHECK(mh::word_meant("fp61", formats) == "fp16"); // the nearest
  CHECK(mh::word_meant("gpu", {"cpu", "cuda"}) == "cuda");
  CHECK(mh::word_meant("silu", {"gelu", "gelu_tanh", "swiglu"}) == "swiglu");
  CHECK(mh::word_meant("rotary", {"learned", "rope", "none"}) == "rope");
  CHECK(mh::word_meant("p2p", {"ring", "all_gather", "all_to_all"}) == "ring");
  CHECK(mh::word_meant("Ulysses", {"ring", "all_gather", "all_to_all"}) == "all_to_all");
  CHECK(mh::word_meant("rng", {"ring", "all_gather", "all_to_all"}) == "ring");
  CHECK_FALSE(mh::word_meant("tree", {"ring", "all_gather", "all_to_all"}));
  CHECK_FALSE(mh::word_meant("bfloat16", {"line", "json"}));
}

TEST_CASE("what has no equivalent says why") {
  const auto meaning = mh::meaning_of("transformer_impl", known());
  REQUIRE(meaning);
  CHECK(meaning->key.empty());
  CHECK(meaning->note == "kernels are chosen by the device");
}

TEST_CASE("each term stands once and means a key that can be there") {
  std::set<std::string_view> names;
  for (const mh::ForeignTerm& term : mh::foreign_terms()) {
    CAPTURE(term.name);
    CHECK(names.insert(term.name).second);
    CHECK(may_be(term.key));
    CHECK(key_of(std::string(term.name).c_str()) == term.key);
  }
  for (const mh::MegatronArgument& argument : mh::megatron_arguments()) {
    CAPTURE(argument.name);
    CHECK((argument.key.empty() || may_be(argument.key)));
  }
}

} // namespace terms_tests
