#include "core/train/gradients.hpp"

#include "core/nn/gradient_sums.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace mh {

namespace {

constexpr int64_t kAlignment = 32; // elements: a cache line, also in 16 bits

int64_t aligned(int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

/// The sums that all pieces of a leaf need over whole axes: a bucket's. Those over blocks of an
/// axis stay with the piece.
std::vector<GradientSum> common_sums(const Parameter& parameter) {
  std::vector<GradientSum> common;
  for (const auto& sum : parameter.pieces.front().sums) {
    if (sum.inner == 0 &&
        std::all_of(parameter.pieces.begin(), parameter.pieces.end(), [&](const Piece& piece) {
          return std::find(piece.sums.begin(), piece.sums.end(), sum) != piece.sums.end();
        })) {
      common.push_back(sum);
    }
  }
  return common;
}

bool is_data(const GradientSum& sum) {
  return sum.axis == MeshAxis::dp || sum.axis == MeshAxis::edp;
}

/// Where a piece's first element lies in its leaf, counted flat.
int64_t flat_begin(const Parameter& parameter, const Piece& piece) {
  int64_t begin = piece.row * parameter.value.stride(0);
  for (size_t d = 0; d < piece.inside.size(); ++d) {
    begin += piece.inside[d] * parameter.value.stride(static_cast<int64_t>(d) + 1);
  }
  return begin;
}

} // namespace

struct Gradients::Bucket {
  struct Leaf {
    Parameter* parameter;
    int64_t begin; // in the buffer
  };

  size_t number = 0;
  std::vector<GradientSum> sums; // of all leaves
  bool late = false;             // shared by pipeline stages: summed after the last backward pass
  std::vector<Leaf> leaves;
  int64_t elements = 0;        // of the leaves
  int64_t length = 0;          // of the buffer
  const Group* deal = nullptr; // the ranks that share the update; null: each updates all
  at::Tensor buffer;           // undefined while zero 2 keeps none
  at::Tensor part;             // under zero 2: what is kept, this rank's part of the buffer
  int64_t uses = 0;            // gradients per backward pass; 0: not known yet
  int64_t seen = 0;            // in this round
  bool started = false;
  Pending sum; // the first of the sums
  bool coming = false;
  Pending values; // of all ranks, coming

  /// Elements that this rank updates.
  [[nodiscard]] int64_t chunk() const { return deal == nullptr ? length : length / deal->size(); }

  /// Their gradients.
  [[nodiscard]] at::Tensor kept() const {
    return part.defined()    ? part
           : deal == nullptr ? buffer
                             : buffer.narrow(0, deal->index() * chunk(), chunk());
  }

  /// Whether all leaves have their gradients of this round.
  [[nodiscard]] bool complete(int64_t microbatches) const {
    return !late && uses > 0 && seen == uses * microbatches;
  }

