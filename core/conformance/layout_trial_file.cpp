#include "core/conformance/layout_trial_file.hpp"

#include "core/checkpoint/tensors.hpp"
#include "core/mesh/agree.hpp"
#include "megahost/storage.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include <limits>
#include <string_view>

namespace mh {

namespace {

using nlohmann::json;

constexpr const char* kNumber = "number/"; // before a number's name
constexpr const char* kFile = "trial.safetensors";

/// Kind, name and shape of every tensor that some rank has a slice of.
std::map<std::string, std::vector<int64_t>> shapes_of(const TrialResult& result, const Mesh& mesh) {
  json mine = json::object();
  for (const auto& [kind, tensors] : result.tensors) {
    for (const auto& [name, tensor] : tensors) {
      mine[kind + "/" + name] = tensor.sizes().vec();
    }
  }
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const std::string& text : together(ranks_of(mesh.all()), [&] { return mine.dump(); })) {
    const auto theirs = json::parse(text).get<std::map<std::string, std::vector<int64_t>>>();
    shapes.insert(theirs.begin(), theirs.end());
  }
  return shapes;
}

at::Tensor find(const TrialResult& result, const std::string& path) {
  const size_t slash = path.find('/');
  const auto kind = result.tensors.find(path.substr(0, slash));
  if (kind == result.tensors.end()) {
    return {};
  }
  const auto tensor = kind->second.find(path.substr(slash + 1));
  return tensor == kind->second.end() ? at::Tensor() : tensor->second;
}

} // namespace

void write_trial(const TrialResult& result, const Mesh& mesh, const std::filesystem::path& folder) {
  const auto dtype = result.tensors.begin()->second.begin()->second.scalar_type();
  std::vector<NamedTensor> tensors;
  for (const auto& [path, shape] : shapes_of(result, mesh)) {
    const at::Tensor mine = find(result, path);
    const at::Tensor whole = mine.defined()
                                 ? mine.clone()
                                 : at::full(shape, -std::numeric_limits<double>::infinity(), dtype);
    mesh.all().all_reduce(whole, Reduce::max); // what no rank here holds is -inf
    tensors.push_back({path, whole});
  }
  for (const auto& [name, number] : result.numbers) {
    tensors.push_back({kNumber + name, at::tensor(number, at::kDouble)});
  }
  if (mesh.rank() == 0) {
    write_tensors(local_storage(), folder / kFile, tensors);
  }
}

TrialResult read_trial(const std::filesystem::path& folder) {
  TrialResult result;
  for (const auto& [path, tensor] : read_tensors(local_storage(), folder / kFile)) {
    if (path.starts_with(kNumber)) {
      result.numbers[path.substr(std::string_view(kNumber).size())] = tensor.item<double>();
    } else {
      const size_t slash = path.find('/');
      result.tensors[path.substr(0, slash)][path.substr(slash + 1)] = tensor;
    }
  }
  return result;
}

} // namespace mh
