// Tests of checkpoint formats, in a storage of our own that can stop at any call.

#include "core/checkpoint/format.hpp"
#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "core/storage/memory_storage.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <cerrno>

namespace mh::check {

namespace {

constexpr const char* kFolder = "runs/tried";

/// Tensors of several shapes and types, as halves along dimension 0 where they have one.
std::vector<Slice> halves(double start) {
  std::vector<Slice> slices;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, at::ScalarType type) {
    int64_t count = 1;
    for (const int64_t size : shape) {
      count *= size;
    }
    const at::Tensor value =
        at::arange(count, at::TensorOptions(at::kDouble)).add(start).reshape(shape).to(type);
    const int64_t parts = shape.empty() ? 1 : 2;
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<int64_t> offset(shape.size());
      at::Tensor local = value;
      if (parts == 2) {
        offset[0] = part * shape[0] / 2;
        local = value.narrow(0, offset[0], shape[0] / 2);
      }
      slices.push_back({name, shape, offset, local});
    }
    start += 1000;
  };
  add("layer.weight", {4, 6}, at::kFloat);
  add("layer.bias", {4}, at::kBFloat16);
  add("scale", {}, at::kFloat);
  return slices;
}

void write(const CheckpointFormat& format, int64_t step, const std::vector<Slice>& slices) {
  format.write(kFolder, {.step = step, .state = "{}", .slices = slices}, {});
}

/// The difference of a tensor read whole and as a box of columns from the expected one.
std::string difference(CheckpointReader& saved, const std::vector<Slice>& expected) {
  for (const Slice& slice : expected) {
    Slice read = slice;
    if (slice.local.dim() == 2) { // other boxes than were written
      read.offset = {slice.offset[0], 1};
      read.local = slice.local.narrow(1, 1, slice.local.size(1) - 2);
    }
    const at::Tensor wanted = read.local;
    read.local = at::zeros(wanted.sizes(), wanted.options());
    saved.read({&read, 1});
    if (!read.local.equal(wanted)) {
      return "the tensor " + slice.name + " comes back with other values";
    }
  }
  return "";
}

std::unique_ptr<CheckpointReader> open_newest(const CheckpointFormat& format) {
  const auto steps = format.steps(kFolder);
  if (steps && steps->empty()) {
    return nullptr;
  }
  return format.open(kFolder, steps ? std::optional(steps->front()) : std::nullopt);
}

} // namespace

void checkpoint_round_trip(const Case& c) {
  MemoryStorage storage;
  const auto format = make<CheckpointFormat>(c, {.storage = storage});
  if (format->detect(kFolder)) {
    fail("it takes a folder that is not there for its own", "look for names in `detect`");
  }
  if (!c.entry->writes) {
    not_applicable("it has no `write`, so it only reads");
  }
  const auto slices = halves(1);
  try {
    write(*format, 1, slices);
  } catch (const Error& error) {
    fail(std::string("it cannot write: ") + error.what());
  }
  if (!format->detect(kFolder)) {
    fail("it does not know the folder that it wrote", "look for what `write` leaves in `detect`");
  }
  const auto saved = open_newest(*format);
  if (saved == nullptr) {
    fail("`steps` does not name the step that was written");
  }
  for (const Slice& slice : slices) {
    (void)require_fit(*saved, slice);
  }
  if (const std::string sentence = difference(*saved, slices); !sentence.empty()) {
    fail(sentence, "compare the boxes that `read` copies with those that were written");
  }
}

// The storage stops at each call in turn, as if the process had been killed; then there is the
// checkpoint before or the new one.
void checkpoint_crash(const Case& c) {
  MemoryStorage storage;
  const auto format = make<CheckpointFormat>(c, {.storage = storage});
  try {
    write(*format, 1, halves(1));
  } catch (const Error& error) {
    not_applicable(error.what());
  }
  const MemoryStorage::Objects before = storage.objects();
  bool stopped = true;
  for (size_t at = 1; stopped; ++at) {
    MemoryStorage crashed(before);
    const auto writer = make<CheckpointFormat>(c, {.storage = crashed});
    crashed.fault = {.at = at, .code = EIO};
    try {
      write(*writer, 2, halves(5000));
    } catch (const Error&) {
    }
    stopped = crashed.calls >= at;
    crashed.fault.reset();
    const auto reader = make<CheckpointFormat>(c, {.storage = crashed});
    const auto saved = open_newest(*reader);
    if (saved == nullptr ||
        (!difference(*saved, halves(1)).empty() && !difference(*saved, halves(5000)).empty())) {
      fail(
          "stopped at call " + std::to_string(at) +
              " of a write, neither the checkpoint before nor the new one can be read",
          "write new objects under new names, and what makes them count last (storage.hpp)"
      );
    }
  }
}

} // namespace mh::check
