#include "megahost/nn/vocab.hpp"

#include "core/kernels/gemm.hpp"
#include "core/kernels/row_ops.hpp"
#include "megahost/checking.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunkBytes = int64_t{32} << 20; // of logits that exist at a time

/// What both passes need beside tensors.
struct Head {
  const Linear* linear;
  const Mesh* mesh;
  int64_t first, rows; // of the vocabulary on this rank

  /// Logits of some tokens, in x's type; entries of padding mean nothing.
  [[nodiscard]] at::Tensor logits(const at::Tensor& x) const {
    return ops::product(x, linear->weight().value.t());
  }

  [[nodiscard]] const Group& group() const { return mesh->group(MeshAxis::tp); }

  [[nodiscard]] bool split() const {
    return linear->plan().made[MeshAxis::tp].type == Type::split && group().size() > 1;
  }
};

/// Per token log(sum exp) and loss, in chunks; logits are computed again in backward.
struct VocabLoss : torch::autograd::Function<VocabLoss> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor& labels,
      const at::Tensor& mask,
      int64_t address
  ) {
    const Head head = *reinterpret_cast<const Head*>(address);
    const auto& plan = head.linear->plan();
    const at::Tensor rows =
        convert_forward(x, plan.in, plan.need, *head.mesh).reshape({-1, x.size(-1)});
    const at::Tensor targets = labels.reshape({-1});
    const at::Tensor weights = mask.reshape({-1});
    const int64_t tokens = rows.size(0);
    const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor lse = at::empty({tokens}, x.options().dtype(type));
    at::Tensor total = at::zeros({}, lse.options());
    for (const auto& [begin, length] : chunks(tokens, weight)) {
      const at::Tensor z = head.logits(rows.narrow(0, begin, length));
      const at::Tensor found =
          ops::vocab_statistics(z, targets.narrow(0, begin, length), head.first, head.rows);
      const at::Tensor own = found.select(0, 0);
      at::Tensor top = own;
      at::Tensor sums = found.narrow(0, 1, 2); // of exp(z - top); the label's logit
      if (head.split()) {
        top = own.clone();
        head.group().all_reduce(top, Reduce::max);
        sums.select(0, 0).mul_((own - top).exp_());
        head.group().all_reduce(sums);
      }
      const at::Tensor part = sums.select(0, 0).log().add_(top);
      lse.narrow(0, begin, length).copy_(part);
      total.add_((part - sums.select(0, 1)).mul_(weights.narrow(0, begin, length)).sum());
    }
    ctx->save_for_backward({x, weight, targets, weights, lse});
    ctx->saved_data["linear"] = reinterpret_cast<int64_t>(head.linear);
    ctx->saved_data["mesh"] = reinterpret_cast<int64_t>(head.mesh);
    ctx->saved_data["first"] = head.first;
    ctx->saved_data["rows"] = head.rows;
    return total;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const Head head{
        reinterpret_cast<const Linear*>(ctx->saved_data["linear"].toInt()),
        reinterpret_cast<const Mesh*>(ctx->saved_data["mesh"].toInt()),
        ctx->saved_data["first"].toInt(),
        ctx->saved_data["rows"].toInt()};
    const auto& plan = head.linear->plan();
    const auto& weight = saved[1];
    const at::Tensor whole = convert_forward(saved[0], plan.in, plan.need, *head.mesh);
    const at::Tensor rows = whole.reshape({-1, whole.size(-1)});
    const at::Tensor dx = at::empty_like(rows);
    const at::Tensor scale = (saved[3] * gradients[0]).to(saved[4].scalar_type());
    const auto run = [&](const at::Tensor& main_grad) {
      for (const auto& [begin, length] : chunks(rows.size(0), weight)) {
        const at::Tensor x = rows.narrow(0, begin, length);
        const at::Tensor dz = head.logits(x);
        ops::vocab_gradient_(
            dz,
            saved[2].narrow(0, begin, length),
            saved[4].narrow(0, begin, length),
            scale.narrow(0, begin, length),
            head.first,
            head.rows
        );
        dx.narrow(0, begin, length).copy_(ops::product(dz, weight));
        if (main_grad.defined()) {
          ops::add_product_(main_grad, dz.t(), x);
        }
      }
    };
    if (head.linear->weight().value.requires_grad()) {
      head.linear->weight().add_gradient(run);
    } else {
      run({});
    }
    return {
        convert_backward(dx.view(whole.sizes()), plan.in, plan.need, *head.mesh),
        at::Tensor(),
        at::Tensor(),
        at::Tensor(),
        at::Tensor()};
  }

  static std::vector<std::pair<int64_t, int64_t>> chunks(int64_t tokens, const at::Tensor& weight) {
    const int64_t row = weight.size(0) * weight.element_size();
    const int64_t length = std::max<int64_t>(64, kChunkBytes / row / 64 * 64);
    std::vector<std::pair<int64_t, int64_t>> result;
    for (int64_t begin = 0; begin < tokens; begin += length) {
      result.emplace_back(begin, std::min(length, tokens - begin));
    }
    return result;
  }
};

LinearSpec head_spec(Axis embed, Axis vocab, double std) {
  return {.in = embed, .outs = {{"", vocab}}, .bias = false, .std = std};
}

} // namespace

VocabHead::VocabHead(Builder& builder, Axis embed, Axis vocab, double std, const std::string& tied)
    : linear_(
          tied.empty() ? Linear(builder, head_spec(embed, vocab, std))
                       : Linear(builder, head_spec(embed, vocab, std), builder.shared(tied))
      )
    , vocab_(vocab) {
  const auto& piece = linear_.weight().pieces[0];
  first_ = piece.offset[0];
  rows_ = piece.shape[0];
}

at::Tensor VocabHead::logits(const at::Tensor& hidden, StepContext& context) const {
  const at::Tensor local = linear_.forward(hidden, context);
  Placement whole = linear_.plan().out;
  for (const auto axis : kAllMeshAxes) {
    if (whole[axis] == Along{Type::split, 2}) {
      whole[axis] = {Type::identical, 0};
    }
  }
  return convert(local, linear_.plan().out, whole, context.mesh()).narrow(-1, 0, vocab_.size);
}

at::Tensor VocabHead::loss(
    const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& mask, StepContext& context
) const {
  RECORD_USER_SCOPE("vocabulary");
  const at::Tensor outside =
      labels.lt(0).bitwise_or(labels.ge(vocab_.size)).bitwise_and(mask.ne(0)).sum();
  if (context.host_value(outside, 0) > 0) {
    throw Error(
        "labels of this batch lie outside the model's vocabulary of " +
            std::to_string(vocab_.size) + " entries",
        "give the model the tokenizer's vocabulary",
        exit_code::data
    );
  }
  const Head head{&linear_, &context.mesh(), first_, rows_};
  const auto& name = linear_.weight().pieces.front().name;
  return VocabLoss::apply(
      checked(hidden, linear_.plan().in, name, "input", context),
      linear_.weight().value,
      labels,
      mask,
      reinterpret_cast<int64_t>(&head)
  );
}

} // namespace mh
