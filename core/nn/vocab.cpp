#include "megahost/nn/vocab.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/row_ops.hpp"
#include "core/model/conserved.hpp"
#include "core/model/labels.hpp"
#include "core/nn/main_grads.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Bytes of logits that exist at a time. Caches of a CPU hold little; on a GPU each chunk adds to
/// the whole gradient of the weight, in memory.
int64_t chunk_bytes(at::DeviceType target) {
  return int64_t{target == at::kCUDA ? 1024 : 64} << 20;
}

/// A head on this rank.
struct Head {
  const Linear* linear;
  Parameter* bias; // or null
  const Mesh* mesh;
  int64_t first, rows; // first row of the vocabulary on this rank, and how many
  bool checking;
  double cap;         // logits z become cap tanh(z / cap); 0: they stay
  int64_t chunk;      // bytes of logits that exist at a time
  at::Tensor correct; // collects the masks of tokens whose label scores best; or undefined
  at::Tensor counted; // the tokens that have a loss; undefined: any may

  [[nodiscard]] const Linear::Plan& plan() const { return linear->plan(); }

  [[nodiscard]] const at::Tensor& weight() const { return linear->weight().value; }

  [[nodiscard]] const std::string& name() const { return linear->weight().pieces.front().name; }

  [[nodiscard]] const Group& group() const { return mesh->group(MeshAxis::tp); }

  [[nodiscard]] bool split() const {
    return plan().made[MeshAxis::tp].type == PlacementType::split && group().size() > 1;
  }

  /// Hidden states [tokens, embed] as the GEMM reads them.
  [[nodiscard]] at::Tensor gathered(const at::Tensor& x) const {
    const at::Tensor whole = convert_forward(x, plan().in, plan().need, *mesh);
    if (checking) {
      check_conversion(
          x, whole, plan().in, plan().need, *mesh, /*gradient=*/false, name(), "input"
      );
    }
    return whole.reshape({-1, x.size(-1)});
  }

  /// The gradient of x from that of the gathered rows.
  [[nodiscard]] at::Tensor returned(const at::Tensor& dx, int64_t batch) const {
    const at::Tensor made = dx.view({-1, batch, dx.size(1)});
    const at::Tensor back = convert_backward(made, plan().in, plan().need, *mesh);
    if (checking) {
      check_conversion(
          made, back, plan().need, plan().in, *mesh, /*gradient=*/true, name(), "input"
      );
    }
    return back;
  }
};

/// The tokens that a head works on, in chunks of which the logits exist at a time.
struct Tokens {
  at::Tensor x, labels, weights; // [tokens, embed], [tokens], [tokens]: 0 where there is no loss

  /// The tokens at `rows`, if these are defined.
  [[nodiscard]] Tokens at_rows(const at::Tensor& rows) const {
    if (!rows.defined()) {
      return *this;
    }
    return {x.index_select(0, rows), labels.index_select(0, rows), weights.index_select(0, rows)};
  }

  [[nodiscard]] Tokens chunk(int64_t begin, int64_t length) const {
    return {
        x.narrow(0, begin, length),
        labels.narrow(0, begin, length),
        weights.narrow(0, begin, length)};
  }

  template <class Run>
  void for_chunks(const Head& head, const Run& run) const {
    const int64_t row = head.weight().size(0) * head.weight().element_size();
    const int64_t most = std::max<int64_t>(64, head.chunk / row / 64 * 64);
    for (int64_t begin = 0; begin < x.size(0); begin += most) {
      const int64_t length = std::min(most, x.size(0) - begin);
      run(begin, length, chunk(begin, length));
    }
  }
};

/// The tokens that a head works on, of all.
Tokens
tokens_of(const Head& head, const at::Tensor& x, const at::Tensor& labels, const at::Tensor& mask) {
  return Tokens{head.gathered(x), labels.reshape({-1}), mask.reshape({-1})}.at_rows(head.counted);
}

/// Gradients of `count` tokens from those of the tokens at `rows`, if they are defined; the others have none.
at::Tensor spread(const at::Tensor& dx, const at::Tensor& rows, int64_t count) {
  if (!rows.defined()) {
    return dx;
  }
  return at::zeros({count, dx.size(1)}, dx.options()).index_copy_(0, rows, dx);
}

