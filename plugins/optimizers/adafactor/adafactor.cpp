#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <string>
#include <vector>

namespace {

/// Steps divided by the root of averaged squares, of which a matrix keeps the means of its rows and
/// of its columns only. A tensor with more dimensions is a stack of matrices of the last two.
///
/// step' = g / sqrt(row column / mean(row)), or g / sqrt(v) for vectors;
/// w -= rate max(eps[1], rms(w)) step' / max(1, rms(step') / clip_threshold)
///
/// Source:  arXiv:1804.04235, algorithms 4 and 5, in the form of transformers.Adafactor, with
///          weight decay as torch.optim.Adafactor has it: by the learning rate alone
class Adafactor : public mh::Optimizer {
public:
  struct Config {
    double decay_rate = -0.8;
    std::vector<double> eps{1e-30, 1e-3};
    double clip_threshold = 1;
    double beta1 = 0;
    bool scale_parameter = true;
    bool relative_step = false;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "decay_rate",
         &Config::decay_rate,
         "the averaged squares keep 1 - step^decay_rate of themselves"
    )
        .range(-1, 0);
    f.add(
        "eps",
        &Config::eps,
        "added to squared gradients; least size of a weight that scale_parameter takes"
    );
    f.add(
         "clip_threshold",
         &Config::clip_threshold,
         "root mean square that a parameter's step has at most, before the learning rate"
    )
        .above(0);
    f.add(
         "beta1", &Config::beta1, "share that an average of steps keeps of itself; 0: there is none"
    )
        .at_least(0)
        .below(1);
    f.add(
        "scale_parameter",
        &Config::scale_parameter,
        "multiply the learning rate by the parameter's root mean square"
    );
    f.add(
        "relative_step",
        &Config::relative_step,
        "the learning rate is at most 1 / sqrt(step); with lr = 1e-2 it is the paper's"
    );
    f.check("eps", [](const Config& c) -> std::string {
      const bool good = c.eps.size() == 2 && c.eps[0] > 0 && c.eps[1] >= 0;
      return good ? ""
                  : "takes two numbers, one above 0 and one of at least 0, like { 1e-30, 1e-3 }";
    });
  }

  Adafactor(const Config& config, const Args& args)
      : config_(config)
      , args_(args)
      , average_{
            .kind = mh::UpdateRule::Kind::average,
            .stochastic_rounding = args.stochastic_rounding,
            .beta1 = config.beta1}
      , descent_{
            .kind = mh::UpdateRule::Kind::sgd,
            .stochastic_rounding = args.stochastic_rounding} {
    if (args.state_dtype != at::kFloat && config.beta1 == 0) {
      throw mh::Error(
          "optimizer.state_dtype is \"bf16\", but adafactor without optimizer.beta1 keeps means of "
          "squares only, which are small and stay in float32",
          "set optimizer.state_dtype to \"fp32\", or optimizer.beta1 above 0"
      );
    }
  }

  [[nodiscard]] bool rounds_stochastically() const override { return true; }

  /// The average of steps, if there is one: of the rest, parameters have different kinds.
  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    if (config_.beta1 > 0) {
      return {{"step_avg", args_.state_dtype}};
    }
    return {};
  }

  [[nodiscard]] std::vector<mh::StateSpec>
  state_of(const std::string& name, const std::vector<int64_t>& global_shape) const override {
    std::vector<mh::StateSpec> all = state();
    if (!is_factored(name, global_shape)) {
      all.push_back({"square_avg"});
      return all;
    }
    all.push_back({"row", at::kFloat, without(global_shape, 1)});
    all.push_back({"column", at::kFloat, without(global_shape, 2)});
    return all;
  }

  [[nodiscard]] mh::Unit unit() const override { return mh::Unit::matrix; }

  [[nodiscard]] bool finishes() const override { return true; }

  [[nodiscard]] bool takes_tensors() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    std::vector<mh::UpdateItem> steps(items.begin(), items.end());
    for (auto& item : steps) {
      make_step(item, update);
      item.weight_decay = item.weight_decay * (update.lr * item.lr_multiplier);
      item.lr_multiplier = 1;
    }
    const mh::Update whole{.step = update.step, .lr = 1, .seed = update.seed}; // steps have it all
    if (config_.beta1 > 0) {
      mh::update_fused(average_, steps, whole);
    }
    mh::update_fused(descent_, steps, whole);
  }

