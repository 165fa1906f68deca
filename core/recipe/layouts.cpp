#include "core/recipe/layouts.hpp"

#include "core/base/text.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <utility>

namespace mh {

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  const size_t end = text.find_last_not_of(" \t\n");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& text, char between) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(between, begin), text.size());
    if (std::string part = trimmed(text.substr(begin, end - begin)); !part.empty()) {
      parts.push_back(std::move(part));
    }
    begin = end + 1;
  }
  return parts;
}

Layout layout_of(const std::vector<std::string>& items) {
  Layout layout{join(items, ","), {}};
  for (const std::string& item : items) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw Error(
          "the layout \"" + layout.text + "\" has the item \"" + item + "\", expected KEY=VALUE",
          "write --layouts 'tensor=2; pipeline=2,data=2'"
      );
    }
    const bool whole = item.substr(0, equals).find('.') != std::string::npos;
    layout.sets.push_back(whole ? item : "parallel." + item);
  }
  return layout;
}

/// The values that a field may have other than its default, which is left out of a layout's text.
std::vector<std::string> values_of(
    const Field& field,
    const std::vector<std::string>& schedules,
    const std::string& text_of_default
) {
  std::vector<std::string> values;
  if (field.names == Kind::pipeline_schedule) {
    values = schedules;
  } else if (field.type == FieldType::boolean) {
    values = {"true"};
  } else if (!field.choices.empty() && field.type == FieldType::string) {
    values = field.choices;
  } else if (field.mechanism == Mechanism::virtual_stages) {
    values = {"2"};
  } else if (field.type == FieldType::integer && field.max) {
    for (auto level = static_cast<int64_t>(*field.min) + 1; level <= *field.max; ++level) {
      values.push_back(std::to_string(level));
    }
  }
  std::erase(values, text_of_default);
  return values;
}

/// Keys about axes that are no degrees, in the order in which layouts are written.
std::vector<const Field*> others(const Schema& parallel) {
  std::vector<const Field*> fields;
  for (const MeshAxis axis :
       {MeshAxis::tp, MeshAxis::dp, MeshAxis::pp, MeshAxis::cp, MeshAxis::ep, MeshAxis::etp}) {
    for (const Field& field : parallel.fields) {
      if (field.along == axis && !field.degree) {
        fields.push_back(&field);
      }
    }
  }
  return fields;
}

/// A layout in the making: its items, and how many ranks they take.
struct LayoutDraft {
  std::vector<std::string> items;
  std::vector<MeshAxis> axes; // axes of more than one rank
  int64_t ranks = 1;
};

} // namespace

std::vector<Layout> parse_layouts(const std::string& text) {
  std::vector<Layout> layouts;
  for (const std::string& one : split(text, ';')) {
    layouts.push_back(layout_of(split(one, ',')));
  }
  if (layouts.empty()) {
    throw Error("--layouts names none", "write --layouts 'tensor=2; pipeline=2,data=2', or all");
  }
  return layouts;
}

std::vector<Layout>
all_layouts(const Schema& parallel, const std::vector<std::string>& schedules, int64_t ranks) {
  std::vector<LayoutDraft> drafts{{}};
  const auto splits = [](const LayoutDraft& draft, MeshAxis axis) {
    return std::find(draft.axes.begin(), draft.axes.end(), axis) != draft.axes.end();
  };
  for (const Field& field : parallel.fields) { // degrees first: the others depend on them
    const bool degree = field.degree && field.along != MeshAxis::etp; // inside experts
    for (size_t i = 0, count = degree ? drafts.size() : 0; i < count; ++i) {
      for (int64_t n = 2; n * drafts[i].ranks <= ranks && !splits(drafts[i], *field.along); ++n) {
        LayoutDraft draft = drafts[i];
        draft.items.push_back(field.name + "=" + std::to_string(n));
        draft.axes.push_back(*field.along);
        draft.ranks *= n;
        drafts.push_back(std::move(draft));
      }
    }
  }
  for (const Field* field : others(parallel)) {
    const std::string usual =
        field->default_value.is_string() ? field->default_value.as_string() : "";
    for (size_t i = 0, count = drafts.size(); i < count; ++i) {
      for (const std::string& value : values_of(*field, schedules, usual)) {
        if (splits(drafts[i], *field->along)) {
          LayoutDraft draft = drafts[i];
          draft.items.push_back(field->name + "=" + value);
          drafts.push_back(std::move(draft));
        }
      }
    }
  }
  std::vector<Layout> layouts;
  for (const LayoutDraft& draft : drafts) {
    if (!draft.items.empty()) {
      layouts.push_back(layout_of(draft.items));
    }
  }
  return layouts;
}

namespace {

/// "tensor 4", "sequence"; empty for a value that is usual.
std::string setting_words(const std::string& key, const Value& value, const Field* field) {
  const std::string text = value.is_string() ? value.as_string() : to_text(value);
  const bool usual = field != nullptr && value == field->default_value;
  return usual || text == "0" || text == "false" ? "" : key + (text == "true" ? "" : " " + text);
}

} // namespace

std::string layout_words(const Value& parallel, const Schema& fields) {
  std::vector<std::string> settings;
  for (const auto& entry : parallel.as_table()) {
    std::string words = setting_words(entry.key, entry.value, fields.find(entry.key));
    if (!words.empty()) {
      settings.push_back(std::move(words));
    }
  }
  return join(settings);
}

bool is_named(const Value& parallel, const Registry::Entry& strategy) {
  const Value* named = parallel.find("strategies");
  const auto names = named != nullptr ? named->as_array() : Value::Array();
  return std::ranges::any_of(names, [&](const Value& name) {
    return name.as_string() == strategy.name ||
           name.as_string() == strategy.plugin->id + "/" + strategy.name;
  });
}

std::string strategy_settings(
    const Value& parallel,
    const std::vector<const Registry::Entry*>& strategies,
    const std::function<bool(MeshAxis axis)>& splits
) {
  std::vector<std::string> settings;
  for (const Registry::Entry* strategy : in_order(strategies)) {
    const size_t before = settings.size();
    for (const Field& field : strategy->schema.fields) {
      const Value* value = parallel.find(field.name);
      const bool matters = !field.degree && (!field.along || splits(*field.along));
      std::string words =
          matters && value != nullptr ? setting_words(field.name, *value, &field) : "";
      if (!words.empty() && std::ranges::find(settings, words) == settings.end()) {
        settings.push_back(std::move(words));
      }
    }
    if (settings.size() == before && is_named(parallel, *strategy) &&
        !strategy->in_force(parallel)) {
      settings.push_back(strategy->name);
    }
  }
  return settings.empty() ? "" : ", " + join(settings);
}

} // namespace mh