at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Logits of some tokens, in x's type; entries of padding mean nothing.
at::Tensor logits_of(const Head& head, const at::Tensor& x) {
  at::Tensor z = ops::product(x, head.weight().t());
  if (head.bias != nullptr) {
    z.add_(head.bias->value);
  }
  return head.cap > 0 ? z.div_(head.cap).tanh_().mul_(head.cap) : z;
}

/// Statistics of each token's logits over the whole vocabulary.
struct Statistics {
  at::Tensor lse;    // log(sum exp)
  at::Tensor target; // the label's logit
  at::Tensor top;    // the largest logit
};

Statistics statistics(const Head& head, const at::Tensor& z, const at::Tensor& labels) {
  const at::Tensor found = ops::vocab_statistics(z, labels, head.first, head.rows);
  const at::Tensor own = found.select(0, 0);
  const at::Tensor sums = found.narrow(0, 1, 2); // sum of exp(z - top); the label's logit
  at::Tensor top = own;
  if (head.split()) {
    top = own.clone();
    head.group().all_reduce(top, Reduce::max);
    sums.select(0, 0).mul_((own - top).exp_());
    head.group().all_reduce(sums);
  }
  return {sums.select(0, 0).log().add_(top), sums.select(0, 1), top};
}

/// Turns a chunk's logits into their gradients, and from them makes x's and adds the bias's and the
/// weight's, if there are such.
void differentiate(
    const Head& head,
    const Tokens& chunk,
    const at::Tensor& z,
    const at::Tensor& lse,
    const at::Tensor& scale,
    const at::Tensor& dx,
    const at::Tensor& main_grad,
    const at::Tensor& bias_grad
) {
  const at::Tensor slope = head.cap > 0 ? z.div(head.cap).square_().neg_().add_(1) : at::Tensor();
  ops::vocab_gradient_(z, chunk.labels, lse, scale, head.first, head.rows);
  if (slope.defined()) {
    z.mul_(slope);
  }
  dx.copy_(ops::product(z, head.weight()));
  if (main_grad.defined()) {
    ops::gemm_(main_grad, z.t(), chunk.x, /*add=*/true);
  }
  if (bias_grad.defined()) {
    ops::add_row_sums_(bias_grad, z);
  }
}

/// The loss; with a factor that is known ahead its gradients in the same pass over the chunks.
struct VocabLoss : torch::autograd::Function<VocabLoss> {
  struct Saved {
    Head head;
    std::optional<double> factor;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor& labels,
      const at::Tensor& mask,
      const std::optional<double>& factor,
      const Head& head
  ) {
    save(ctx, Saved{head, factor});
    const Tokens tokens = tokens_of(head, x, labels, mask);
    const auto options = x.options().dtype(wide(x));
    at::Tensor total = at::zeros({}, options);
    const auto add = [&](const Tokens& chunk, const Statistics& found) {
      total.add_((found.lse - found.target).mul_(chunk.weights).sum());
      if (head.correct.defined()) {
        head.correct.add_(found.target.ge(found.top).mul(chunk.weights).sum());
      }
    };
    if (factor) {
      const at::Tensor scale = (tokens.weights * *factor).to(wide(x));
      const at::Tensor dx = at::empty_like(tokens.x);
      with_main_grads(
          &head.linear->weight(),
          head.bias,
          [&](const at::Tensor& main_grad, const at::Tensor& bias_grad) {
            tokens.for_chunks(head, [&](int64_t begin, int64_t length, const Tokens& chunk) {
              const at::Tensor z = logits_of(head, chunk.x);
              const auto found = statistics(head, z, chunk.labels);
              add(chunk, found);
              const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, length); };
              differentiate(head, chunk, z, found.lse, part(scale), part(dx), main_grad, bias_grad);
            });
          }
      );
      ctx->save_for_backward({head.returned(spread(dx, head.counted, mask.numel()), x.size(1))});
      return total;
    }
    const at::Tensor all = at::empty({tokens.x.size(0)}, options);
    tokens.for_chunks(head, [&](int64_t begin, int64_t length, const Tokens& chunk) {
      const auto found = statistics(head, logits_of(head, chunk.x), chunk.labels);
      add(chunk, found);
      all.narrow(0, begin, length).copy_(found.lse);
    });
    ctx->save_for_backward({x, labels, mask, all});
    return total;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& own = get_saved<Saved>(ctx);
    const Head& head = own.head;
    const at::Tensor& gradient = gradients[0];
    if (own.factor) { // the gradient was made in forward
      const double factor = *own.factor;
      MH_ASSERT(
          !gradient.is_cpu() ||
              std::abs(gradient.item<double>() - factor) <= 1e-6 * std::abs(factor),
          "the vocabulary's loss is multiplied by what was said ahead"
      );
      return {saved[0], {}, {}, {}, {}, {}};
    }
    const Tokens tokens = tokens_of(head, saved[0], saved[1], saved[2]);
    const at::Tensor scale = (tokens.weights * gradient).to(saved[3].scalar_type());
    const at::Tensor dx = at::empty_like(tokens.x);
    with_main_grads(
        &head.linear->weight(),
        head.bias,
        [&](const at::Tensor& main_grad, const at::Tensor& bias_grad) {
          tokens.for_chunks(head, [&](int64_t begin, int64_t length, const Tokens& chunk) {
            const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, length); };
            const at::Tensor z = logits_of(head, chunk.x);
            differentiate(
                head, chunk, z, part(saved[3]), part(scale), part(dx), main_grad, bias_grad
            );
          });
        }
    );
    const at::Tensor spread_dx = spread(dx, head.counted, saved[2].numel());
    return {head.returned(spread_dx, saved[0].size(1)), {}, {}, {}, {}, {}};
  }
};

