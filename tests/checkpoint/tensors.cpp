#include "core/checkpoint/tensors.hpp"

#include "core/formats/crc32c.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

using mh::test::contains;
using mh::test::counting;
using mh::test::refusal;

TEST_CASE("every dtype of LibTorch that the format has goes there and back") {
  int count = 0;
  for (int i = 0; mh::dtype_name(static_cast<mh::Dtype>(i)) != "U64"; ++i) {
    const auto dtype = static_cast<mh::Dtype>(i);
    if (mh::dtype_bits(dtype) >= 8) {
      CHECK(mh::dtype_of(mh::scalar_type(dtype)) == dtype);
      CHECK(
          mh::dtype_bits(dtype) ==
          8 * static_cast<int64_t>(c10::elementSize(mh::scalar_type(dtype)))
      );
      ++count;
    }
  }
  CHECK(count == 18);
  CHECK(refusal([] { (void)mh::scalar_type(mh::Dtype::f4); }) == "LibTorch has no dtype like F4");
  CHECK(refusal([] {
          (void)mh::dtype_of(at::kComplexDouble);
        }) == "safetensors has no dtype like ComplexDouble");
}

TEST_CASE("tensors of any strides are written and read bit for bit") {
  mh::MemoryStorage disk;
  const std::map<std::string, at::Tensor> tensors{
      {"transposed", counting({3, 5}, 1).t()},
      {"narrow", counting({6, 4}, 2).narrow(1, 1, 2)},
      {"expanded", counting({1}, 3).expand({4})},
      {"bf16", counting({7}, 4, at::kBFloat16)},
      {"scalar", counting({}, 5, at::kDouble)},
      {"empty", counting({0, 3}, 6)},
      {"flags", counting({3}, 0, at::kBool)},
  };
  std::vector<mh::NamedTensor> named;
  for (const auto& [name, value] : tensors) {
    named.push_back({name, value});
  }
  const auto written = mh::write_tensors(disk, "/x.safetensors", named);
  const std::string& bytes = disk.contents("/x.safetensors");
  CHECK(written.file.size == bytes.size());
  CHECK(written.file.crc32c == mh::crc32c(bytes));
  const auto read = mh::read_tensors(disk, "/x.safetensors");
  REQUIRE(read.size() == tensors.size());
  for (const auto& [name, value] : tensors) {
    CAPTURE(name);
    CHECK((read.at(name).scalar_type() == value.scalar_type()));
    CHECK(read.at(name).equal(value));
    CHECK(written.crc32c.at(name) == mh::crc32c(mh::bytes_of(value.contiguous())));
  }
  CHECK(contains(
      refusal([&] {
        (void)mh::write_tensors(disk, "/y", {{"a", named[0].value}, {"a", named[1].value}});
      }),
      "two tensors named \"a\""
  ));
}

TEST_CASE("parameters that require gradients are written") {
  mh::MemoryStorage disk;
  const at::Tensor value = counting({2}, 1).requires_grad_();
  (void)mh::write_tensors(disk, "/x", {{"w", value}});
  CHECK(mh::read_tensors(disk, "/x").at("w").equal(value));
}
