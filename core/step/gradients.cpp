#include "megahost/gradients.hpp"

#include "core/memory/staging.hpp"
#include "core/model/conserved.hpp"
#include "core/model/deferred_values.hpp"
#include "core/step/buckets.hpp"
#include "core/step/gradient_sums.hpp"
#include "core/step/sharded_values.hpp"
#include "megahost/error.hpp"

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace mh {

namespace {

at::Tensor squared(const at::Tensor& x) {
  const at::Tensor norm = x.norm();
  return norm * norm;
}

/// Each element by a weight of its own: a gradient's plain sum may be zero whatever is lost of it
/// (logits' gradients cancel over the vocabulary). `first`: index of its first element.
at::Tensor weighed(const at::Tensor& x, int64_t first) {
  const at::Tensor place = at::arange(x.numel(), x.options().dtype(at::kDouble)) + first;
  return x.reshape(-1) * place.cos();
}

/// The sum of the squares of all gradients, each by its share, in a few launches whatever their
/// number.
at::Tensor squared_at_once(const std::vector<OwnedPiece>& owned, const at::TensorOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<double> shares;
  for (const auto& one : owned) {
    if (one.gradient.numel() > 0) {
      gradients.push_back(one.gradient);
      shares.push_back(1.0 / static_cast<double>(one.piece.copies));
    }
  }
  if (gradients.empty()) {
    return at::zeros({}, options);
  }
  at::Tensor squares = at::stack(at::_foreach_norm(gradients, 2)).to(options.dtype()).square_();
  if (std::any_of(shares.begin(), shares.end(), [](double share) { return share != 1; })) {
    squares.mul_(staged(at::tensor(shares).to(squares.scalar_type()), squares.device()));
  }
  return squares.sum();
}

/// Starts the sums that nothing is missing for, in order.
template <class Start>
void start_complete(const Buckets& buckets, int64_t round, size_t& ret_next, const Start& start) {
  while (ret_next < buckets.size() && buckets[ret_next]->complete(round)) {
    start(*buckets[ret_next++]);
  }
}

} // namespace

Gradients::Gradients(ParameterStore& store, const Mesh& mesh, const GradientOptions& options)
    : mesh_(mesh)
    , options_(options)
    , store_(store)
    , buckets_(make_buckets(store, mesh, options))
    , values_(std::make_unique<ShardedValues>()) {
  values_->trace = [this](const std::string& event) {
    if (trace) {
      trace(event);
    }
  };
  int64_t total = 0;
  for (const auto& bucket : buckets_) {
    total += bucket->length;
  }
  const auto first =
      store.all().empty() ? at::TensorOptions(at::kFloat) : store.all().front().value.options();
  const bool wide = first.dtype() == at::kDouble;
  flat_ = first.dtype(wide ? at::kDouble : at::kFloat).requires_grad(false);
  // Where writes are recorded, one into a part of a buffer is one into all of it.
  const bool apart = !store.all().empty() &&
                     at::functionalization::impl::isFunctionalTensor(store.all().front().value);
  if (options_.zero < 2 && !apart) {
    gradients_ = at::zeros({total}, flat_);
  }
  int64_t begin = 0;
  for (auto& bucket : buckets_) {
    if (options_.zero >= 2 && bucket->shards != nullptr) {
      bucket->part = at::zeros({bucket->chunk()}, flat_);
    } else {
      bucket->buffer = gradients_.defined() ? gradients_.narrow(0, begin, bucket->length)
                                            : at::zeros({bucket->length}, flat_);
      begin += bucket->length;
      allocate(*bucket);
    }
  }
  values_->take(buckets_, options_);
  if (options_.deferred != nullptr) { // values that no other rank shares
    options_.deferred->make_rest(store);
  }
  for (const auto& bucket : buckets_) {
    for (const auto& leaf : bucket->leaves) {
      bucket_of_[leaf.parameter] = bucket.get();
    }
    first_after_backward_ += bucket->after_backward ? 0 : 1;
    auto owned = owned_of(*bucket, options_.unit);
    std::move(owned.begin(), owned.end(), std::back_inserter(owned_));
  }
  store.listen(this);
}

Gradients::~Gradients() {
  store_.listen(nullptr);
}

void Gradients::allocate(Bucket& bucket) const {
  if (!bucket.buffer.defined()) {
    bucket.buffer = at::zeros({bucket.length}, flat_);
  }
  for (const auto& leaf : bucket.leaves) {
    ParameterStore::place_gradient(*leaf.parameter, bucket.buffer, leaf.begin);
  }
}

void Gradients::begin(int64_t microbatches) {
  microbatches_ = microbatches;
  finished_ = false;
  next_ = 0;
  for (auto& bucket : buckets_) {
    bucket->reset();
  }
  if (options_.zero == 1) { // an update leaves zeros in this rank's part only
    gradients_.zero_();
  }
}

void Gradients::clear() {
  for (auto& bucket : buckets_) {
    (bucket->part.defined() ? bucket->part : bucket->buffer).zero_();
  }
}

void Gradients::share_parameters() {
  values_->send();
}

void Gradients::wait_for_all() {
  values_->wait_for_all();
}

// From ZeRO-2 on there is no room for all gradients, not in the first pass either, in which they are
// counted: there a bucket is complete when its leaves' blocks have run backward.
bool Gradients::needed(const std::vector<Parameter*>& parameters) {
  if (options_.zero >= 2 && options_.overlap && values_->progress.enter(parameters)) {
    for (auto& bucket : buckets_) {
      bucket->left = std::ranges::all_of(bucket->leaves, [this](const Bucket::Leaf& leaf) {
        return values_->progress.is_past(*leaf.parameter);
      });
    }
    start_complete(buckets_, round(), next_, [this](Bucket& bucket) { start(bucket); });
  }
  const bool freed = values_->needed(parameters);
  return freed || options_.zero >= 2;
}

void Gradients::before(Parameter& parameter) {
  auto& bucket = *bucket_of_.at(&parameter);
  MH_ASSERT(
      bucket.state == Bucket::Sum::waits, "a gradient came after its bucket's sum had started"
  );
  if (!bucket.buffer.defined()) {
    allocate(bucket);
  }
}

void Gradients::added(Parameter& parameter) {
  auto& bucket = *bucket_of_.at(&parameter);
  if (trace && bucket.uses > 0 && bucket.seen == bucket.uses * (round() - 1)) {
    trace("last " + std::to_string(bucket.number));
  }
  ++bucket.seen;
  if (options_.overlap) {
    start_complete(buckets_, round(), next_, [this](Bucket& one) { start(one); });
  }
}

void Gradients::backward_done() {
  values_->progress.end();
  if (options_.zero >= 2) {
    sum_up(0, first_after_backward_);
  }
}

void Gradients::finish() {
  if (std::exchange(finished_, true)) {
    return;
  }
  sum_up(options_.zero >= 2 ? first_after_backward_ : 0, buckets_.size());
  values_->settle(); // the update follows
}

void Gradients::sum_up(size_t begin, size_t end) {
  RECORD_USER_SCOPE("gradient sums");
  const auto each = [&](const std::function<void(Bucket&)>& visit) {
    for (size_t i = begin; i < end; ++i) {
      visit(*buckets_[i]);
    }
  };
  each([&](Bucket& bucket) { // what the next round waits for
    bucket.uses = bucket.seen % round() == 0 ? bucket.seen / round() : 0;
  });
  for (next_ = std::max(next_, begin); next_ < end; ++next_) {
    if (next_ == first_after_backward_) {
      sum_over_stages(store_, mesh_);
    }
    start(*buckets_[next_]);
  }
  each([&](Bucket& bucket) {
    take(bucket);
    bucket.reset();
  });
  next_ = 0;
}

// From ZeRO-2 on at most two buckets have buffers: one whose sum is in flight, one that fills.
void Gradients::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  if (options_.zero >= 2 && bucket.number > 0 && !bucket.after_backward) {
    take(*buckets_[bucket.number - 1]);
  }
  if (trace) {
    trace("start " + std::to_string(bucket.number));
  }
  bucket.state = Bucket::Sum::started;
  if (!bucket.buffer.defined()) { // zero 2, and no leaf of it was used on this rank
    allocate(bucket);
  }
  for (const auto& leaf : bucket.leaves) {
    for (const auto& piece : leaf.parameter->pieces) {
      for (const auto& sum : piece.sums) {
        if (std::find(bucket.sums.begin(), bucket.sums.end(), sum) == bucket.sums.end()) {
          sum_gradient(*leaf.parameter, piece, mesh_.group(sum.axis, sum.inner));
        }
      }
    }
  }
  if (bucket.sums.empty()) {
    bucket.sum = Pending(bucket.buffer);
    return;
  }
  if (checking && bucket.shards != nullptr) {
    std::vector<at::Tensor> leaves;
    for (const auto& leaf : bucket.leaves) {
      leaves.push_back(weighed(leaf.parameter->main_grad, 0));
    }
    bucket.amounts = amounts_of(leaves);
  }
  const bool narrow = bucket.buffer.scalar_type() == at::kFloat;
  const at::Tensor sent = narrow ? bucket.buffer.to(options_.reduce) : bucket.buffer;
  bucket.sum = bucket.shards != nullptr // in place: this rank's part of what it sends
                   ? bucket.shards->start_reduce_scatter(
                         sent, 0, sent.narrow(0, bucket.first(), bucket.chunk())
                     )
                   : mesh_.group(bucket.sums.front().axis).start_all_reduce(sent);
}

