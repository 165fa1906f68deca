#include "core/formats/torch_file.hpp"

#include "core/formats/dcp_metadata.hpp"
#include "dcp_samples.hpp"
#include "refusal.hpp"
#include "torch_samples.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace torch_file_tests {

using mh::Dtype;
using mh::TorchFile;
using mh::TorchTensor;
using mh::test::contains;
using mh::test::refusal;

namespace {

mh::ReadAt reader_of(const std::string& bytes) {
  return [&bytes](uint64_t offset, std::span<std::byte> into) {
    REQUIRE(offset <= bytes.size());
    REQUIRE(into.size() <= bytes.size() - offset);
    std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
}

template <size_t N>
std::string sample(const char (&bytes)[N]) {
  return std::string(bytes, N - 1);
}

std::string why(const std::string& bytes) {
  return refusal([&] {
    const TorchFile file(reader_of(bytes), bytes.size(), "a.pt");
    for (size_t i = 1; i < file.root().items.size(); i += 2) {
      if (TorchFile::is_tensor(*file.root().items[i])) {
        (void)file.tensor(*file.root().items[i]);
      }
    }
  });
}

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  REQUIRE(at != std::string::npos);
  return bytes.replace(at, from.size(), to);
}

/// A file with one tensor of float32, of which the numbers are given; `module` is named as the one that makes it.
std::string with_tensor(
    int64_t elements,
    int64_t offset,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& strides,
    const std::string& key = "0",
    const std::string& module = "torch._utils"
) {
  mh::PickleWriter out;
  out.mark().text("w").global(module, "_rebuild_tensor_v2").mark();
  out.mark().text("storage").global("torch", "FloatStorage").text(key).text("cpu");
  out.integer(elements).tuple().persistent();
  out.integer(offset).integers(shape).integers(strides).boolean(false);
  out.global("collections", "OrderedDict").mark().tuple().reduce().tuple().reduce().dict();
  const std::string pickle = out.finish(), data(24, '\1');
  mh::ZipLayout zip;
  std::string bytes = zip.entry("a/data.pkl", pickle.size(), mh::crc32(pickle)) + pickle;
  bytes += zip.entry("a/data/0", data.size(), mh::crc32(data)) + data;
  return bytes + zip.finish();
}

} // namespace

TEST_CASE("a file of torch.save is read: values, views, types of eight bits") {
  const std::string bytes = sample(mh::test::kTorchFile);
  const TorchFile file(reader_of(bytes), bytes.size(), "a.pt");
  const auto& root = file.root();
  CHECK(root.get("step")->integer == 7);
  CHECK(root.get("name")->text == "a");
  CHECK(root.get("rate")->real == 0.5);
  CHECK(root.get("flag")->integer == 1);
  CHECK(!TorchFile::is_tensor(*root.get("step")));
  const TorchTensor weight = file.tensor(*root.get("weight"));
  CHECK(weight.dtype == Dtype::f32);
  CHECK(weight.shape == std::vector<int64_t>{2, 3});
  CHECK(weight.is_contiguous());
  CHECK(weight.offset % 64 == 0);
  float last = 0;
  file.read(weight.offset + 20, std::as_writable_bytes(std::span(&last, 1)));
  CHECK(last == 5);
  CHECK(file.tensor(*root.get("half")).dtype == Dtype::bf16);
  CHECK(file.tensor(*root.get("e4m3")).dtype == Dtype::f8_e4m3);
  const TorchTensor turned = file.tensor(*root.get("turned"));
  CHECK(turned.dtype == Dtype::i64);
  CHECK(turned.shape == std::vector<int64_t>{3, 2});
  CHECK(turned.strides == std::vector<int64_t>{1, 3});
  CHECK(!turned.is_contiguous());
  for (const mh::ZipEntry& entry : file.entries()) { // the checksums of PyTorch's own writer
    std::string data(entry.bytes, '\0');
    file.read(entry.offset, std::as_writable_bytes(std::span(data)));
    CHECK(mh::crc32(data) == entry.crc32);
  }
}

