#pragma once
/// Recipes drawn at random from the schema: sound small ones with a few options of any section set
/// to other values, and a layout. Options that are added to a schema are drawn without a word here.

#include "core/plugin/catalogue.hpp"
#include "core/recipe/layouts.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/resolve.hpp"
#include "core/schema/sections.hpp"
#include "megahost/host.hpp"

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace crossed {

/// A line of a recipe: a dotted key and its value as TOML writes it.
struct Setting {
  std::string key, value;
};

using Settings = std::vector<Setting>;

inline std::string in_quotes(const std::string& text) {
  return '"' + text + '"';
}

/// The recipe's file.
inline std::string toml(const Settings& settings) {
  std::string text;
  for (const auto& [key, value] : settings) {
    text.append(key).append(" = ").append(value).append("\n");
  }
  return text;
}

/// The settings of such a file.
inline Settings read_toml(std::istream& file) {
  Settings settings;
  for (std::string line; std::getline(file, line);) {
    if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      settings.push_back({line.substr(0, equals), line.substr(equals + 3)});
    }
  }
  return settings;
}

/// Throws:  mh::Error where the recipe is refused
inline mh::Recipe resolved(const Settings& settings, mh::Host& host) {
  mh::Loaded loaded{"crossed.toml", {}, mh::Value(mh::Table{}), {}};
  for (const auto& [key, value] : settings) {
    loaded.layers.push_back(mh::set_layer(std::string(key).append("=").append(value)));
    loaded.merged = merge(loaded.merged, loaded.layers.back().tree);
  }
  return mh::resolve(loaded, mh::plugin_lookup(host), {}).recipe;
}

class Drawer {
  static constexpr const char* kPairs = "pair_head";

public:
  /// `text`: a file that a corpus may read.
  Drawer(mh::Host& host, std::string text, uint64_t seed)
      : host_(host)
      , text_(std::move(text))
      , random_(seed)
      , layouts_(mh::all_layouts(
            mh::shared_schema("parallel", host.known(mh::Kind::strategy)),
            host.names(mh::Kind::pipeline_schedule),
            4
        )) {}

  Settings draw() {
    Settings settings = sound();
    if (chance(0.9)) {
      for (const auto& set : one_of(layouts_).sets) {
        const size_t equals = set.find('=');
        const std::string value = set.substr(equals + 1);
        const bool bare =
            value == "true" || value.find_first_not_of("0123456789") == std::string::npos;
        settings.push_back({set.substr(0, equals), bare ? value : in_quotes(value)});
      }
    }
    const auto fields = all_fields(settings);
    for (int64_t left = 1 + below(6); left > 0; --left) {
      const auto& [section, field] = one_of(fields);
      if (auto value = value_of(field); value && field.name != kPairs) {
        settings.push_back({section.empty() ? field.name : section + "." + field.name, *value});
      }
    }
    return settings;
  }

private:
  /// Whether the section is left out: this machine, a short test or a thread cannot have it, or a
  /// drawn value says nothing about it: paths, names, folders and launchers.
  static bool left_out(const std::string& section) {
    return section == "checkpoint" || section == "comm" || section == "data" ||
           section == "tokenizer";
  }

  Settings sound() {
    const std::string model = one_of(host_.names(mh::Kind::architecture));
    Settings settings{
        {"model.use", in_quotes(model)},
        {"model.layers", chance(0.5) ? "2" : "4"},
        {"model.hidden", "32"},
        {"model.heads", "4"},
        {"model.seq_length", "32"},
        {"batch.global", "8"},
        {"train.iters", "3"},
        {"train.eval_interval", chance(0.2) ? "2" : "0"},
        {"train.eval_iters", "1"}};
    if (model == "bert") { // no corpus here has pairs, so their head would compute nothing
      settings.push_back({std::string("model.") + kPairs, "false"});
    }
    if (model == "moe") {
      settings.insert(settings.end(), {{"model.experts", "4"}, {"model.expert_hidden", "16"}});
    }
    if (chance(0.3)) {
      settings.push_back({"model.vocab", std::to_string(257 + below(100))});
    }
    if (model == "t5") { // whose samples no other corpus has
      settings.insert(
          settings.end(),
          {{"model.encoder_length", "64"},
           {"data.use", in_quotes("t5")},
           {"data.paths", "[" + in_quotes(text_) + "]"},
           {"train.eval_interval", "0"}, // the text is one document, of no second split
           {"tokenizer.use", in_quotes("byte")},
           {"tokenizer.special", "true"},
           {"tokenizer.extra_ids", "8"}}
      );
    } else if (chance(0.3)) {
      settings.push_back({"data.use", in_quotes("text")});
      settings.push_back({"data.paths", "[" + in_quotes(text_) + "]"});
      settings.push_back({"data.split", "[80, 20, 0]"});
    } else {
      settings.push_back({"data.use", in_quotes("mock")});
      settings.push_back({"data.split", "[80, 20, 0]"});
    }
    return settings;
  }

