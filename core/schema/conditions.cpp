#include "megahost/conditions.hpp"

#include "core/schema/terms.hpp"

#include <algorithm>

namespace mh {

Conditions::Conditions(
    const Value& tree,
    const Facts& facts,
    const SectionSchemas& schemas,
    std::vector<Problem>& problems,
    bool recomputes_blocks
)
    : tree_(tree)
    , facts_(facts)
    , problems_(problems)
    , recomputes_blocks_(recomputes_blocks) {
  static const Schema kNone;
  const auto parallel = schemas.find("parallel");
  parallel_ = parallel == schemas.end() ? &kNone : &parallel->second;
  const auto model = schemas.find("model");
  for (const std::string& name : (model == schemas.end() ? kNone : model->second).layer_fields()) {
    layer_keys_.push_back("model." + name);
  }
  for (const Problem& problem : problems) {
    refused_.push_back(problem.key);
    if (const auto meaning = meaning_of(problem.key, schemas); meaning && !meaning->key.empty()) {
      refused_.push_back(meaning->key);
    }
  }
}

const Value* Conditions::find(const std::string& key) const {
  keys_.insert(key);
  return tree_.find_path(key);
}

bool Conditions::sound(const std::vector<std::string>& keys) const {
  keys_.insert(keys.begin(), keys.end());
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) {
    return std::none_of(refused_.begin(), refused_.end(), [&key](const std::string& refused) {
      return refused == key || key.starts_with(refused + ".") ||
             refused == key.substr(0, key.find('.')) + ".use";
    });
  });
}

bool Conditions::flag(const std::string& key) const {
  const Value* value = find(key);
  return value && value->is_boolean() && value->as_boolean();
}

int64_t Conditions::integer(const std::string& key) const {
  const Value* value = find(key);
  return value && value->is_integer() ? value->as_integer() : 0;
}

double Conditions::number(const std::string& key) const {
  const Value* value = find(key);
  return value && value->is_number() ? value->as_number() : 0;
}

std::string Conditions::word(const std::string& key) const {
  const Value* value = find(key);
  if (value && value->is_table()) {
    value = value->find("use");
  }
  return value && value->is_string() ? value->as_string() : "";
}

void Conditions::report(
    const std::vector<std::string>& keys, const std::string& message, const std::string& note
) {
  const auto written = std::find_if(keys.begin(), keys.end(), [this](const std::string& key) {
    const Value* value = find(key);
    return value && value->origin.line > 0;
  });
  const std::string& at = written == keys.end() ? keys.front() : *written;
  const Value* value = find(at);
  problems_.push_back({value ? value->origin : tree_.origin, at, message, "", note});
}

void Conditions::divides(
    const std::string& whole, const std::string& part, const std::string& why
) {
  if (sound({whole, part}) && integer(whole) > 0 && integer(part) > 0 &&
      integer(whole) % integer(part) != 0) {
    report(
        {whole, part},
        whole + " " + text(integer(whole)) + " is not divisible by " + part + " " +
            text(integer(part)),
        why + (part.starts_with("parallel.") ? nearest_degrees(part, integer(whole)) : "")
    );
  }
}

int64_t Conditions::degree(MeshAxis axis) const {
  int64_t most = 0;
  for (const Field& field : parallel_->fields) {
    if (field.degree && field.along == axis) {
      most = std::max(most, integer("parallel." + field.name));
    }
  }
  if (most == 0 && axis == MeshAxis::dp) {
    return std::max<int64_t>(1, facts_.world / model_ranks());
  }
  return std::max<int64_t>(1, most);
}

std::string Conditions::degree_key(MeshAxis axis) const {
  for (const Field& field : parallel_->fields) {
    if (field.degree && field.along == axis) {
      return "parallel." + field.name;
    }
  }
  return "";
}

int64_t Conditions::layers() const {
  int64_t layers = 0;
  for (const std::string& key : layer_keys_) {
    layers += integer(key);
  }
  return layers;
}

std::vector<std::string> Conditions::degree_keys() const {
  std::vector<std::string> keys;
  for (const Field& field : parallel_->fields) {
    const bool dense = field.along == MeshAxis::tp || field.along == MeshAxis::pp ||
                       field.along == MeshAxis::cp || field.along == MeshAxis::dp;
    if (field.degree && dense) {
      keys.push_back("parallel." + field.name);
    }
  }
  return keys;
}

std::string Conditions::nearest_multiples(int64_t number, int64_t step) {
  const int64_t below = number / step * step;
  return (below > 0 ? text(below) + ", " : "") + text(below + step);
}

std::string Conditions::nearest_degrees(const std::string& key, int64_t whole) const {
  const int64_t given = integer(key);
  std::string nearest;
  for (int64_t below = given - 1; below > 0 && nearest.empty(); --below) {
    nearest = whole % below == 0 ? text(below) : "";
  }
  for (int64_t above = given + 1; above <= whole; ++above) {
    if (whole % above == 0) {
      nearest += (nearest.empty() ? "" : ", ") + text(above);
      break;
    }
  }
  return "; nearest: " + key + " " + nearest;
}

} // namespace mh
