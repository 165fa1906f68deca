#include "megahost/number.hpp"

#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <sstream>
#include <utility>

namespace mh {

Number::Number(at::Tensor value)
    : tensor_(std::move(value)) {
  if (!tensor_.defined() || tensor_.dim() != 0 || tensor_.scalar_type() != at::kDouble) {
    std::ostringstream found;
    if (tensor_.defined()) {
      found << c10::toString(tensor_.scalar_type()) << " " << tensor_.sizes();
    } else {
      found << "an undefined tensor";
    }
    throw Error(
        "a number in memory is " + found.str() + ", expected a float64 tensor of no dimensions",
        "make it by at::full({}, value, at::kDouble)"
    );
  }
}

double Number::number() const {
  if (is_tensor()) {
    throw Error(
        "a number of this update is in memory of " + tensor_.device().str() +
            ", and was asked for on the host",
        "read it in kernels, by Number::tensor(); an optimizer that needs it on the host leaves "
        "takes_tensors() false"
    );
  }
  return value_;
}

double Number::read() const {
  return is_tensor() ? tensor_.item<double>() * factor_ : value_;
}

at::Tensor Number::tensor() const {
  return is_tensor() ? tensor_ * factor_ : at::full({}, value_, at::kDouble);
}

Number operator*(const Number& a, const Number& b) {
  if (a.is_tensor() && b.is_tensor()) {
    return Number(a.tensor() * b.tensor());
  }
  return a.is_tensor() ? a * b.number() : b * a.number();
}

} // namespace mh