  void reset() {
    seen = 0;
    started = false;
  }
};

Gradients::Gradients(ParameterStore& store, const Mesh& mesh, const GradientOptions& options)
    : mesh_(mesh)
    , options_(options)
    , store_(store) {
  make_buckets(store);
  int64_t total = 0;
  for (const auto& bucket : buckets_) {
    total += bucket->length;
  }
  if (buckets_.empty()) {
    return;
  }
  const auto& first = buckets_.front()->leaves.front().parameter->value;
  const auto dtype = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto flat = first.options().dtype(dtype).requires_grad(false);
  if (options_.zero < 2) {
    gradients_ = at::zeros({total}, flat);
  }
  int64_t begin = 0;
  for (auto& bucket : buckets_) {
    if (options_.zero >= 2 && bucket->deal != nullptr) {
      bucket->part = at::zeros({bucket->chunk()}, flat);
    } else {
      bucket->buffer = gradients_.defined() ? gradients_.narrow(0, begin, bucket->length)
                                            : at::zeros({bucket->length}, flat);
      begin += bucket->length;
      allocate(*bucket);
    }
  }
  own_pieces();
  store.listen(this);
}

Gradients::~Gradients() {
  store_.listen(nullptr);
}

// Leaves in the order in which the backward pass reaches them.
void Gradients::make_buckets(ParameterStore& store) {
  std::vector<std::unique_ptr<Bucket>> late;
  std::map<std::string, Bucket*> open;
  auto& all = store.all();
  for (auto leaf = all.rbegin(); leaf != all.rend(); ++leaf) {
    if (!leaf->value.requires_grad()) {
      continue;
    }
    const auto sums = common_sums(*leaf);
    const bool shared = !leaf->pieces.front().stages.empty();
    std::string key = shared ? "late" : "";
    for (const auto& sum : sums) {
      key += " " + std::string(to_string(sum.axis));
    }
    auto& bucket = open[key];
    if (bucket == nullptr || bucket->elements >= options_.bucket) {
      auto& list = shared ? late : buckets_;
      bucket = list.emplace_back(std::make_unique<Bucket>()).get();
      bucket->sums = sums;
      bucket->late = shared;
      const auto data = std::find_if(sums.begin(), sums.end(), is_data);
      if (options_.zero > 0 && data != sums.end()) {
        bucket->deal = &mesh_.group(data->axis);
      }
    }
    bucket->leaves.push_back({&*leaf, 0});
    bucket->elements += leaf->value.numel();
    bucket_of_[&*leaf] = bucket;
  }
  first_late_ = buckets_.size();
  std::move(late.begin(), late.end(), std::back_inserter(buckets_));
  for (size_t i = 0; i < buckets_.size(); ++i) {
    buckets_[i]->number = i;
    lay_out(*buckets_[i]);
  }
}

// Where `zero` may cut anywhere the leaves follow one another, and each rank's part is as long.
// Whole leaves are dealt out the largest first, each to the rank that has least.
void Gradients::lay_out(Bucket& bucket) const {
  const int64_t ranks = bucket.deal == nullptr ? 1 : bucket.deal->size();
  if (ranks == 1 || options_.unit == Unit::element) {
    int64_t end = 0;
    for (auto& leaf : bucket.leaves) {
      leaf.begin = std::exchange(end, end + aligned(leaf.parameter->value.numel()));
    }
    bucket.length = aligned((end + ranks - 1) / ranks) * ranks;
    return;
  }
  std::vector<Bucket::Leaf*> largest_first;
  for (auto& leaf : bucket.leaves) {
    largest_first.push_back(&leaf);
  }
  std::stable_sort(largest_first.begin(), largest_first.end(), [](const auto* a, const auto* b) {
    return a->parameter->value.numel() > b->parameter->value.numel();
  });
  std::vector<int64_t> ends(static_cast<size_t>(ranks), 0);
  std::vector<size_t> owner;
  for (auto* leaf : largest_first) {
    const auto least = std::min_element(ends.begin(), ends.end());
    owner.push_back(static_cast<size_t>(least - ends.begin()));
    leaf->begin = std::exchange(*least, *least + aligned(leaf->parameter->value.numel()));
  }
  const int64_t chunk = *std::max_element(ends.begin(), ends.end());
  for (size_t i = 0; i < owner.size(); ++i) {
    largest_first[i]->begin += static_cast<int64_t>(owner[i]) * chunk;
  }
  bucket.length = chunk * ranks;
}

void Gradients::allocate(Bucket& bucket) const {
  if (!bucket.buffer.defined()) {
    bucket.buffer = at::zeros({bucket.length}, bucket.part.options());
  }
  for (const auto& leaf : bucket.leaves) {
    ParameterStore::place_gradient(*leaf.parameter, bucket.buffer, leaf.begin);
  }
}

void Gradients::own_pieces() {
  for (const auto& bucket : buckets_) {
    const int64_t first = bucket->deal == nullptr ? 0 : bucket->deal->index() * bucket->chunk();
    const at::Tensor chunk = bucket->kept();
    for (const auto& [parameter, begin] : bucket->leaves) {
      for (const auto& piece : parameter->pieces) {
        if (piece.frozen) {
          continue;
        }
        for (auto& part :
             parts_of(*parameter, piece, first - begin, first - begin + bucket->chunk())) {
          if (bucket->deal != nullptr) {
            part.copies /= bucket->deal->size();
          }
          const int64_t at = begin - first + flat_begin(*parameter, part);
          const auto gradient =
              chunk.narrow(0, at, c10::multiply_integers(part.shape)).view(part.shape);
          owned_.push_back({parameter, std::move(part), gradient});
        }
      }
    }
  }
}

void Gradients::begin(int64_t microbatches) {
  microbatches_ = microbatches;
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

void Gradients::before(Parameter& parameter) {
  auto& bucket = *bucket_of_.at(&parameter);
  MH_ASSERT(!bucket.started, "a gradient came after its bucket's sum had started");
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
  while (options_.overlap && next_ < buckets_.size() && buckets_[next_]->complete(round())) {
    start(*buckets_[next_++]);
  }
}

void Gradients::backward_done() {
  if (options_.zero >= 2) {
    sum_up();
  }
}

void Gradients::finish() {
  if (options_.zero < 2) {
    sum_up();
  }
}

void Gradients::sum_up() {
  RECORD_USER_SCOPE("gradient sums");
  for (auto& bucket : buckets_) { // what the next round waits for
    bucket->uses = bucket->seen % round() == 0 ? bucket->seen / round() : 0;
  }
  while (next_ < buckets_.size()) {
    if (next_ == first_late_) {
      sum_over_stages(store_, mesh_);
    }
    start(*buckets_[next_++]);
  }
  for (auto& bucket : buckets_) {
    take(*bucket);
    bucket->reset();
  }
  next_ = 0;
}

void Gradients::start(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  if (trace) {
    trace("start " + std::to_string(bucket.number));
  }
  bucket.started = true;
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
  const bool narrow = bucket.buffer.scalar_type() == at::kFloat;
  const at::Tensor sent = narrow ? bucket.buffer.to(options_.reduce) : bucket.buffer;
  bucket.sum = bucket.deal != nullptr
                   ? bucket.deal->start_reduce_scatter(sent, 0)
                   : mesh_.group(bucket.sums.front().axis).start_all_reduce(sent);
}

void Gradients::take(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  const at::Tensor summed = bucket.sum.wait();
  bool first = bucket.deal == nullptr;
  for (const auto& sum : bucket.sums) {
    const auto& group = mesh_.group(sum.axis);
    if (bucket.deal == &group || std::exchange(first, false)) {
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

at::Tensor Gradients::sum_over_model(const Of& of) const {
  const at::NoGradGuard no_grad;
  MH_ASSERT(!buckets_.empty(), "a rank without parameters has no gradients");
  at::Tensor total = at::zeros({}, of(buckets_.front()->kept().narrow(0, 0, 1)).options());
  for (const auto& owned : owned_) {
    total.add_(of(owned.gradient), 1.0 / static_cast<double>(owned.piece.copies));
  }
  mesh_.all().all_reduce(total);
  return total;
}

at::Tensor Gradients::squared_norm() const {
  return sum_over_model([](const at::Tensor& gradient) {
    const at::Tensor norm = gradient.norm();
    return norm * norm;
  });
}

at::Tensor Gradients::zeros() const {
  return sum_over_model([](const at::Tensor& gradient) {
    return gradient.eq(0).sum().to(at::kDouble);
  });
}

// The values travel as the gradients lie.
void Gradients::share_parameters() {
  const at::NoGradGuard no_grad;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend();
       ++bucket) { // as the forward pass
    auto& b = **bucket;
    if (b.deal == nullptr) {
      continue;
    }
    const auto& value = b.leaves.front().parameter->value;
    const at::Tensor own = at::empty({b.chunk()}, value.options().requires_grad(false));
    const int64_t first = b.deal->index() * b.chunk();
    for (const auto& [parameter, begin] : b.leaves) {
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(begin + parameter->value.numel(), first + b.chunk());
      if (from < to) {
        own.narrow(0, from - first, to - from)
            .copy_(parameter->value.detach().view({-1}).narrow(0, from - begin, to - from));
      }
    }
    b.values = b.deal->start_all_gather(own, 0);
    b.coming = true;
  }
}

void Gradients::wait_for_all() {
  for (auto& bucket : buckets_) {
    receive(*bucket);
  }
}

void Gradients::receive(Bucket& bucket) {
  if (!std::exchange(bucket.coming, false)) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor all = bucket.values.wait();
  for (const auto& [parameter, begin] : bucket.leaves) {
    const auto value = parameter->value.detach().view({-1});
    value.copy_(all.narrow(0, begin, value.numel()));
  }
  bucket.values = Pending();
}

int64_t Gradients::bytes() const {
  int64_t bytes = 0;
  for (const auto& bucket : buckets_) {
    bytes +=
        static_cast<int64_t>((bucket->part.defined() ? bucket->part : bucket->buffer).nbytes());
  }
  return bytes;
}

} // namespace mh