private:
  /// Sums over a global tensor: squared gradients of each row and of each column, in the shapes of
  /// the state, and all squared weights, one element.
  struct Sums {
    at::Tensor row, column, weight;
  };

  [[nodiscard]] static bool
  is_factored(const std::string& name, const std::vector<int64_t>& global_shape) {
    const bool experts_bias = name.ends_with(".bias"); // a vector of each
    return global_shape.size() >= 2 && !experts_bias;
  }

  /// The numbers without one, counted from the last: 1 or 2.
  [[nodiscard]] static std::vector<int64_t>
  without(std::vector<int64_t> numbers, int64_t from_last) {
    numbers.erase(numbers.end() - from_last);
    return numbers;
  }

  [[nodiscard]] static std::vector<int64_t> shape_of(const mh::UpdateItem& item) {
    return item.global_shape.empty() ? item.weight.sizes().vec() : item.global_shape;
  }

  /// The part of a row or column state that belongs to the item's slice.
  [[nodiscard]] static at::Tensor
  part_of(const mh::UpdateItem& item, at::Tensor state, int64_t from_last) {
    if (item.global_shape.empty() || item.weight.numel() == 0) {
      return state;
    }
    const auto sizes = without(item.weight.sizes().vec(), from_last);
    const auto offset = without(item.offset, from_last);
    for (size_t d = 0; d < sizes.size(); ++d) {
      state = state.narrow(static_cast<int64_t>(d), offset[d], sizes[d]);
    }
    return state;
  }

  /// Shapes:  squares and weights like the item's weight
  /// Ranks:   those that split the tensor
  [[nodiscard]] static Sums
  factored_sums(const mh::UpdateItem& item, const at::Tensor& squares, const at::Tensor& weights) {
    Sums sums{squares.sum(-1), squares.sum(-2), weights.sum().view({1})};
    if (!item.sum) {
      return sums;
    }
    const auto shape = shape_of(item);
    const at::Tensor row = at::zeros(without(shape, 1), squares.options());
    const at::Tensor column = at::zeros(without(shape, 2), squares.options());
    if (squares.numel() > 0) {
      part_of(item, row, 1).copy_(sums.row);
      part_of(item, column, 2).copy_(sums.column);
    }
    const at::Tensor all = item.sum(at::cat({row.flatten(), column.flatten(), sums.weight}));
    return {
        all.narrow(0, 0, row.numel()).view(row.sizes()),
        all.narrow(0, row.numel(), column.numel()).view(column.sizes()),
        all.narrow(0, row.numel() + column.numel(), 1)};
  }

  /// One element: the sum over the global tensor of a tensor like the item's weight.
  [[nodiscard]] static at::Tensor sum_of(const mh::UpdateItem& item, const at::Tensor& x) {
    const at::Tensor own = x.sum().view({1});
    return item.sum ? item.sum(own) : own;
  }

  /// Averages the squares of `g`, and divides `g` by their roots.
  ///
  /// kept    share that the averages keep of themselves, as a tensor of no dimensions
  /// Returns: the divided gradient; `ret_weight_squares`, the sum of squared weights
  [[nodiscard]] at::Tensor divided(
      mh::UpdateItem& item,
      const at::Tensor& g,
      const at::Tensor& kept,
      at::Tensor& ret_weight_squares
  ) const {
    const auto shape = shape_of(item);
    const at::Tensor squares = g.square(), weights = item.weight.to(g.scalar_type()).square();
    const auto average = [&](at::Tensor& state, const at::Tensor& mean) {
      state.mul_(kept).add_((mean + config_.eps[0]) * (1 - kept));
    };
    if (!is_factored(item.name, shape)) {
      at::Tensor& mean_squares = item.state.back();
      average(mean_squares, squares);
      ret_weight_squares = sum_of(item, weights);
      return g * mean_squares.rsqrt();
    }
    const Sums sums = factored_sums(item, squares, weights);
    ret_weight_squares = sums.weight;
    at::Tensor& row = item.state.end()[-2];
    at::Tensor& column = item.state.end()[-1];
    average(row, sums.row / shape.back());
    average(column, sums.column / shape.end()[-2]);
    if (g.numel() == 0) {
      return g;
    }
    const at::Tensor rows = (row / row.mean(-1, /*keepdim=*/true)).rsqrt();
    return g * part_of(item, rows, 1).unsqueeze(-1) *
           part_of(item, column.rsqrt(), 2).unsqueeze(-2);
  }

  /// The item's gradient becomes what the weight loses, but for the average of steps and decay.
  void make_step(mh::UpdateItem& item, const mh::Update& update) const {
    const auto elements = static_cast<double>(c10::multiply_integers(shape_of(item)));
    const at::Tensor number = update.step.tensor();
    const at::Tensor g = item.gradient.mul_(update.gradient_scale.tensor());
    at::Tensor weight_squares;
    const at::Tensor u = divided(item, g, 1 - number.pow(config_.decay_rate), weight_squares);
    const at::Tensor size = (sum_of(item, u.square()) / elements).sqrt();
    at::Tensor rate = (update.lr * item.lr_multiplier).tensor();
    if (config_.relative_step) {
      rate = at::minimum(rate, number.rsqrt());
    }
    rate = rate / (size / config_.clip_threshold).clamp_min(1);
    if (config_.scale_parameter) {
      rate = rate * (weight_squares / elements).sqrt().clamp_min(config_.eps[1]);
    }
    item.gradient.copy_(u * rate);
  }

  Config config_;
  Args args_;
  mh::UpdateRule average_, descent_;
};

} // namespace

MH_PLUGIN("org.megahost.adafactor", "0.1.0", "Adafactor", [](mh::Registry& r) {
  r.add<Adafactor>("adafactor", "mean squares of rows and columns only; clipped steps");
});