TEST_CASE("a file of torch.save that is cut short or broken is refused") {
  const std::string bytes = sample(mh::test::kTorchFile);
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!why(bytes.substr(0, length)).empty());
  }
  for (size_t at = 0; at < bytes.size(); ++at) { // no crash, whatever byte is another
    std::string broken = bytes;
    broken[at] = static_cast<char>(broken[at] ^ 0xff);
    (void)why(broken);
  }
  CHECK(contains(why("PK" + std::string(100, ' ')), "it does not end as a zip file"));
  CHECK(contains(
      why(replaced(bytes, "byteorder", "byteOrder")), "has another header than the directory says"
  ));
  CHECK(contains(why(replaced(bytes, "little", "bigbig")), "its numbers are \"bigbig\" endian"));
  CHECK(contains(
      why(replaced(bytes, "torch._utils", "torch.system")), "data.pkl does not match its checksum"
  ));
  CHECK(contains(
      why(with_tensor(6, 0, {2, 3}, {3, 1}, "0", "torch.system")),
      "it names \"torch.system._rebuild_tensor_v2\""
  ));
}

TEST_CASE("a tensor lies inside of its storage") {
  CHECK(why(with_tensor(6, 0, {2, 3}, {3, 1})).empty());
  CHECK(why(with_tensor(6, 0, {3, 2}, {1, 3})).empty());
  CHECK(why(with_tensor(6, 5, {1000000}, {0})).empty()); // expanded from one element
  CHECK(contains(why(with_tensor(6, 1, {2, 3}, {3, 1})), "ends outside of its storage"));
  CHECK(contains(why(with_tensor(6, 7, {0}, {1})), "ends outside of its storage"));
  CHECK(contains(why(with_tensor(6, -1, {2}, {1})), "at element -1"));
  CHECK(contains(why(with_tensor(6, 0, {2}, {-1})), "with the strides [-1]"));
  CHECK(contains(why(with_tensor(6, 0, {-2}, {1})), "of the shape [-2]"));
  CHECK(contains(why(with_tensor(6, 0, {2, 3}, {1})), "with the strides [1]"));
  CHECK(contains(why(with_tensor(6, 0, {INT64_MAX, INT64_MAX}, {INT64_MAX, 1})), "of the shape"));
  CHECK(contains(
      why(with_tensor(6'000'000'000, 0, {6'000'000'000}, {1})),
      "a storage of 6000000000 elements, for which the file has 24 bytes"
  ));
  CHECK(contains(why(with_tensor(-1, 0, {1}, {1})), "a storage that is none"));
  CHECK(contains(why(with_tensor(6, 0, {6}, {1}, "1")), "a storage \"1\" that the file lacks"));
  CHECK(contains(why(with_tensor(6, 0, {6}, {1}, "../data.pkl")), "that the file lacks"));
}

TEST_CASE("an envelope round a tensor is a file of torch.save") {
  for (const auto& [dtype, size] :
       {std::pair(Dtype::f32, 4), {Dtype::bf16, 2}, {Dtype::f8_e5m2, 1}, {Dtype::u64, 8}}) {
    const std::vector<int64_t> shape{3, 2};
    const std::string data(static_cast<size_t>(6 * size), '\7');
    const auto [before, after] = mh::torch_envelope(dtype, shape, mh::crc32(data));
    CHECK(before.size() % 64 == 0);
    const std::string bytes = before + data + after;
    const TorchFile file(reader_of(bytes), bytes.size(), "a.pt");
    const TorchTensor tensor = file.tensor(file.root());
    CHECK(tensor.dtype == dtype);
    CHECK(tensor.shape == shape);
    CHECK(tensor.offset == before.size());
    CHECK(tensor.storage.crc32 == mh::crc32(data));
    for (size_t length = 0; length < bytes.size(); ++length) {
      CHECK(!why(bytes.substr(0, length)).empty());
    }
  }
}

TEST_CASE("a tensor of more than 4 GiB has sizes of 64 bits") {
  const std::vector<int64_t> shape{5, int64_t{1} << 30};
  const auto [before, after] = mh::torch_envelope(Dtype::u8, shape, 0);
  const uint64_t bytes = 5ULL << 30, size = before.size() + bytes + after.size();
  const auto read = [&](uint64_t offset, std::span<std::byte> into) { // zeros between the two
    for (size_t i = 0; i < into.size(); ++i) {
      const uint64_t at = offset + i;
      into[i] = static_cast<std::byte>(
          at < before.size()            ? before[at]
          : at >= before.size() + bytes ? after[at - before.size() - bytes]
                                        : 0
      );
    }
  };
  const TorchFile file(read, size, "large.pt");
  const TorchTensor tensor = file.tensor(file.root());
  CHECK(tensor.shape == shape);
  CHECK(tensor.storage.bytes == bytes);
  CHECK(file.entries().back().name == "archive/version");
}

