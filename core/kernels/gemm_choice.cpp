#include "core/kernels/gemm_choice.hpp"

#include "megahost/error.hpp"

#include <algorithm>

namespace mh::ops {

namespace {

GemmChoice& current_choice() {
  static GemmChoice choice;
  return choice;
}

} // namespace

std::string_view to_string(ProductKind kind) {
  switch (kind) {
  case ProductKind::output:
    return "output";
  case ProductKind::input_gradient:
    return "input gradient";
  case ProductKind::weight_gradient:
    return "weight gradient";
  }
  MH_ASSERT(false, "there is no such kind of GEMM");
}

std::string to_string(const GemmChoice& choice) {
  std::string text;
  for (const auto kind : kProductKinds) {
    if (choice[kind]) {
      text += (text.empty() ? "" : ", ") + std::string(to_string(kind));
    }
  }
  return text;
}

GemmChoice gemm_choice_of(std::string_view text) {
  GemmChoice choice;
  while (!text.empty()) {
    const size_t comma = text.find(", ");
    const auto name = text.substr(0, comma);
    const auto* const kind =
        std::ranges::find_if(kProductKinds, [&](auto each) { return to_string(each) == name; });
    if (kind == kProductKinds.end()) {
      throw Error(
          "there is no GEMM of a linear layer called `" + std::string(name) + "`",
          "there are: output, input gradient, weight gradient"
      );
    }
    choice[*kind] = true;
    text = comma == std::string_view::npos ? "" : text.substr(comma + 2);
  }
  return choice;
}

const GemmChoice& gemm_choice() {
  return current_choice();
}

void use_gemm(const GemmChoice& choice) {
  current_choice() = choice;
}

} // namespace mh::ops
