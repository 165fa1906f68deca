#pragma once
/// Optimizers that precondition a matrix on both sides by averages of products of its gradients.

#include <megahost/optimizer.hpp>
#include <megahost/schema.hpp>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mh::soap {

struct FactorConfig {
  std::vector<double> betas{0.95, 0.95};
  double shampoo_beta = 0.95;
  int64_t precondition_frequency = 10;
  int64_t max_preconditioner_dim = 10000;
  double damping = 1e-3;
  double eps = 1e-8;
  std::vector<std::string> adamw{"embedding.*", "head.*"};
};

/// The fields that Shampoo and SOAP share.
template <class Config>
void add_fields(mh::Fields<Config>& f) {
  f.add("betas", &Config::betas, "decay rates of the averages of gradients and of their squares");
  f.add(
       "shampoo_beta",
       &Config::shampoo_beta,
       "share that the factors, averages of G G^T and of G^T G, keep of themselves"
  )
      .at_least(0)
      .below(1);
  f.add(
       "precondition_frequency",
       &Config::precondition_frequency,
       "steps from one refresh of a matrix's preconditioner to the next; matrices take turns"
  )
      .at_least(1);
  f.add(
       "max_preconditioner_dim",
       &Config::max_preconditioner_dim,
       "a longer dimension has no factor; a matrix without factors is AdamW's"
  )
      .at_least(1);
  f.add(
       "damping",
       &Config::damping,
       "share of its diagonal's mean that is added to a factor's diagonal in a refresh: directions "
       "without a gradient stay what they were"
  )
      .at_least(0);
  f.add("eps", &Config::eps, "added to the root of the averaged squares").above(0);
  f.add(
      "adamw",
      &Config::adamw,
      "names of matrices that AdamW updates all the same, `*` for any characters"
  );
  f.check("betas", [](const Config& c) -> std::string {
    const bool good = c.betas.size() == 2 &&
                      std::ranges::all_of(c.betas, [](double b) { return b >= 0 && b < 1; });
    return good ? "" : "takes two numbers of at least 0 and below 1, like { 0.95, 0.95 }";
  });
}

/// One side of a matrix G [rows, columns].
struct Factor {
  int64_t dim = 0;           ///< 0: rows, 1: columns
  at::Tensor average;        ///< [n, n], of G Gt or of Gt G; n is the side's length
  at::Tensor preconditioner; ///< [n, n], what refreshes make of it
};

/// A matrix whose step this rank makes.
struct Matrix {
  at::Tensor gradient;            ///< [rows, columns], scaled
  at::Tensor exp_avg, exp_avg_sq; ///< like it
  std::vector<Factor> factors;    ///< one or two
  int64_t step = 1;               ///< number of this update
  bool due = false;               ///< whether its preconditioners are refreshed in this step
};

/// Makes the steps of the matrices inside the blocks by their factors, and leaves the rest to AdamW.
///
/// A matrix that ranks have split is gathered, and its state lies on one of these ranks, which makes
/// its step while the others make those of other matrices; then each takes its slice. Factors and
/// averages of matrices are in float32.
class FactorOptimizer : public mh::Optimizer {
public:
  FactorOptimizer(const FactorConfig& config, const Args& args);

  [[nodiscard]] bool rounds_stochastically() const override { return true; }

  [[nodiscard]] std::vector<mh::StateSpec> state() const override;

  [[nodiscard]] std::vector<mh::StateSpec>
  state_of(const std::string& name, const std::vector<int64_t>& global_shape) const override;

  [[nodiscard]] mh::Unit unit() const override { return mh::Unit::matrix; }

  [[nodiscard]] bool finishes() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override;

protected:
  [[nodiscard]] const FactorConfig& config() const { return config_; }

  /// A factor with damping.
  [[nodiscard]] at::Tensor damped(const Factor& factor) const;

  /// Adds this step's products to the factors.
  void average_products(Matrix& matrix) const;

private:
  /// Makes the step, which the weight loses times the learning rate, and updates the state.
  [[nodiscard]] virtual at::Tensor step_of(Matrix& matrix) const = 0;

  /// The word that the states' names have for what refreshes make of a factor.
  [[nodiscard]] virtual std::string preconditioner() const = 0;

  /// The dimensions of a parameter that have a factor; none: it is AdamW's.
  [[nodiscard]] std::vector<int64_t>
  factored(const std::string& name, const std::vector<int64_t>& shape) const;

  [[nodiscard]] Matrix
  matrix_of(const mh::UpdateItem& item, const at::Tensor& gradient, int64_t step) const;

  FactorConfig config_;
  Args args_;
  mh::UpdateRule adamw_, descent_;
};

} // namespace mh::soap
