#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/Version.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace {

/// The nearest orthogonal matrix, roughly: its singular values end between about 0.5 and 1.5.
///
/// Source:  https://kellerjordan.github.io/posts/muon/, in the form of torch.optim.Muon
at::Tensor orthogonal(const at::Tensor& matrix, int64_t steps, at::ScalarType dtype) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(dtype);
  x = tall ? x.t() : x;
  x = x / x.norm().clamp_min(kEps);
  // On CPUs before AVX-512, LibTorch multiplies bf16 number by number: operands are widened there.
  const bool widens = x.is_cpu() && dtype == at::kBFloat16 && at::get_cpu_capability() != "AVX512";
  const auto operand = [&](const at::Tensor& t) { return widens ? t.to(at::kFloat) : t; };
  for (int64_t i = 0; i < steps; ++i) {
    const at::Tensor wide = operand(x);
    const at::Tensor gram = operand(at::mm(wide, wide.t()).to(dtype));
    const at::Tensor square = operand(at::addmm(gram, gram, gram, kB, kC).to(dtype));
    x = at::addmm(wide, square, wide, kA).to(dtype);
  }
  return tall ? x.t() : x;
}

/// Momentum whose steps are orthogonal matrices, for the matrices inside the blocks; AdamW for the
/// rest. Each matrix is a projection of its own: query, key and value, gate and up, whatever
/// GEMMs they share. A matrix that ranks have split is gathered, and each keeps its part.
///
/// Source:  https://kellerjordan.github.io/posts/muon/; match_rms_adamw: arXiv:2502.16982
class Muon : public mh::Optimizer {
public:
  struct Config {
    double momentum = 0.95;
    bool nesterov = true;
    int64_t steps = 5;
    std::string scale = "match_rms_adamw";
    std::string precision = "bf16";
    std::vector<std::string> adamw{"embedding.*", "head.*"};
    std::vector<double> betas{0.9, 0.95};
    double eps = 1e-8;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("momentum", &Config::momentum, "share that the average of gradients keeps of itself")
        .at_least(0)
        .below(1);
    f.add("nesterov", &Config::nesterov, "look one momentum step ahead");
    f.add("steps", &Config::steps, "Newton-Schulz iterations").range(1, 99);
    f.add(
         "scale",
         &Config::scale,
         "how the learning rate follows a matrix's shape [out, in]: original: "
         "sqrt(max(1, out / in)); match_rms_adamw: 0.2 sqrt(max(out, in)), which takes AdamW's "
         "learning rate and weight decay"
    )
        .one_of({"original", "match_rms_adamw", "none"});
    f.add("precision", &Config::precision, "number format of the Newton-Schulz iterations")
        .one_of({"bf16", "fp32"});
    f.add(
        "adamw",
        &Config::adamw,
        "names of matrices that AdamW updates all the same, `*` for any characters"
    );
    f.add("betas", &Config::betas, "AdamW's decay rates of the two averages");
    f.add("eps", &Config::eps, "AdamW's addition to the root of the second average").above(0);
    f.check("betas", [](const Config& c) -> std::string {
      const bool good =
          c.betas.size() == 2 &&
          std::all_of(c.betas.begin(), c.betas.end(), [](double b) { return b >= 0 && b < 1; });
      return good ? "" : "takes two numbers of at least 0 and below 1, like { 0.9, 0.95 }";
    });
  }

  Muon(const Config& config, const Args& args)
      : config_(config)
      , args_(args)
      , adamw_{
            .kind = mh::UpdateRule::Kind::adam,
            .stochastic_rounding = args.stochastic_rounding,
            .beta1 = config.betas[0],
            .beta2 = config.betas[1],
            .eps = config.eps}
      , average_{
            .kind = mh::UpdateRule::Kind::average,
            .nesterov = config.nesterov,
            .stochastic_rounding = args.stochastic_rounding,
            .beta1 = config.momentum}
      , descent_{
            .kind = mh::UpdateRule::Kind::sgd,
            .stochastic_rounding = args.stochastic_rounding} {}

  [[nodiscard]] bool rounds_stochastically() const override { return true; }

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    return {{"exp_avg", args_.state_dtype}, {"exp_avg_sq", args_.state_dtype}};
  }

  [[nodiscard]] std::vector<mh::StateSpec>
  state_of(const std::string& name, const std::vector<int64_t>& global_shape) const override {
    if (mh::is_matrix(name, global_shape.size(), config_.adamw)) {
      return {{"momentum", args_.state_dtype}};
    }
    return state();
  }

  [[nodiscard]] mh::Unit unit() const override { return mh::Unit::matrix; }

  [[nodiscard]] bool finishes() const override { return true; }

  [[nodiscard]] bool takes_tensors() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    std::vector<mh::UpdateItem> matrices, rest;
    for (const auto& item : items) {
      const auto dims = static_cast<size_t>(item.weight.dim());
      (mh::is_matrix(item.name, dims, config_.adamw) ? matrices : rest).push_back(item);
    }
    mh::update_fused(adamw_, rest, update);
    mh::update_fused(average_, matrices, update);
    auto whole = update;
    whole.gradient_scale = 1; // the averages have it
    for (auto& item : matrices) {
      step_towards(item);
    }
    mh::update_fused(descent_, matrices, whole);
  }

private:
  /// Makes the item's gradient orthogonal, and its learning rate right for its shape: decay stays
  /// what it is.
  void step_towards(mh::UpdateItem& item) const {
    const at::Tensor whole = item.gather ? item.gather(item.gradient) : item.gradient;
    if (item.weight.numel() == 0) {
      return; // the slice of a vocabulary that ends before this rank
    }
    const auto rows = static_cast<double>(whole.size(0));
    const auto columns = static_cast<double>(whole.size(1));
    const double ratio = config_.scale == "original" ? std::sqrt(std::max(1.0, rows / columns))
                         : config_.scale == "match_rms_adamw"
                             ? 0.2 * std::sqrt(std::max(rows, columns))
                             : 1.0;
    const bool narrow = config_.precision == "bf16" && whole.scalar_type() == at::kFloat;
    const at::Tensor step =
        orthogonal(whole, config_.steps, narrow ? at::kBFloat16 : whole.scalar_type());
    item.gradient.copy_(mh::slice_of(item, step));
    item.lr_multiplier *= ratio;
    item.weight_decay /= ratio;
  }

  Config config_;
  Args args_;
  mh::UpdateRule adamw_, average_, descent_;
};

} // namespace

MH_PLUGIN("org.megahost.muon", "0.1.0", "Muon", [](mh::Registry& r) {
  r.add<Muon>("muon", "orthogonal steps for matrices, AdamW for the rest");
});
