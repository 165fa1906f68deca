#include "core/formats/npy.hpp"

#include "refusal.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace npy_tests {

namespace {

mh::NpyLayout read(const std::string& bytes) {
  return mh::read_npy(std::as_bytes(std::span(bytes)), "a.npy");
}

std::string with_dictionary(const std::string& dictionary, size_t bytes) {
  std::string text("\x93NUMPY\1\0", 8);
  text += static_cast<char>(dictionary.size());
  text += '\0';
  return text + dictionary + std::string(bytes, 'x');
}

} // namespace

TEST_CASE("a header of numpy is written as numpy.save does, and read again") {
  // numpy.save(numpy.zeros((3, 2), numpy.int32)), its first 128 bytes
  const std::vector<uint64_t> shape{3, 2};
  const std::string header = mh::npy_header("<i4", shape);
  const std::string text = "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }";
  CHECK(header == std::string("\x93NUMPY\1\0v\0", 10) + text + std::string(58, ' ') + "\n");
  const mh::NpyLayout layout = read(header + std::string(24, '\0'));
  CHECK(layout.type == "<i4");
  CHECK(layout.shape == shape);
  CHECK(layout.begin == 128);
  CHECK(layout.count() == 6);
  const std::vector<uint64_t> flat{7};
  CHECK(mh::npy_header("<u2", flat).find("'shape': (7,), }") != std::string::npos);
  CHECK(read(mh::npy_header("<u2", flat) + std::string(14, '\0')).count() == 7);
}

TEST_CASE("arrays that are none are refused") {
  const auto refused = [](const std::string& bytes) {
    return mh::test::refusal([&] { (void)read(bytes); });
  };
  CHECK(refused("tokens") == "a.npy: it does not begin as an array of numpy");
  CHECK(refused("\x93NUMPY") == "a.npy: format version 0, expected 1 or 2");
  CHECK(
      refused(std::string("\x93NUMPY\1\0\xff\xff", 10)) ==
      "a.npy: its header does not fit into its 10 bytes"
  );
  CHECK(
      refused(with_dictionary("{'descr': '<i4', 'fortran_order': True, 'shape': (1,), }", 4)) ==
      "a.npy: its numbers are in Fortran's order, expected C's"
  );
  CHECK(
      refused(with_dictionary("{'descr': 'O', 'fortran_order': False, 'shape': (1,), }", 4)) ==
      "a.npy: its numbers are of the type \"O\""
  );
  CHECK(
      refused(with_dictionary("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 4)) ==
      "a.npy: its header counts 8 bytes of numbers, but 4 follow"
  );
  CHECK(
      refused(with_dictionary(
          "{'descr': '<i8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 4
      )) == "a.npy: its header counts more than 2^64 bytes of numbers, but 4 follow"
  );
  const std::string whole =
      with_dictionary("{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", 4);
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK(!refused(whole.substr(0, length)).empty());
  }
  for (size_t at = 10; at + 4 < whole.size();
       ++at) { // every byte of the dictionary broken: no crash
    std::string broken = whole;
    broken[at] = '\'';
    (void)refused(broken);
  }
}

} // namespace npy_tests
