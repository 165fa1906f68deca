#pragma once
/// Numbers of an update, on the host or in a device's memory.
///
/// Learning rate, weight decay, the factor of gradients and an update's number change from step to
/// step. A step that is recorded once and replayed (a CUDA graph) must not have them built in:
/// there they are tensors, which kernels read when they run, and the host waits for nothing.
///
/// ```cpp
/// mh::Number lr = 1e-3;
/// double half = lr * 0.5;                             // the double that it holds on the host
/// lr = mh::Number(x);                                 // x: float64, no dimensions
/// mh::Number scaled = lr * 0.5;                       // nothing is computed yet
/// at::Tensor factor = scaled.tensor();                // for kernels; `half = scaled` would throw
/// ```

#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <type_traits>

namespace mh {

/// A double, or a float64 scalar tensor times a factor.
class MH_API Number {
public:
  Number() = default; ///< 0

  template <class T>

  requires std::is_arithmetic_v<T> Number(T value)
      : value_(static_cast<double>(value)) {}

  /// A tensor whose value at the time of use counts.
  ///
  /// Shapes:  no dimensions
  /// Dtype:   float64
  /// Throws:  mh::Error if it is another
  explicit Number(at::Tensor value);

  [[nodiscard]] bool is_tensor() const { return tensor_.defined(); }

  /// Throws:  mh::Error if it is a tensor, whose value the host does not know
  [[nodiscard]] double number() const;

  /// Converts to a double: in arithmetic, and for operators that take a scalar.
  operator double() const { return number(); }

  operator at::Scalar() const { return number(); }

  /// The value. The host waits for the device where it is a tensor there.
  [[nodiscard]] double read() const;

  /// The value as a float64 scalar: on the tensor's device, or on the CPU.
  [[nodiscard]] at::Tensor tensor() const;

  /// The tensor without the factor; undefined where it is on the host.
  [[nodiscard]] const at::Tensor& base() const { return tensor_; }

  [[nodiscard]] double factor() const { return factor_; }

  template <class T>

  requires std::is_arithmetic_v<T> Number& operator*=(T factor) {
    (is_tensor() ? factor_ : value_) *= static_cast<double>(factor);
    return *this;
  }

  template <class T>

  requires std::is_arithmetic_v<T> Number& operator/=(T divisor) {
    (is_tensor() ? factor_ : value_) /= static_cast<double>(divisor);
    return *this;
  }

  template <class T>
  requires std::is_arithmetic_v<T>

  [[nodiscard]] friend Number operator*(Number number, T factor) { return number *= factor; }

  template <class T>
  requires std::is_arithmetic_v<T>

  [[nodiscard]] friend Number operator*(T factor, Number number) { return number *= factor; }

private:
  double value_ = 0; ///< the value if there is no tensor
  at::Tensor tensor_;
  double factor_ = 1; ///< factor of the tensor
};

[[nodiscard]] MH_API Number operator*(const Number& a, const Number& b);

} // namespace mh
