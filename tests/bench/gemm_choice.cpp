#include "core/bench/gemm_choice.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/ops.hpp"
#include "megahost/error.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace gemm_choice_tests {

using mh::chosen_gemm;
using mh::faster_gemm;
using mh::UnknownMachine;
using mh::ops::gemm_choice_of;
using mh::ops::GemmChoice;
using mh::ops::ProductKind;

namespace {

/// A user's folder of its own, and no pinned choice.
class UserFolder {
public:
  UserFolder()
      : path_(std::filesystem::temp_directory_path() / ("mh_gemm_" + std::to_string(getpid()))) {
    setenv("XDG_DATA_HOME", path_.c_str(), 1);
    setenv("MEGAHOST_GEMM", "auto", 1);
  }

  ~UserFolder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::filesystem::path file() const { return path_ / "megahost/gemm.json"; }

private:
  std::filesystem::path path_;
};

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

at::Tensor multiplied(const at::Tensor& a, const at::Tensor& b, const GemmChoice& choice) {
  mh::ops::use_gemm(choice);
  at::Tensor c = at::zeros({a.size(0), b.size(1)});
  mh::ops::gemm_(c, a, b, /*add=*/false);
  mh::ops::use_gemm({});
  return c;
}

} // namespace

TEST_CASE("a choice is the text that says it") {
  for (const char* text : {"", "output", "output, weight gradient", "input gradient"}) {
    CHECK(to_string(gemm_choice_of(text)) == text);
  }
  CHECK(gemm_choice_of("input gradient")[ProductKind::input_gradient]);
  CHECK_THROWS_AS(static_cast<void>(gemm_choice_of("bias")), mh::Error);
}

TEST_CASE("the faster one is chosen for each kind, ours where they are alike") {
  CHECK(to_string(faster_gemm({.own = {100, 100, 100}, .libtorch = {120, 102, 80}})) == "output");
}

TEST_CASE("float32 products follow the choice") {
  mh::ops::ensure_registered();
  const at::Tensor x = at::randn({70, 333});
  const at::Tensor w = at::randn({90, 333});
  const at::Tensor expected = at::mm(x, w.t());
  const at::Tensor own = multiplied(x, w.t(), {});
  CHECK(at::equal(multiplied(x, w.t(), gemm_choice_of("output")), expected));
  CHECK(at::equal(multiplied(x, w.t(), gemm_choice_of("input gradient, weight gradient")), own));
  CHECK(at::allclose(own, expected, 1e-4, 1e-4));
}

TEST_CASE("what was measured once is chosen from then on") {
  const UserFolder folder;
  CHECK(chosen_gemm(UnknownMachine::own).empty());
  CHECK(!std::filesystem::exists(folder.file()));
  const std::string first = chosen_gemm();
  auto choices = read_json(folder.file());
  REQUIRE(choices.size() == 1);
  auto& entry = choices.begin().value();
  CHECK(entry["libtorch"] == first);
  for (const auto kind : mh::ops::kProductKinds) {
    const std::string name(to_string(kind));
    const double ours = entry["own_gflops_per_s"][name].get<double>();
    const double theirs = entry["libtorch_gflops_per_s"][name].get<double>();
    CHECK((gemm_choice_of(first)[kind] ? theirs >= ours : 1.05 * ours >= theirs));
  }

  SUBCASE("by what the file says") {
    entry["libtorch"] = "weight gradient";
    std::ofstream(folder.file()) << choices;
    CHECK(chosen_gemm() == "weight gradient");
    CHECK(chosen_gemm(UnknownMachine::own) == "weight gradient");
  }
  SUBCASE("for each number of threads") {
    const int threads = at::get_num_threads();
    at::set_num_threads(threads + 1);
    static_cast<void>(chosen_gemm());
    at::set_num_threads(threads);
    CHECK(read_json(folder.file()).size() == 2);
  }
  SUBCASE("and a file that says nothing is refused by name") {
    std::ofstream(folder.file()) << "oh";
    CHECK_THROWS_WITH_AS(
        static_cast<void>(chosen_gemm()), doctest::Contains(folder.file().c_str()), mh::Error
    );
  }
}

TEST_CASE("a variable names the choice") {
  const UserFolder folder;
  setenv("MEGAHOST_GEMM", "own", 1);
  CHECK(chosen_gemm().empty());
  setenv("MEGAHOST_GEMM", "libtorch", 1);
  CHECK(chosen_gemm() == "output, input gradient, weight gradient");
  setenv("MEGAHOST_GEMM", "fast", 1);
  CHECK_THROWS_WITH_AS(
      static_cast<void>(chosen_gemm()), doctest::Contains("MEGAHOST_GEMM is `fast`"), mh::Error
  );
  CHECK(!std::filesystem::exists(folder.file()));
}

} // namespace gemm_choice_tests