void Gradients::take(Bucket& bucket) {
  if (bucket.state == Bucket::Sum::taken) {
    return;
  }
  const at::NoGradGuard no_grad;
  bucket.state = Bucket::Sum::taken;
  const at::Tensor summed = bucket.sum.wait();
  if (bucket.amounts.defined()) {
    check_sharded(bucket, summed);
    bucket.amounts = at::Tensor();
  }
  bool first = bucket.shards == nullptr;
  for (const auto& sum : bucket.sums) {
    const auto& group = mesh_.group(sum.axis);
    if (bucket.shards == &group || std::exchange(first, false)) {
      continue;
    }
    group.all_reduce(summed);
  }
  if (bucket.part.defined()) {
    bucket.part.add_(summed);
    bucket.buffer = at::Tensor();
    for (const auto& leaf : bucket.leaves) {
      ParameterStore::place_gradient(*leaf.parameter, {}, 0);
    }
  } else if (const auto kept = bucket.kept(); !summed.is_alias_of(kept)) {
    kept.copy_(summed);
  }
  bucket.sum = Pending();
}

/// Checks the part of each leaf that is in this rank's part of the sum, over the ranks that share
/// it.
void Gradients::check_sharded(const Bucket& bucket, const at::Tensor& summed) const {
  std::vector<at::Tensor> parts;
  for (const auto& [parameter, begin] : bucket.leaves) {
    const int64_t from = std::clamp<int64_t>(begin - bucket.first(), 0, bucket.chunk());
    const int64_t to =
        std::clamp<int64_t>(begin + parameter->value.numel() - bucket.first(), 0, bucket.chunk());
    parts.push_back(
        weighed(summed.narrow(0, from, to - from), std::max<int64_t>(bucket.first() - begin, 0))
    );
  }
  const int64_t lost =
      first_lost(bucket.amounts, amounts_of(parts), *bucket.shards, summed.scalar_type());
  if (lost >= 0) {
    const auto& piece = bucket.leaves[static_cast<size_t>(lost)].parameter->pieces.front();
    throw Error(
        piece.name + ": its gradient lost or gained something in the sum over the ranks of " +
            bucket.shards->name(),
        "a reduce-scatter of gradients is missing or does not do its part",
        exit_code::numbers
    );
  }
}

