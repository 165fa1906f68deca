// Norms of a residual stream and their gradients, on a CPU, against float64.

#include "tests/cuda/kernels/memory.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

using namespace mh;
using cuda::GpuType;
using test::Elements;

namespace {

struct NormShape {
  int64_t rows, columns;
  size_t gap; ///< if it is not 0, no packs are loaded
};

/// A norm's operands of one shape, and what the kernels make of them.
class Norm {
public:
  Norm(GpuType type, const NormShape& shape, bool centred, bool added, std::mt19937& random)
      : shape_(shape)
      , centred_(centred)
      , x(make(type, shape.rows, random, 1))
      , term(make(type, shape.rows, random, 0.5F))
      , weight(make(type, 1, random, 1))
      , bias(make(type, 1, random, 0))
      , sum(added ? Elements(type, x.count(), shape.gap) : x.copy(shape.gap))
      , y(type, x.count(), shape.gap)
      , mean(GpuType::fp32, shape.rows)
      , rstd(GpuType::fp32, shape.rows) {
    const cuda::NormLaunch call{
        .type = type,
        .rows = shape.rows,
        .columns = shape.columns,
        .eps = 1e-5F,
        .x = x.data(),
        .added = added ? term.data() : nullptr,
        .weight = weight.data(),
        .bias = centred ? bias.data() : nullptr,
        .sum = sum.data(),
        .y = y.data(),
        .mean = centred ? floats(mean) : nullptr,
        .rstd = floats(rstd)};
    CHECK(megahost_cuda_table()->norm(call, nullptr) == nullptr);
    for (int64_t i = 0; added && i < x.count(); ++i) {
      const float exact = x[i] + term[i];
      CHECK(sum[i] == (type == GpuType::fp32 ? exact : test::rounded(exact)));
    }
  }

  /// How far results are from those of float64.
  [[nodiscard]] double forward_error() const {
    double worst = 0;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      double own_mean = 0, squares = 0;
      for (int64_t i = 0; centred_ && i < shape_.columns; ++i) {
        own_mean += element(sum, row, i) / static_cast<double>(shape_.columns);
      }
      for (int64_t i = 0; i < shape_.columns; ++i) {
        squares += std::pow(element(sum, row, i) - own_mean, 2);
      }
      const double own_rstd = 1 / std::sqrt(squares / static_cast<double>(shape_.columns) + 1e-5);
      worst = std::max(worst, std::abs(rstd[row] / own_rstd - 1));
      worst = std::max(worst, centred_ ? std::abs(mean[row] - own_mean) : 0);
      for (int64_t i = 0; i < shape_.columns; ++i) {
        const double wanted =
            (element(sum, row, i) - own_mean) * own_rstd * weight[i] + (centred_ ? bias[i] : 0.0);
        worst = std::max(worst, std::abs(element(y, row, i) - wanted) / (1 + std::abs(wanted)));
      }
    }
    return worst;
  }

  /// How far gradients are from those of float64. `residual`: the gradient of the sum is added;
  /// `summed`: weight and bias have gradients.
  [[nodiscard]] double backward_error(bool residual, bool summed, std::mt19937& random) const {
    const GpuType type = x.type();
    const Elements dy = make(type, shape_.rows, random, 0),
                   dsum = make(type, shape_.rows, random, 0);
    const Elements dx(type, x.count(), shape_.gap);
    const int64_t chunks = (shape_.rows + cuda::kNormChunk - 1) / cuda::kNormChunk;
    const int64_t parts = centred_ ? 2 : 1;
    const Elements sums(GpuType::fp32, chunks * parts * shape_.columns);
    const cuda::NormGradientLaunch call{
        .type = type,
        .rows = shape_.rows,
        .columns = shape_.columns,
        .dy = dy.data(),
        .x = sum.data(),
        .weight = weight.data(),
        .dsum = residual ? dsum.data() : nullptr,
        .mean = centred_ ? floats(mean) : nullptr,
        .rstd = floats(rstd),
        .dx = dx.data(),
        .sums = summed ? floats(sums) : nullptr};
    CHECK(megahost_cuda_table()->norm_gradient(call, nullptr) == nullptr);
    std::vector<double> wanted(static_cast<size_t>(sums.count()));
    double worst = 0;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      const double own_mean = centred_ ? mean[row] : 0, own_rstd = rstd[row];
      const auto normal = [&](int64_t i) { return (element(sum, row, i) - own_mean) * own_rstd; };
      double scaled = 0, along = 0;
      for (int64_t i = 0; i < shape_.columns; ++i) {
        const double d = element(dy, row, i);
        scaled += d * weight[i] / static_cast<double>(shape_.columns);
        along += d * weight[i] * normal(i) / static_cast<double>(shape_.columns);
        const auto at = static_cast<size_t>(row / cuda::kNormChunk * parts * shape_.columns + i);
        wanted[at] += d * normal(i);
        if (centred_) {
          wanted[at + static_cast<size_t>(shape_.columns)] += d;
        }
      }
      for (int64_t i = 0; i < shape_.columns; ++i) {
        const double own =
            (element(dy, row, i) * weight[i] - (centred_ ? scaled : 0) - normal(i) * along) *
                own_rstd +
            (residual ? element(dsum, row, i) : 0);
        worst = std::max(worst, std::abs(element(dx, row, i) - own) / (1 + std::abs(own)));
      }
    }
    for (int64_t i = 0; i < sums.count(); ++i) {
      const double own = summed ? wanted[static_cast<size_t>(i)] : 0;
      worst = std::max(worst, std::abs(sums[i] - own) / (1 + std::abs(own)));
    }
    return worst;
  }

private:
  [[nodiscard]] Elements make(GpuType type, int64_t rows, std::mt19937& random, float mean) const {
    Elements made(type, rows * shape_.columns, shape_.gap);
    made.fill(random, mean, 1);
    return made;
  }

  static float* floats(const Elements& x) { return static_cast<float*>(x.data()); }

  [[nodiscard]] double element(const Elements& x, int64_t row, int64_t column) const {
    return x[row * shape_.columns + column];
  }

  NormShape shape_;
  bool centred_;
  Elements x, term, weight, bias, sum, y, mean, rstd;
};

} // namespace

TEST_CASE("norms of a residual stream and their gradients are those of float64") {
  std::mt19937 random(1);
  for (const GpuType type : {GpuType::fp32, GpuType::bf16}) {
    const double most = type == GpuType::fp32 ? 1e-5 : 5e-3;
    for (const NormShape& shape :
         {NormShape{33, 1032, 0}, {70, 8, 0}, {9, 7, 0}, {5, 64, 4}, {1, 300, 0}}) {
      for (const bool centred : {false, true}) {
        for (const bool added : {false, true}) {
          CAPTURE(shape.columns);
          CAPTURE(centred);
          CAPTURE(added);
          const Norm norm(type, shape, centred, added, random);
          CHECK(norm.forward_error() < most);
          CHECK(norm.backward_error(/*residual=*/added, /*summed=*/true, random) < most);
          CHECK(norm.backward_error(/*residual=*/!added, /*summed=*/false, random) < most);
        }
      }
    }
  }
}