  using Fields = std::vector<std::pair<std::string, mh::Field>>; // fields of a section

  /// Every field of the sections, with those of the plugins that are in use, or are drawn here.
  Fields all_fields(Settings& settings) {
    Fields fields;
    for (const auto& field : mh::top_fields().schema().fields) {
      if (field.name == "precision") {
        fields.insert(fields.end(), 8, {"", field}); // it decides much
      }
    }
    for (const auto& section : mh::section_names()) {
      if (left_out(section)) {
        continue;
      }
      const auto* plugin = mh::plugin_section(section);
      mh::Schema schema = mh::shared_schema(section, host_.known(mh::Kind::strategy));
      if (plugin != nullptr) {
        schema = with_plugin(schema, plugin_schema(*plugin, settings));
      }
      for (const auto& field : schema.fields) {
        if (field.name != "use" && field.name != "preset") {
          fields.emplace_back(section, field);
        }
      }
    }
    return fields;
  }

  const mh::Schema& plugin_schema(const mh::PluginSectionInfo& section, Settings& settings) {
    const std::string key = std::string(section.name) + ".use";
    std::string use(section.default_use);
    if (section.name == "model") {
      use = settings.front().value.substr(1, settings.front().value.size() - 2);
    } else if (chance(0.4)) {
      use = one_of(host_.names(section.kind));
      settings.push_back({key, in_quotes(use)});
    }
    return host_.require(section.kind, use).schema;
  }

  std::optional<std::string> value_of(const mh::Field& field) {
    using mh::FieldType;
    if (field.list) {
      if (field.choices.empty() || field.type != FieldType::string) {
        return std::nullopt;
      }
      std::string some;
      for (const auto& choice : field.choices) {
        if (chance(0.5)) {
          some += (some.empty() ? "" : ", ") + in_quotes(choice);
        }
      }
      return "[" + some + "]";
    }
    if (!field.choices.empty()) {
      return in_quotes(one_of(field.choices));
    }
    switch (field.type) {
    case FieldType::boolean:
      return chance(0.5) ? "true" : "false";
    case FieldType::integer:
    case FieldType::integer_or_string:
      return whole_number(field);
    case FieldType::number:
      return number(field);
    case FieldType::string:
    case FieldType::plugin:
    case FieldType::table:
    case FieldType::any:
      break;
    }
    return std::nullopt;
  }

  static bool fits(const mh::Field& field, double value) {
    return !(field.min && (field.above_min ? value <= *field.min : value < *field.min)) &&
           !(field.max && (field.below_max ? value >= *field.max : value > *field.max));
  }

  std::optional<std::string> whole_number(const mh::Field& field) {
    std::vector<int64_t> all{1, 2, 3, 4, 8, 16};
    for (const auto& end : {field.min, field.max}) {
      if (end && std::abs(*end) <= 64) {
        all.push_back(static_cast<int64_t>(*end));
      }
    }
    std::erase_if(all, [&](int64_t value) { return !fits(field, static_cast<double>(value)); });
    return all.empty() ? std::nullopt : std::optional(std::to_string(one_of(all)));
  }

  std::optional<std::string> number(const mh::Field& field) {
    std::vector<double> all{0.1, 0.5};
    if (field.default_value.is_number()) {
      const double usual = field.default_value.as_number();
      all = {usual, usual / 2, usual * 1.5};
    }
    for (const auto& end : {field.min, field.max}) {
      if (end && std::abs(*end) <= 1) {
        all.push_back(*end);
      }
    }
    std::erase_if(all, [&](double value) { return !fits(field, value); });
    if (all.empty()) {
      return std::nullopt;
    }
    std::ostringstream text;
    text.precision(9);
    text << one_of(all);
    const bool whole = text.str().find_first_of(".e") == std::string::npos;
    return text.str() + (whole ? ".0" : "");
  }

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }

  bool chance(double share) { return static_cast<double>(below(1000)) < 1000 * share; }

  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(static_cast<int64_t>(all.size())))];
  }

  mh::Host& host_;
  std::string text_;
  std::mt19937_64 random_;
  std::vector<mh::Layout> layouts_;
};

} // namespace crossed