TEST_CASE("checksums of zip files") {
  CHECK(mh::crc32("123456789") == 0xCBF43926);
  CHECK(mh::crc32("456789", mh::crc32("123")) == 0xCBF43926);
  CHECK(mh::crc32("") == 0);
}

TEST_CASE(".metadata of torch.distributed.checkpoint") {
  const std::string bytes = sample(mh::test::kDcpMetadata);
  const mh::DcpMetadata metadata = mh::read_dcp_metadata(bytes, ".metadata");
  REQUIRE(metadata.tensors.size() == 2);
  CHECK(metadata.tensors[0].name == "model.half");
  CHECK(metadata.tensors[0].dtype == Dtype::bf16);
  CHECK(metadata.tensors[1].name == "model.weight");
  CHECK(metadata.tensors[1].shape == std::vector<int64_t>{2, 3});
  REQUIRE(metadata.tensors[1].chunks.size() == 1);
  CHECK(metadata.tensors[1].chunks[0].place.file == "__0_0.distcp");
  CHECK(metadata.tensors[1].chunks[0].place.bytes > 24);
  REQUIRE(metadata.objects.size() == 1);
  CHECK(metadata.objects[0].name == "step");
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!refusal([&] { (void)mh::read_dcp_metadata(bytes.substr(0, length), "m"); }).empty());
  }
  // The text that is written can be read again.
  const std::string text = mh::dcp_metadata_text(metadata);
  CHECK(mh::dcp_metadata_text(mh::read_dcp_metadata(text, "m")) == text);
}

TEST_CASE("what .metadata may not say") {
  const auto refused = [](const std::function<void(mh::DcpMetadata&)>& change) {
    mh::DcpMetadata metadata{
        {{"w",
          Dtype::f32,
          {4, 2},
          {{{0, 0}, {2, 2}, {"a.distcp", 0, 100}}, {{2, 0}, {2, 2}, {"b.distcp", 0, 100}}}}},
        {{"step", {"a.distcp", 100, 50}}}};
    change(metadata);
    return refusal([&] { (void)mh::read_dcp_metadata(mh::dcp_metadata_text(metadata), "m"); });
  };
  CHECK(refused([](mh::DcpMetadata&) {}).empty());
  CHECK(contains(
      refused([](mh::DcpMetadata& m) { m.tensors[0].chunks[0].place.file = "../../etc/passwd"; }),
      "\"../../etc/passwd\" is no name of a file in the folder"
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) { m.objects[0].place.file = "/etc/passwd"; }),
      "is no name of a file"
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) { m.tensors[0].chunks.pop_back(); }),
      "\"w\": its chunks hold 16 of 32 bytes"
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) {
        m.tensors[0].chunks[1].offset = {1, 0};
      }),
      "overlaps"
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) {
        m.tensors[0].chunks[1].offset = {3, 0};
      }),
      "is not within shape"
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) {
        m.tensors[0].shape = {INT64_MAX, INT64_MAX};
      }),
      "\"w\""
  ));
  CHECK(contains(
      refused([](mh::DcpMetadata& m) { m.objects[0].place.offset = UINT64_MAX; }), "at byte -1"
  ));
  // A place is a single tensor's, unless a checksum says that it was so written.
  mh::DcpMetadata shared{
      {{"v", Dtype::f32, {2}, {{{0}, {2}, {"a.distcp", 0, 100}}}},
       {"w", Dtype::f32, {2}, {{{0}, {2}, {"a.distcp", 0, 100}}}}},
      {}};
  CHECK(mh::read_dcp_metadata(mh::dcp_metadata_text(shared), "m").tensors.size() == 2);
  CHECK(contains(
      refusal([&] {
        (void)mh::read_dcp_metadata(mh::test::without_checksum(mh::dcp_metadata_text(shared)), "m");
      }),
      "\"v\" at [0] and \"w\" at [0] are said to lie in the same bytes of \"a.distcp\""
  ));
  std::string changed = mh::dcp_metadata_text(shared);
  changed[changed.find("a.distcp")] = 'b';
  CHECK(contains(
      refusal([&] { (void)mh::read_dcp_metadata(changed, "m"); }), "m: its checksum does not match"
  ));
  CHECK(contains(
      refusal([] { (void)mh::read_dcp_metadata(mh::PickleWriter().none().finish(), "m"); }),
      "it is no Metadata of torch.distributed.checkpoint"
  ));
}

} // namespace torch_file_tests
