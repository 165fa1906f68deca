// config.json and fields, by a mapping that is made up: what real ones say is in suite parity.

#include "core/import/hugging_face.hpp"

#include "fixture.hpp"

#include <doctest/doctest.h>

namespace hugging_face_tests {

using mh::HfKey;
using mh::Table;
using mh::Value;
using mh::test::Folder;
using mh::test::refusal;

namespace {

mh::HfMapping mapping() {
  return {
      .models =
          {{.model_type = "toy",
            .architecture = "ToyForCausalLM",
            .keys =
                {{.key = "n_layer",
                  .field = "layers",
                  .absent = 6,
                  .aliases = {"num_hidden_layers"}},
                 {.key = "n_head", .field = "heads", .absent = 4},
                 {.key = "kv", .field = "kv_heads", .absent = 2},
                 {.key = "eps", .field = "norm_eps", .absent = 1e-6},
                 {.key = "act",
                  .field = "activation",
                  .absent = "silu",
                  .words = {{"silu", "swiglu"}, {"swish", "swiglu"}, {"gelu", "geglu"}}},
                 {.key = "rope.theta", .field = "rope_base", .absent = 10000},
                 {.key = "positions", .field = "seq_length", .absent = 64, .compared = false},
                 {.key = "scaled", .absent = true, .words = {{true}}}},
            .always = {{"bias", false}},
            .harmless = {"toy_name"}}},
      .free = {"dropout"},
      .plain = [](Table& fields) {
        if (fields.find("kv_heads") == nullptr) {
          fields.set("kv_heads", *fields.find("heads"));
        }
      }};
}

const mh::Schema& schema() {
  static const mh::Schema schema = mh::test::decoder_schema();
  return schema;
}

mh::HfReading reading(const Folder& folder, const std::string& json) {
  folder.write("config.json", json);
  return mh::read_hf_fields(mh::read_hf_config(folder.path()), mapping(), schema(), "toy");
}

std::string why(const std::string& json) {
  const Folder folder;
  return refusal([&] { (void)reading(folder, json); });
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Complete options of a recipe that agrees with an empty config.json, but for `changes`.
Table options(const Table& changes = {}) {
  Table given{
      {"layers", Value(6)},
      {"heads", Value(4)},
      {"kv_heads", Value(2)},
      {"norm_eps", Value(1e-6)},
      {"activation", Value("swiglu")},
      {"bias", Value(false)}};
  for (const auto& entry : changes) {
    given.set(entry.key, entry.value);
  }
  Table complete = mh::complete_or_throw(schema(), given, "model").as_table();
  complete.set("seq_length", 16);
  return complete;
}

std::vector<std::string> differences(const std::string& json, const Table& changes) {
  const Folder folder;
  std::vector<std::string> messages;
  for (const auto& one :
       mh::hf_differences(reading(folder, json), options(changes), mapping(), schema())) {
    messages.push_back(one.message);
  }
  return messages;
}

} // namespace

TEST_CASE("keys become fields, with transformers' values for absent ones") {
  const Folder folder;
  const auto read = reading(
      folder,
      R"({"model_type": "toy", "num_hidden_layers": 3, "kv": null, "act": "swish",
          "rope": {"theta": 5e5}})"
  );
  CHECK(
      read.fields ==
      Table{
          {"layers", Value(3)},
          {"heads", Value(4)},
          {"norm_eps", Value(1e-6)},
          {"activation", Value("swiglu")},
          {"rope_base", Value(5e5)},
          {"seq_length", Value(64)},
          {"bias", Value(false)}}
  );
  CHECK(read.said.at("layers").present);
  CHECK_FALSE(read.said.at("heads").present);
  CHECK(
      read.fields.find("layers")->origin.where() ==
      (folder.path() / "config.json").string() + ":1:44"
  );
}

TEST_CASE("a value is named by the key that the file has") {
  const auto with_old_form = [](const std::string& json) {
    const Folder folder;
    folder.write("config.json", json);
    mh::HfMapping old = mapping();
    old.models.front().simplify = [](Table& config) {
      if (const Value* theta = config.find("rope_theta")) {
        const Value moved = *theta;
        config.erase("rope_theta");
        config.set("rope", Table{{"theta", moved}});
      }
    };
    return mh::read_hf_fields(mh::read_hf_config(folder.path()), old, schema(), "toy");
  };
  const auto old =
      with_old_form(R"({"model_type": "toy", "num_hidden_layers": 3, "rope_theta": 5e5})");
  CHECK(old.fields.find("rope_base")->as_number() == 5e5);
  CHECK(old.said.at("rope_base").key == "rope_theta");
  CHECK(old.said.at("layers").key == "num_hidden_layers");
  const auto current =
      with_old_form(R"({"model_type": "toy", "n_layer": 3, "rope": {"theta": 5e5}})");
  CHECK(current.said.at("rope_base").key == "rope.theta");
  CHECK(current.said.at("layers").key == "n_layer");
  CHECK(current.said.at("heads").key == "n_head"); // which is absent
  CHECK_FALSE(current.said.at("heads").present);
}

