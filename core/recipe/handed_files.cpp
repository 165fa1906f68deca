#include "core/recipe/handed_files.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <utility>
#include <vector>

namespace mh {

namespace {

/// Sources are written once, and named by their place in a list.
class Packer {
public:
  nlohmann::json value(const Value& value) {
    return {payload(value), origin(value.origin), static_cast<int>(value.type())};
  }

  [[nodiscard]] nlohmann::json sources() const { return sources_; }

private:
  nlohmann::json origin(const Origin& origin) {
    if (!origin.source) {
      return nullptr;
    }
    const auto [known, fresh] = places_.try_emplace(origin.source.get(), sources_.size());
    if (fresh) {
      sources_.push_back({origin.source->name, origin.source->text, origin.source->layer});
    }
    return {known->second, origin.line, origin.column, origin.length};
  }

  nlohmann::json payload(const Value& value) {
    switch (value.type()) {
    case Value::Type::null:
      return nullptr;
    case Value::Type::boolean:
      return value.as_boolean();
    case Value::Type::integer:
      return value.as_integer();
    case Value::Type::number:
      return value.as_number();
    case Value::Type::string:
      return value.as_string();
    case Value::Type::array: {
      nlohmann::json items = nlohmann::json::array();
      for (const Value& item : value.as_array()) {
        items.push_back(this->value(item));
      }
      return items;
    }
    case Value::Type::table:
      break;
    }
    nlohmann::json entries = nlohmann::json::array();
    for (const auto& entry : value.as_table()) {
      entries.push_back({entry.key, origin(entry.key_origin), this->value(entry.value)});
    }
    return entries;
  }

  std::map<const Source*, size_t> places_;
  nlohmann::json sources_ = nlohmann::json::array();
};

class Unpacker {
public:
  explicit Unpacker(const nlohmann::json& sources) {
    for (const nlohmann::json& source : sources) {
      sources_.push_back(std::make_shared<const Source>(Source{source[0], source[1], source[2]}));
    }
  }

  [[nodiscard]] Value value(const nlohmann::json& packed) const {
    Value value = content(packed[0], static_cast<Value::Type>(packed[2].get<int>()));
    value.origin = origin(packed[1]);
    return value;
  }

private:
  [[nodiscard]] Origin origin(const nlohmann::json& packed) const {
    if (packed.is_null()) {
      return {};
    }
    return {sources_.at(packed[0]), packed[1], packed[2], packed[3]};
  }

  [[nodiscard]] Value content(const nlohmann::json& packed, Value::Type type) const {
    switch (type) {
    case Value::Type::null:
      return {};
    case Value::Type::boolean:
      return packed.get<bool>();
    case Value::Type::integer:
      return packed.get<int64_t>();
    case Value::Type::number:
      return packed.get<double>();
    case Value::Type::string:
      return packed.get<std::string>();
    case Value::Type::array: {
      Value::Array items;
      for (const nlohmann::json& item : packed) {
        items.push_back(value(item));
      }
      return items;
    }
    case Value::Type::table:
      break;
    }
    Table table;
    for (const nlohmann::json& entry : packed) {
      table.set(entry[0], value(entry[2]), origin(entry[1]));
    }
    return table;
  }

  std::vector<SourcePtr> sources_;
};

} // namespace

std::string pack_files(const std::string& asked, const RecipeFiles& files) {
  Packer packer;
  nlohmann::json layers = nlohmann::json::array();
  for (const Layer& layer : files.layers) {
    layers.push_back({layer.name, packer.value(layer.tree)});
  }
  const nlohmann::json all{
      {"asked", asked},
      {"file", files.file},
      {"files", files.files},
      {"layers", std::move(layers)},
      {"sources", packer.sources()}};
  std::string bytes;
  nlohmann::json::to_cbor(all, bytes);
  return bytes;
}

std::optional<RecipeFiles> unpack_files(const std::string& asked, std::string_view bytes) {
  const nlohmann::json all = nlohmann::json::from_cbor(bytes);
  if (all.at("asked") != asked) {
    return std::nullopt;
  }
  const Unpacker unpacker(all.at("sources"));
  RecipeFiles files{all.at("file"), {}, all.at("files")};
  for (const nlohmann::json& layer : all.at("layers")) {
    files.layers.push_back({layer[0], unpacker.value(layer[1])});
  }
  return files;
}

} // namespace mh
