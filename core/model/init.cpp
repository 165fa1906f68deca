#include "megahost/parameter.hpp"
#include "megahost/random.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

Init Init::constant(double value) {
  return Init([value](uint64_t, const auto&, int64_t, std::span<double> values) {
    std::fill(values.begin(), values.end(), value);
  });
}

Init Init::normal(double std) {
  return Init([std](uint64_t key, const auto&, int64_t first, std::span<double> values) {
    standard_normals(key, first, values);
    for (double& value : values) {
      value *= std;
    }
  });
}

Init Init::uniform(double low, double high) {
  return Init([low, high](uint64_t key, const auto&, int64_t first, std::span<double> values) {
    standard_uniforms(key, first, values);
    for (double& value : values) {
      value = low + (high - low) * value;
    }
  });
}

Init Init::log_uniform(double low, double high) {
  return uniform(std::log(low), std::log(high)).mapped([](double log) { return std::exp(log); });
}

Init Init::of_index(OfIndex of_index) {
  return Init([of_index = std::move(of_index
               )](uint64_t, const auto& global_shape, int64_t first, std::span<double> values) {
    std::vector<int64_t> index(global_shape.size());
    for (size_t d = index.size(); d-- > 0;) {
      index[d] = first % global_shape[d];
      first /= global_shape[d];
    }
    for (double& value : values) {
      value = of_index(index);
      ++index.back();
    }
  });
}

Init Init::mapped(std::function<double(double)> map) const {
  return Init([write = write_, map = std::move(map)](
                  uint64_t key, const auto& global_shape, int64_t first, std::span<double> values
              ) {
    if (write) {
      write(key, global_shape, first, values);
    } else {
      std::fill(values.begin(), values.end(), 0.0);
    }
    std::transform(values.begin(), values.end(), values.begin(), map);
  });
}

void Init::fill(
    const at::Tensor& zeros,
    uint64_t key,
    const std::vector<int64_t>& global_shape,
    const std::vector<int64_t>& offset
) const {
  if (write_) {
    fill_rows(zeros, global_shape, offset, [&](int64_t first, std::span<double> values) {
      write_(key, global_shape, first, values);
    });
  }
}

void fill_normal(
    at::Tensor slice,
    uint64_t key,
    double std,
    const std::vector<int64_t>& global_shape,
    const std::vector<int64_t>& offset
) {
  Init::normal(std).fill(slice, key, global_shape, offset);
}

} // namespace mh
