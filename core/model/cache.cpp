#include "megahost/nn/cache.hpp"

#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

namespace mh {

std::pair<at::Tensor, at::Tensor>
KeyValueCache::append(uint64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = k.size(0);
  Entry& entry = entries_[layer];
  MH_ASSERT(entry.length + tokens <= capacity_, "more tokens than the cache has room for");
  const auto add = [&](at::Tensor& all, const at::Tensor& part) {
    if (!all.defined()) {
      all = at::empty({capacity_, part.size(1), part.size(2), part.size(3)}, part.options());
    }
    all.narrow(0, entry.length, tokens).copy_(part);
    return all.narrow(0, 0, entry.length + tokens);
  };
  const auto both = std::pair(add(entry.k, k), add(entry.v, v));
  entry.length += tokens;
  return both;
}

at::Tensor KeyValueCache::rows(uint64_t layer, const at::Tensor& x, int64_t count) {
  at::Tensor& kept = states_[layer];
  if (!kept.defined()) {
    auto sizes = x.sizes().vec();
    sizes[0] = count;
    kept = at::zeros(sizes, x.options());
  }
  const at::Tensor all = at::cat({kept, x});
  kept = all.narrow(0, x.size(0), count).clone();
  return all;
}

const std::vector<at::Tensor>&
KeyValueCache::once(uint64_t layer, const std::function<std::vector<at::Tensor>()>& make) {
  auto found = once_.find(layer);
  if (found == once_.end()) {
    found = once_.emplace(layer, make()).first;
  }
  return found->second;
}

const State& KeyValueCache::once(const std::function<State()>& make) {
  if (!encoded_) {
    encoded_ = make();
  }
  return *encoded_;
}

void KeyValueCache::restart() {
  entries_.clear();
  states_.clear();
}

CachedState::CachedState(
    Builder& builder, std::string_view name, const Dims& dims, std::optional<at::ScalarType> dtype
)
    : site_(random_key(0, builder.global_name(name)))
    , name_(builder.global_name(name))
    , dims_(dims)
    , options_(builder.options().dtype(
          dtype.value_or(builder.args().dtype == at::kDouble ? at::kDouble : at::kFloat)
      )) {}

at::Tensor CachedState::before(StepContext& context) const {
  KeyValueCache* cache = context.mode().kv_cache;
  if (cache != nullptr && cache->state(site_).defined()) {
    return cache->state(site_);
  }
  Dims dims{{axis::batch, context.batch().batch}};
  dims.insert(dims.end(), dims_.begin(), dims_.end());
  const Placement placed = context.rules().place(dims, context.mesh());
  return at::zeros(local_sizes(dims, placed, context.mesh()), options_);
}

void CachedState::keep(const at::Tensor& after, StepContext& context) const {
  if (context.mode().kv_cache == nullptr) {
    return;
  }
  const at::Tensor expected = before(context);
  if (after.sizes() != expected.sizes() || after.scalar_type() != expected.scalar_type()) {
    const auto text = [](const at::Tensor& x) {
      return c10::str(x.sizes(), " ", c10::toString(x.scalar_type()));
    };
    throw InternalError(
        "the state " + name_ + " is " + text(expected) + ", but " + text(after) + " is kept for it"
    );
  }
  context.mode().kv_cache->state(site_) = after.detach();
}

} // namespace mh
