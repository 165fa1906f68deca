// The plugin as a run would use it.  usage: unit_test PLUGIN.so
#include "expect.hpp"

#include <megahost/checkpoint_format.hpp>
#include <megahost/host.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <filesystem>

int main(int, char** arguments) {
  mh::Host host;
  host.load(arguments[1]);
  const auto format =
      host.make<mh::CheckpointFormat>("@name@", mh::Table(), {.storage = host.storage()});
  std::string folder = std::filesystem::temp_directory_path() / "@name@-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return 1;
  }
  expect(!format->detect(folder), "an empty folder is none of the format");
  const at::Tensor value = at::arange(12, at::TensorOptions(at::kFloat)).reshape({4, 3});
  const std::vector<mh::Slice> halves{
      {"w", {4, 3}, {0, 0}, value.narrow(0, 0, 2)}, {"w", {4, 3}, {2, 0}, value.narrow(0, 2, 2)}};
  format->write(folder, {.step = 7, .state = "{}", .slices = halves}, {});
  expect(format->detect(folder), "what it has written is one");
  expect(format->steps(folder) == std::vector<int64_t>{7}, "with the step");
  const auto saved = format->open(folder, 7);
  expect(saved->find("w")->shape == std::vector<int64_t>{4, 3}, "a tensor is the global one");
  const mh::Slice columns{"w", {4, 3}, {1, 1}, at::zeros({3, 2})};
  saved->read({&columns, 1});
  expect(columns.local.equal(value.narrow(0, 1, 3).narrow(1, 1, 2)), "any box of it can be read");
  std::filesystem::remove_all(folder);
  return failures;
}