TEST_CASE("a config.json that is written says the same when it is read") {
  const Folder folder;
  const auto first =
      reading(folder, R"({"model_type": "toy", "act": "gelu", "n_head": 8, "kv": null})");
  const Table written = mh::write_hf_config(first.fields, mapping().models.front());
  CHECK(*written.find("act") == Value("gelu"));
  CHECK(written.find("scaled") == nullptr);
  CHECK(*Value(written).find_path("rope.theta") == Value(10000));
  CHECK(*written.find("architectures") == Value(Value::Array{"ToyForCausalLM"}));
  CHECK(mh::read_hf_fields(written, mapping(), schema(), "toy").fields == first.fields);
  CHECK(
      has(refusal([] {
            (void)mh::write_hf_config({{"activation", Value("relu2")}}, mapping().models.front());
          }),
          "model.activation is \"relu2\", which no toy can have")
  );
}

TEST_CASE("unknown keys are named, harmless ones and null are not") {
  const Folder folder;
  const auto read = reading(
      folder,
      R"({"model_type": "toy", "use_cache": true, "torch_dtype": "float32", "toy_name": "x",
          "softcap": 30.0, "other": null, "rope": {"theta": 1e4, "wave": 2}})"
  );
  CHECK(read.unknown == std::vector<std::string>{"softcap", "rope.wave"});
  CHECK(has(mh::hf_unknown_keys(read), "does not know the keys softcap, rope.wave"));
  CHECK(mh::hf_unknown_keys(reading(folder, R"({"model_type": "toy"})")).empty());
}

TEST_CASE("samples beyond the length that a folder names are told") {
  const Folder folder;
  const auto read = reading(folder, R"({"model_type": "toy", "positions": 32})");
  CHECK(mh::hf_beyond_length(read, 32).empty());
  const std::string told = mh::hf_beyond_length(read, 33);
  CHECK(has(told, "model.seq_length is 33, by positions in "));
  CHECK(has(told, "config.json the weights are good for 32 tokens"));
  // transformers' default is no promise of these weights.
  CHECK(mh::hf_beyond_length(reading(folder, R"({"model_type": "toy"})"), 65).empty());
}

TEST_CASE("what differs is named with both names and both values") {
  using List = std::vector<std::string>;
  CHECK(differences(R"({"model_type": "toy"})", {}).empty());
  CHECK(
      differences(R"({"model_type": "toy", "n_head": 4})", {{"heads", Value(2)}}) ==
      List{"model.heads is 2, by n_head in config.json it is 4"}
  );
  CHECK(
      differences(R"({"model_type": "toy"})", {{"norm_eps", Value(1e-5)}}) ==
      List{"model.norm_eps is 1e-5, config.json has no eps, by which it is 1e-6"}
  );
  CHECK(
      differences(R"({"model_type": "toy"})", {{"window", Value(8)}, {"bias", Value(true)}}) ==
      List{"model.bias is true, of a toy it is false", "model.window is 8, of a toy there is none"}
  );
  // Free, only a suggestion, the same in another form, the same in float32.
  CHECK(differences(R"({"model_type": "toy"})", {{"dropout", Value(0.1)}}).empty());
  CHECK(differences(R"({"model_type": "toy", "positions": 4096})", {}).empty());
  CHECK(differences(R"({"model_type": "toy", "kv": null})", {{"kv_heads", Value(4)}}).empty());
  CHECK(differences(R"({"model_type": "toy", "eps": 9.999999974752427e-07})", {}).empty());
}

TEST_CASE("what no config.json of a model is, in a sentence each") {
  CHECK(has(why("{"), "this is no JSON"));
  CHECK(has(why("[1]"), "expected a table"));
  CHECK(has(why(std::string(100, '[')), "nested deeper than 64"));
  CHECK(has(why("{\"model_type\": \"\xff\"}"), "is no text"));
  CHECK(has(why(R"({"model_type": "toy", "eps": 1, "eps": 2})"), "given twice"));
  CHECK(has(why("{}"), "there is no model_type"));
  CHECK(has(why(R"({"model_type": 3})"), "model_type is 3, expected a text"));
  CHECK(
      has(why(R"({"model_type": "bird"})"),
          "model_type is \"bird\", and the architecture toy has the models toy")
  );
  CHECK(has(why(R"({"model_type": "toy", "act": "relu"})"), "act is \"relu\", which toy cannot do")
  );
  CHECK(has(why(R"({"model_type": "toy", "act": 7})"), "act is 7, which toy cannot do"));
  CHECK(
      has(why(R"({"model_type": "toy", "scaled": false})"), "scaled is false, which toy cannot do")
  );
  CHECK(
      has(why(R"({"model_type": "toy", "is_encoder_decoder": true})"), "is_encoder_decoder is true")
  );
  CHECK(
      has(why(R"({"model_type": "toy", "quantization_config": {"bits": 4}})"),
          "there is a quantization_config")
  );
  const Folder folder;
  CHECK(has(refusal([&] { (void)mh::read_hf_config(folder.path()); }), "holds no config.json"));
  CHECK(
      has(refusal([&] {
            const auto read = reading(folder, R"({"model_type": "toy", "n_layer": "six"})");
            (void)mh::hf_differences(read, options(), mapping(), schema());
          }),
          "model.layers is \"six\", expected an integer")
  );
}

} // namespace hugging_face_tests
