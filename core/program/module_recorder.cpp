#include "core/program/module_recorder.hpp"

#include <algorithm>

namespace mh::program {

void ModuleRecorder::begin(const std::string& name, bool per_microbatch) {
  const auto is_taken = [this](const std::string& tried) {
    return std::ranges::any_of(modules_, [&](const RecordedModule& one) {
      return one.module.name == tried;
    });
  };
  std::string own = name;
  for (int64_t number = 1; is_taken(own); ++number) {
    own = name + "." + std::to_string(number);
  }
  modules_.push_back(
      {.module = {.name = own, .per_microbatch = per_microbatch}, .first_node = recorder_.nodes()}
  );
}

at::Tensor ModuleRecorder::input(
    const std::string& name, const at::Tensor& like, const std::optional<StageResult>& from
) {
  const at::Tensor made = recorder_.input(like.sizes(), like.scalar_type());
  last().inputs.push_back({name, like.scalar_type(), like.sizes().vec(), from});
  modules_.back().inputs.push_back(recorder_.value_of(made));
  return made;
}

void ModuleRecorder::output(const std::string& name, const at::Tensor& value) {
  last().outputs.push_back({name, value.scalar_type(), value.sizes().vec()});
  modules_.back().outputs.push_back(recorder_.value_of(value));
}

} // namespace mh::program