at::Tensor Gradients::sum_over_model(at::ScalarType dtype, const Of& of) const {
  const at::NoGradGuard no_grad;
  const at::Tensor total = at::zeros({}, flat_.dtype(dtype));
  for (const auto& owned : owned_) {
    total.add_(of(owned), 1.0 / static_cast<double>(owned.piece.copies));
  }
  mesh_.all().all_reduce(total);
  return total;
}

at::Tensor Gradients::squared_norm() const {
  if (flat_.device().is_cuda()) {
    const at::Tensor total = squared_at_once(owned_, flat_);
    mesh_.all().all_reduce(total);
    return total;
  }
  return sum_over_model(type(), [](const OwnedPiece& owned) { return squared(owned.gradient); });
}

at::Tensor Gradients::squared_weight_norm() const {
  return sum_over_model(type(), [this](const OwnedPiece& owned) {
    return squared(owned.value.to(type()));
  });
}

at::Tensor Gradients::zeros() const {
  return sum_over_model(at::kDouble, [](const OwnedPiece& owned) {
    return owned.gradient.eq(0).sum().to(at::kDouble);
  });
}

int64_t Gradients::bytes() const {
  int64_t bytes = 0;
  for (const auto& bucket : buckets_) {
    bytes +=
        static_cast<int64_t>((bucket->part.defined() ? bucket->part : bucket->buffer).nbytes());
  }
  return bytes;
}

int64_t Gradients::value_bytes() const {
  int64_t bytes = values_->bytes();
  for (const auto& parameter : store_.all()) {
    const auto found = bucket_of_.find(&parameter);
    const bool shared = found != bucket_of_.end() && found->second->shards != nullptr;
    bytes += shared ? 0 : static_cast<int64_t>(parameter.value.nbytes());
  }
  return bytes;
}

} // namespace mh
