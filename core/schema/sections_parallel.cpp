#include "core/schema/sections.hpp"
#include "megahost/registry.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace mh {

const Fields<Recipe::Parallel>& parallel_fields() {
  using Parallel = Recipe::Parallel;
  static const Fields<Parallel> fields = [] {
    Fields<Parallel> f;
    f.add("data", &Parallel::data, "data-parallel degree; auto: as many as the ranks allow")
        .at_least(1)
        .one_of({"auto"})
        .degree(MeshAxis::dp);
    f.add(
         "bucket_size",
         &Parallel::bucket_size,
         "gradients whose sum over ranks starts together, as soon as the backward pass has made "
         "them"
    )
        .at_least(1)
        .unit("elements");
    f.add("reduce_dtype", &Parallel::reduce_dtype, "format in which gradients travel to their sums")
        .one_of({"fp32", "bf16"})
        .must_stay();
    f.add(
        "overlap",
        &Parallel::overlap,
        "gradients are reduced and weights gathered while passes run; false: one after the other"
    );
    f.add("order", &Parallel::order, "mesh axes from the fastest to the slowest");
    f.check("order", [](const Parallel& p) -> std::string {
      std::vector<std::string> axes;
      for (size_t begin = 0; begin <= p.order.size();) {
        const size_t end = std::min(p.order.find('-', begin), p.order.size());
        axes.push_back(p.order.substr(begin, end - begin));
        begin = end + 1;
      }
      std::sort(axes.begin(), axes.end());
      return axes == std::vector<std::string>{"cp", "dp", "ep", "pp", "tp"}
                 ? ""
                 : "\"" + p.order +
                       "\" is no order of the mesh axes, expected each of tp, cp, ep, dp, pp "
                       "once, such as \"tp-cp-ep-dp-pp\"";
    });
    return f;
  }();
  return fields;
}

Field strategies_field() {
  Field field;
  field.name = "strategies";
  field.doc = "strategies that are used in addition to those whose own keys ask for them";
  field.type = FieldType::string;
  field.list = true;
  return field;
}

Field elastic_field() {
  Field field;
  field.name = "elastic";
  field.doc =
      "layouts, such as \"tensor=2,pipeline=1\", for a run whose ranks are more or fewer than its own "
      "layout fits: the first that fits them is laid over it; \"plan\": the fastest that a search finds";
  field.type = FieldType::string;
  field.list = true;
  return field;
}

std::vector<const Registry::Entry*> in_order(std::vector<const Registry::Entry*> strategies) {
  static constexpr MeshAxis kOrder[] = {
      MeshAxis::tp,
      MeshAxis::pp,
      MeshAxis::cp,
      MeshAxis::ep,
      MeshAxis::etp,
      MeshAxis::edp,
      MeshAxis::dp};
  const auto place = [](const Registry::Entry* entry) {
    const auto& fields = entry->schema.fields;
    const auto first = std::find_if(fields.begin(), fields.end(), [](const Field& field) {
      return field.along.has_value();
    });
    return first == fields.end()
               ? std::tuple<int64_t, bool, std::string_view>(-1, false, entry->name)
               : std::tuple<int64_t, bool, std::string_view>(
                     std::find(std::begin(kOrder), std::end(kOrder), *first->along) - kOrder,
                     !first->degree,
                     entry->name
                 );
  };
  std::sort(strategies.begin(), strategies.end(), [&](const auto* a, const auto* b) {
    return place(a) < place(b);
  });
  return strategies;
}

Schema shared_schema(std::string_view section, const std::vector<const Registry::Entry*>& plugins) {
  std::vector<const Registry::Entry*> strategies;
  std::copy_if(
      plugins.begin(),
      plugins.end(),
      std::back_inserter(strategies),
      [&](const auto* one) {
        return one->kind == Kind::strategy && info(one->kind).section == section;
      }
  );
  Schema schema;
  for (const Registry::Entry* strategy : in_order(std::move(strategies))) {
    for (const Field& field : strategy->schema.fields) {
      if (schema.find(field.name) == nullptr) {
        schema.fields.push_back(field);
      }
    }
    const auto& checks = strategy->schema.checks;
    schema.checks.insert(schema.checks.end(), checks.begin(), checks.end());
  }
  const Schema& core = core_schema(section);
  schema.fields.insert(schema.fields.end(), core.fields.begin(), core.fields.end());
  schema.checks.insert(schema.checks.end(), core.checks.begin(), core.checks.end());
  return schema;
}

SectionSchemas section_schemas(const std::vector<const Registry::Entry*>& plugins) {
  SectionSchemas schemas = core_schemas();
  schemas["parallel"] = shared_schema("parallel", plugins);
  return schemas;
}

} // namespace mh
