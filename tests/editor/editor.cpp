#include "core/editor/editor.hpp"

#include "core/schema/sections.hpp"
#include "tests/recipe/fixture.hpp"

#include <doctest/doctest.h>
#include <lua.hpp>
#include <nlohmann/json.hpp>

using nlohmann::json;

// Validators compare recipes with the schema in suite parity; here it is read by eye, once.

TEST_CASE("the JSON Schema of a section and of its plugins") {
  const mh::test::Plugins plugins;
  const json schema = json::parse(mh::json_schema(plugins.catalogue()));
  CHECK(schema["$schema"] == "http://json-schema.org/draft-07/schema#");
  CHECK(schema["additionalProperties"] == false);
  CHECK(schema["properties"]["precision"]["enum"] == json({"auto", "fp32", "bf16", "fp16", "fp8"}));
  const json& definitions = schema["definitions"];
  const json& batch = definitions["batch"];
  CHECK(batch["type"] == "object");
  CHECK(batch["additionalProperties"] == false);
  CHECK(batch["description"] == "sequences per optimizer step and per forward pass");
  CHECK(batch["properties"]["micro"] == json::parse(R"({"type": "integer", "minimum": 1,
        "default": 1, "description": "sequences per forward pass of one rank [sequences]"})"));
  const json& sgd = definitions["optimizer.sgd"]["properties"];
  CHECK(sgd["use"]["enum"] == json({"sgd", "org.megahost.test/sgd"}));
  CHECK(sgd["momentum"] == json::parse(R"({"type": "number", "minimum": 0, "exclusiveMaximum": 1,
        "default": 0.0, "description": "factor of the previous update"})"));
  CHECK(sgd.contains("lr"));
  CHECK(!sgd.contains("betas"));
  CHECK(
      definitions["parallel"]["properties"]["data"]["anyOf"] ==
      json::parse(R"([{"type": "integer", "minimum": 1}, {"type": "string", "enum": ["auto"]}])")
  );
  const json& schedule = definitions["parallel"]["properties"]["schedule"]["anyOf"];
  CHECK(schedule[0]["enum"] == json({"1f1b", "zb-h1", "zb-v"}));
  CHECK(schedule[1]["properties"]["use"]["enum"].size() == 3 * 2); // with their plugins' names
  CHECK(
      definitions["data.text"]["properties"]["paths"]["items"] ==
      json::parse(R"({"type": "string"})")
  );
  CHECK(definitions["model.gpt"]["properties"]["preset"]["enum"].size() > 3);
  // The one that is taken where none is named needs no `use`; others do.
  const json& optimizer = definitions["optimizer"]["oneOf"];
  CHECK(optimizer[0] == json::parse(R"({"$ref": "#/definitions/optimizer.adamw"})"));
  CHECK(optimizer[1]["allOf"][1] == json::parse(R"({"required": ["use"]})"));
  CHECK(definitions["tokenizer"]["oneOf"][1]["allOf"][1]["required"] == json({"vocab", "use"}));
}

TEST_CASE("the Lua annotations are Lua and name every field") {
  const mh::test::Plugins plugins;
  const mh::RecipeCatalogue catalogue = plugins.catalogue();
  const std::string text = mh::lua_stubs(catalogue);
  lua_State* state = luaL_newstate();
  CHECK(luaL_loadbufferx(state, text.data(), text.size(), "=stubs", "t") == LUA_OK);
  lua_close(state);

  const auto class_of = [&text](const std::string& name) {
    const size_t begin = text.find("---@class (exact) megahost." + name + "\n");
    REQUIRE(begin != std::string::npos);
    return text.substr(begin, text.find("\n\n", begin) - begin);
  };
  const auto names_all = [](const std::string& lines, const mh::Schema& schema) {
    for (const mh::Field& field : schema.fields) {
      CAPTURE(field.name);
      CHECK(lines.find("---@field " + field.name) != std::string::npos);
    }
  };
  names_all(class_of("Recipe"), mh::recipe_schema());
  for (const std::string& section : mh::section_names()) {
    const mh::PluginSectionInfo* info = mh::plugin_section(section);
    if (info == nullptr) {
      names_all(class_of(section), plugins.section(section));
      continue;
    }
    for (const mh::Registry::Entry* entry : catalogue.of(info->kind)) {
      names_all(class_of(section + "." + entry->name), entry->schema);
    }
  }
  const std::string sgd = class_of("optimizer.sgd");
  for (const char* line :
       {"---@class (exact) megahost.optimizer.sgd\n"
        "---@field use? \"sgd\" | \"org.megahost.test/sgd\" # optimizer plugin\n"
        "---@field lr? number # learning rate, the schedule's highest; number, at least 0; default "
        "3e-4\n"
        "---@field weight_decay? number # weight decay of matrices; norms and biases have none; number, at "
        "least "
        "0; default 0.1\n",
        "\n---@field groups? { match: string[], lr_multiplier?: number, decay_multiplier?: number, "
        "frozen?: boolean }[] # ",
        "\n---@field state_dtype? \"fp32\" | \"bf16\" # ",
        "\n---@field momentum? number # factor of the previous update; number, at least 0 and "
        "below "
        "1; default 0.0"}) {
    CAPTURE(line);
    CHECK(sgd.find(line) != std::string::npos);
  }
  CHECK(
      text.find("---@alias megahost.optimizer megahost.optimizer.adamw | megahost.optimizer.sgd\n"
      ) != std::string::npos
  );
  CHECK(
      class_of("recompute.selective")
          .find("---@field parts? (\"core_attention\" | \"norms\" | \"activations\" | "
                "\"attention\" | \"mlp\" | string)[]") != std::string::npos
  );
  CHECK(class_of("parallel").find("---@field data? integer | \"auto\"") != std::string::npos);
  CHECK(class_of("tokenizer.null").find("---@field vocab integer") != std::string::npos);
}

TEST_CASE("the settings of the Lua language server") {
  const json settings = json::parse(mh::luarc("megahost.gen.lua"));
  CHECK(settings["runtime.version"] == "Lua 5.4");
  CHECK(settings["workspace.library"] == json({"megahost.gen.lua"}));
  for (const char* library : {"io", "os", "debug"}) {
    CHECK(settings["runtime.builtin"][library] == "disable");
  }
}
