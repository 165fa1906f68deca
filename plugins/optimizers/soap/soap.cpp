#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "factors.hpp"

#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <string>

namespace {

using mh::soap::Factor;
using mh::soap::Matrix;

/// A number that a root or a norm is never smaller than; all gradients may have been zero.
constexpr double kTiny = 1e-30;

/// Adam in the eigenvectors' bases Ql and Qr of Shampoo's factors:
///
/// v += (1 - beta2)((Qlt g Qr)^2 - v);  step = Ql (Qlt m Qr / (sqrt(v) + eps)) Qrt
///
/// A refresh makes one step of orthogonal iteration, Q = QR((factor + damping) Q), and comes after
/// the step. The bases begin as that of the identity, and the first update makes no step. Where the
/// factor has eigenvectors of its own these are what Q tends to; where it has none, because fewer
/// gradients were seen than it has dimensions, damping keeps Q as it was, and not what rounding
/// would make of it: so layouts agree.
///
/// Source:  arXiv:2409.11321, algorithm 3, in the form of github.com/nikhilvyas/SOAP but for the
///          beginning (there: eigh), damping (there: none), and decay before the step
class Soap : public mh::soap::FactorOptimizer {
public:
  struct Config : mh::soap::FactorConfig {
    bool normalise = false;
  };

  static void fields(mh::Fields<Config>& f) {
    mh::soap::add_fields(f);
    f.add("normalise", &Config::normalise, "a matrix's step has a root mean square of 1");
  }

  Soap(const Config& config, const Args& args)
      : FactorOptimizer(config, args)
      , normalise_(config.normalise) {}

private:
  [[nodiscard]] std::string preconditioner() const override { return "basis"; }

  /// Qlt x Qr, or back: Ql x Qrt.
  [[nodiscard]] static at::Tensor rotated(const Matrix& matrix, at::Tensor x, bool back = false) {
    for (const Factor& factor : matrix.factors) {
      const at::Tensor& q = factor.preconditioner;
      x = factor.dim == 0 ? at::mm(back ? q : q.t(), x) : at::mm(x, back ? q.t() : q);
    }
    return x;
  }

  /// One step of orthogonal iteration, the largest eigenvalues first; squares go with their vectors.
  void refresh(Matrix& matrix) const {
    for (Factor& factor : matrix.factors) {
      at::Tensor& q = factor.preconditioner;
      const at::Tensor product = at::mm(damped(factor), q);
      const at::Tensor order =
          (q * product).sum(0).argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
      matrix.exp_avg_sq.copy_(matrix.exp_avg_sq.index_select(factor.dim, order));
      const auto [orthogonal, r] = at::linalg_qr(product.index_select(1, order));
      const at::Tensor negative = r.diagonal().lt(0).to(q.scalar_type());
      q.copy_(orthogonal * (1 - 2 * negative)); // the one Q whose R has a positive diagonal
    }
  }

  [[nodiscard]] at::Tensor step_of(Matrix& matrix) const override {
    if (matrix.step == 1) {
      average_products(matrix);
      for (Factor& factor : matrix.factors) {
        factor.preconditioner.zero_().diagonal().fill_(1);
      }
      refresh(matrix);
      return at::zeros_like(matrix.gradient);
    }
    const double beta1 = config().betas[0], beta2 = config().betas[1];
    const auto updates = static_cast<double>(matrix.step - 1);
    matrix.exp_avg.lerp_(matrix.gradient, 1 - beta1);
    matrix.exp_avg_sq.lerp_(rotated(matrix, matrix.gradient).square(), 1 - beta2);
    const double correction =
        std::sqrt(1 - std::pow(beta2, updates)) / (1 - std::pow(beta1, updates));
    const at::Tensor root = matrix.exp_avg_sq.sqrt().add_(config().eps);
    at::Tensor step = rotated(matrix, rotated(matrix, matrix.exp_avg) / root, /*back=*/true);
    step.mul_(correction);
    if (normalise_) {
      step = step / step.square().mean().sqrt().clamp_min(kTiny);
    }
    average_products(matrix);
    if (matrix.due) {
      refresh(matrix);
    }
    return step;
  }

  bool normalise_;
};

/// Averaged gradients between inverse roots of the factors, as long as Adam's step:
///
/// step = L^(-1/4) m R^(-1/4), or L^(-1/2) m for one factor, times |Adam's step| / |step|
///
/// Source:  arXiv:1802.09568, averages and grafting to Adam as in arXiv:2309.06497; damping is a
///          share of the factor in place of a constant, and roots are there from the first step on
class Shampoo : public mh::soap::FactorOptimizer {
public:
  using Config = mh::soap::FactorConfig;

  static void fields(mh::Fields<Config>& f) { mh::soap::add_fields(f); }

  using FactorOptimizer::FactorOptimizer;

private:
  [[nodiscard]] std::string preconditioner() const override { return "root"; }

  void refresh(Matrix& matrix) const {
    const double power = -0.5 / static_cast<double>(matrix.factors.size());
    for (Factor& factor : matrix.factors) {
      const auto [values, vectors] = at::linalg_eigh(damped(factor));
      const at::Tensor powers = values.clamp_min(kTiny).pow(power);
      factor.preconditioner.copy_(at::mm(vectors * powers, vectors.t()));
    }
  }

  [[nodiscard]] at::Tensor step_of(Matrix& matrix) const override {
    const double beta1 = config().betas[0], beta2 = config().betas[1];
    const auto updates = static_cast<double>(matrix.step);
    average_products(matrix);
    if (matrix.step == 1 || matrix.due) {
      refresh(matrix);
    }
    matrix.exp_avg.lerp_(matrix.gradient, 1 - beta1);
    matrix.exp_avg_sq.lerp_(matrix.gradient.square(), 1 - beta2);
    const at::Tensor mean = matrix.exp_avg / (1 - std::pow(beta1, updates));
    const at::Tensor squares = matrix.exp_avg_sq / (1 - std::pow(beta2, updates));
    at::Tensor step = mean;
    for (const Factor& factor : matrix.factors) {
      const at::Tensor& root = factor.preconditioner; // symmetric
      step = factor.dim == 0 ? at::mm(root, step) : at::mm(step, root);
    }
    const at::Tensor length = (mean / (squares.sqrt() + config().eps)).norm();
    return step * (length / step.norm().clamp_min(kTiny));
  }
};

} // namespace

MH_PLUGIN("org.megahost.soap", "0.1.0", "Shampoo and SOAP", [](mh::Registry& r) {
  r.add<Soap>("soap", "Adam in the eigenvectors' basis of Shampoo's factors; AdamW for the rest");
  r.add<Shampoo>("shampoo", "matrices between inverse roots of their factors; AdamW for the rest");
});