LinearSpec head_spec(Axis embed, Axis vocab, double std) {
  return {.in = embed, .outs = {{"", vocab}}, .bias = false, .std = std, .fp8 = false};
}

} // namespace

VocabHead::VocabHead(
    Builder& builder,
    Axis embed,
    Axis vocab,
    double std,
    const std::string& tied,
    bool bias,
    double cap
)
    : linear_(
          tied.empty() ? Linear(builder, head_spec(embed, vocab, std))
                       : Linear(builder, head_spec(embed, vocab, std), builder.shared(tied))
      )
    , cap_(cap)
    , vocab_(vocab) {
  const auto& piece = linear_.weight().pieces[0];
  first_ = piece.offset[0];
  rows_ = piece.shape[0];
  if (bias) {
    bias_ = &builder.parameter({{"bias", {vocab}, Init::zeros()}}, linear_.plan().made);
  }
}

at::Tensor VocabHead::logits(const at::Tensor& hidden, StepContext& context) const {
  at::Tensor local = linear_.forward(hidden, context);
  if (bias_ != nullptr) {
    local = local + bias_->value;
  }
  if (cap_ > 0) {
    local = (local / cap_).tanh() * cap_;
  }
  Placement whole = linear_.plan().out;
  for (const auto axis : kAllMeshAxes) {
    if (whole[axis] == Along{PlacementType::split, 2}) {
      whole[axis] = {PlacementType::identical, 0};
    }
  }
  return convert(local, linear_.plan().out, whole, context.mesh()).narrow(-1, 0, vocab_.size);
}

at::Tensor VocabHead::loss(
    const at::Tensor& hidden,
    const at::Tensor& labels,
    const at::Tensor& mask,
    StepContext& context,
    std::optional<double> factor,
    at::Tensor* ret_correct
) const {
  RECORD_USER_SCOPE("vocabulary");
  const auto known = known_labels_end(context.batch(), labels, mask);
  require_labels(
      known ? *known : static_cast<int64_t>(context.host_value(labels_end(labels, mask), 0)),
      vocab_.size
  );
  if (ret_correct != nullptr) {
    *ret_correct = at::zeros({}, hidden.options().dtype(wide(hidden)).requires_grad(false));
  }
  const Head head{
      &linear_,
      bias_,
      &context.mesh(),
      first_,
      rows_,
      context.mode().checking,
      cap_,
      chunk_bytes(context.mode().target),
      ret_correct != nullptr ? *ret_correct : at::Tensor(),
      known_counted(context.batch(), mask)};
  const auto& name = linear_.weight().pieces.front().name;
  return VocabLoss::apply(
      checked(hidden, linear_.plan().in, name, "input", context),
      linear_.weight().value,
      labels,
      mask,
      at::GradMode::is_enabled() ? factor : std::nullopt,
      head
  );
}

} // namespace mh
