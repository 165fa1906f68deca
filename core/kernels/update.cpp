#include "core/kernels/update.hpp"

#include "core/kernels/level.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/update_cuda.hpp"
#include "core/kernels/update_plain.hpp"
#include "megahost/parallel.hpp"

#include <algorithm>
#include <cmath>

namespace mh::ops {

namespace {

using at::IntArrayRef;
using at::Tensor;
using at::TensorList;
using Doubles = at::ArrayRef<double>;

/// Numbers as the operator takes them: a double that is the number, or the factor of one of some
/// tensors. For all numbers of a call in turn, `at` is the index of that tensor; empty: none.
class HeldNumbers {
public:
  /// Adds a number; returns its double.
  double add(const Number& number) {
    if (!number.is_tensor()) {
      at.push_back(-1);
      return number.number();
    }
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
      return tensor.is_same(number.base());
    });
    at.push_back(found - tensors.begin());
    if (found == tensors.end()) {
      tensors.push_back(number.base());
    }
    return number.factor();
  }

  std::vector<double> add_all(const std::vector<Number>& numbers) {
    std::vector<double> doubles;
    for (const Number& number : numbers) {
      doubles.push_back(add(number));
    }
    return doubles;
  }

  std::vector<Tensor> tensors;
  std::vector<int64_t> at;
};

/// Reads the same numbers again. Numbers in host memory are on the host from here on.
class NumberReader {
public:
  NumberReader(TensorList tensors, IntArrayRef at)
      : tensors_(tensors)
      , at_(at) {}

  Number next(double number) {
    const int64_t place = at_.empty() ? -1 : at_[next_++];
    if (place < 0) {
      return number;
    }
    const Number held = Number(tensors_[static_cast<size_t>(place)]) * number;
    return held.base().is_cpu() ? Number(held.read()) : held;
  }

private:
  TensorList tensors_;
  IntArrayRef at_;
  size_t next_ = 0;
};

/// All items, checked.
std::vector<UpdateItemView> items_of(
    TensorList weights,
    TensorList gradients,
    TensorList first,
    TensorList second,
    TensorList parameters,
    const std::vector<Number>& rates,
    const std::vector<Number>& decays,
    IntArrayRef keys,
    IntArrayRef places
) {
  const size_t count = weights.size();
  const auto fits = [count](size_t size, bool optional) {
    return size == count || (optional && size == 0);
  };
  TORCH_CHECK(
      fits(gradients.size(), false) && fits(first.size(), true) && fits(second.size(), true) &&
          fits(parameters.size(), true) && fits(keys.size(), true),
      "update_ needs as many gradients, states and parameters as weights, or none"
  );
  std::vector<UpdateItemView> items(count);
  for (size_t i = 0; i < count; ++i) {
    auto& item = items[i];
    item.weight = weights[i];
    item.gradient = gradients[i];
    item.rate = rates[i];
    item.decay = decays[i];
    item.first = first.empty() ? Tensor() : first[i];
    item.second = second.empty() ? Tensor() : second[i];
    item.parameter = parameters.empty() ? Tensor() : parameters[i];
    item.key = keys.empty() ? 0 : static_cast<uint64_t>(keys[i]);
    for (const Tensor* other : {&item.gradient, &item.first, &item.second, &item.parameter}) {
      TORCH_CHECK(
          !other->defined() || other->sizes() == item.weight.sizes(),
          "update_ needs gradient, state and parameter of the weight's shape ",
          item.weight.sizes(),
          ", got ",
          other->sizes()
      );
    }
    if (!places.empty()) {
      const auto dims = static_cast<size_t>(places.front());
      item.shape = places.slice(1, dims);
      item.offset = places.slice(1 + dims, dims);
      places = places.slice(1 + 2 * dims);
    }
  }
  return items;
}

/// Global index of a slice's first element, and how many elements from there on are neighbours in
/// the global tensor, too.
struct NeighbourRun {
  int64_t first, length;
};

NeighbourRun run_at(const UpdateItemView& item, int64_t local) {
  const auto sizes = item.weight.sizes();
  if (item.shape.empty()) {
    return {local, item.weight.numel() - local};
  }
  int64_t length = 1; // neighbours: all trailing dimensions that are whole, and the one before
  size_t d = sizes.size();
  while (d > 0) {
    --d;
    length *= sizes[d];
    if (sizes[d] != item.shape[d]) {
      break;
    }
  }
  int64_t global = 0, stride = 1, rest = local;
  for (size_t e = sizes.size(); e-- > 0;) {
    global += (rest % sizes[e] + item.offset[e]) * stride;
    rest /= sizes[e];
    stride *= item.shape[e];
  }
  return {global, length - local % length};
}

/// The kernel for an item's types and layout, or nullptr.
kernels::UpdateKernels::Update kernel_for(const UpdateItemView& item) {
  const auto is = [](const Tensor& x, at::ScalarType type) {
    return !x.defined() || (x.scalar_type() == type && x.is_contiguous());
  };
  const bool state32 = is(item.first, at::kFloat) && is(item.second, at::kFloat);
  const bool state16 = is(item.first, at::kBFloat16) && is(item.second, at::kBFloat16);
  if (!is(item.gradient, at::kFloat) || !(state32 || state16)) {
    return nullptr;
  }
  const auto& table = kernels::table().updates;
  if (is(item.weight, at::kFloat)) {
    return state32 ? table.fp32 : table.fp32_bf16;
  }
  if (is(item.weight, at::kBFloat16)) {
    return state32 ? table.bf16_fp32 : table.bf16;
  }
  return nullptr;
}

/// Whether the kernels write the item's parameter.
bool rounds(const UpdateItemView& item) {
  return item.parameter.defined() && item.parameter.scalar_type() == at::kBFloat16 &&
         item.parameter.is_contiguous();
}

void* data(const Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

kernels::UpdateCall call_of(const UpdateNumbers& n, const UpdateItemView& item) {
  const double t = n.step, rate = item.rate, decay = item.decay;
  const bool adam = n.kind == UpdateKind::adam;
  const auto narrow = [](double x) { return static_cast<float>(x); };
  return {
      .kind = n.kind,
      .nesterov = n.nesterov,
      .stochastic =
          n.stochastic && (item.weight.scalar_type() == at::kBFloat16 ||
                           (item.first.defined() && item.first.scalar_type() == at::kBFloat16)),
      .scale = narrow(n.scale),
      .keep = narrow(n.decoupled ? 1 - rate * decay : 1),
      .l2 = narrow(n.decoupled ? 0 : decay),
      .rate = narrow(adam ? rate / (1 - std::pow(n.beta1, t)) : rate),
      .beta1 = narrow(n.beta1),
      .rest1 = narrow(1 - n.beta1),
      .beta2 = narrow(n.beta2),
      .rest2 = narrow(1 - n.beta2),
      .root = narrow(adam ? 1 / std::sqrt(1 - std::pow(n.beta2, t)) : 1),
      .eps = narrow(n.eps),
      .weight = data(item.weight),
      .first = data(item.first),
      .second = data(item.second),
      .gradient = static_cast<float*>(data(item.gradient)),
      .parameter = rounds(item) ? data(item.parameter) : nullptr,
      .key = item.key,
      .step = static_cast<uint64_t>(t),
      .origin = 0};
}

/// One kernel, with its elements among those of all.
struct Task {
  const UpdateItemView* item;
  kernels::UpdateKernels::Update run;
  kernels::UpdateCall call;
  int64_t begin; // where its elements begin in the list of all
};

/// Elements from begin to end of an item; runs of neighbours one by one where their global place
/// matters.
void run_task(const Task& task, int64_t begin, int64_t end) {
  while (begin < end) {
    auto call = task.call;
    int64_t until = end;
    if (call.stochastic) {
      const NeighbourRun run = run_at(*task.item, begin);
      call.origin = run.first - begin;
      until = std::min(end, begin + run.length);
    }
    task.run(call, begin, until);
    begin = until;
  }
}

void update_items(const UpdateNumbers& numbers, const std::vector<UpdateItemView>& items) {
  std::vector<Task> tasks;
  int64_t total = 0;
  for (const auto& item : items) {
    const auto kernel = kernel_for(item);
    if (kernel == nullptr) {
      update_plainly(numbers, item);
    } else if (item.weight.numel() > 0) {
      tasks.push_back({&item, kernel, call_of(numbers, item), total});
      total += item.weight.numel();
    }
  }
  constexpr int64_t kGrain = 1 << 14;
  parallel_for(0, total, kGrain, [&](int64_t begin, int64_t end) {
    auto task = std::prev(std::upper_bound(
        tasks.begin(), tasks.end(), begin, [](int64_t at, const Task& t) { return at < t.begin; }
    ));
    for (; task != tasks.end() && task->begin < end; ++task) {
      const int64_t length = task->item->weight.numel();
      run_task(
          *task, std::max<int64_t>(0, begin - task->begin), std::min(length, end - task->begin)
      );
    }
  });
  for (const auto& task : tasks) {
    if (task.item->parameter.defined() && !rounds(*task.item)) {
      task.item->parameter.copy_(task.item->weight);
    }
  }
}

constexpr int64_t kDecoupled = 1, kNesterov = 2, kStochastic = 4;

UpdateNumbers numbers_of(int64_t kind, int64_t flags, Doubles numbers, NumberReader& held) {
  TORCH_CHECK(
      kind >= 0 && kind <= 2 && numbers.size() == 5,
      "update_ needs a kind from 0 to 2 and five numbers, got ",
      kind,
      " and ",
      numbers.size()
  );
  return {
      .kind = static_cast<UpdateKind>(kind),
      .decoupled = (flags & kDecoupled) != 0,
      .nesterov = (flags & kNesterov) != 0,
      .stochastic = (flags & kStochastic) != 0,
      .beta1 = numbers[0],
      .beta2 = numbers[1],
      .eps = numbers[2],
      .scale = held.next(numbers[3]),
      .step = held.next(numbers[4])};
}

/// The operator's form on one kind of device: `run` gets the numbers and the checked items.
template <auto NeighbourRun>
void update_form(
    int64_t kind,
    int64_t flags,
    Doubles numbers,
    TensorList weights,
    TensorList gradients,
    TensorList first,
    TensorList second,
    TensorList parameters,
    Doubles rates,
    Doubles decays,
    TensorList held,
    IntArrayRef held_at,
    IntArrayRef keys,
    IntArrayRef places
) {
  const size_t count = weights.size();
  const bool adam = kind == static_cast<int64_t>(UpdateKind::adam);
  const bool needs_first = kind != static_cast<int64_t>(UpdateKind::sgd) || numbers[0] > 0;
  TORCH_CHECK(
      (!adam || second.size() == count) && (!needs_first || first.size() == count),
      "update_ needs two states for adam, one for sgd with momentum and for average"
  );
  TORCH_CHECK(
      rates.size() == count && decays.size() == count &&
          (held_at.empty() || held_at.size() == 2 * count + 2),
      "update_ needs a rate and a decay for each weight, and a place for every number or for none"
  );
  NumberReader reader(held, held_at);
  const auto of_step = numbers_of(kind, flags, numbers, reader);
  const auto all = [&reader](Doubles doubles) {
    std::vector<Number> read;
    for (const double number : doubles) {
      read.push_back(reader.next(number));
    }
    return read;
  };
  const auto rates_read = all(rates), decays_read = all(decays);
  NeighbourRun(
      of_step,
      items_of(weights, gradients, first, second, parameters, rates_read, decays_read, keys, places)
  );
}

void update_plain(const UpdateNumbers& numbers, const std::vector<UpdateItemView>& items) {
  for (const auto& item : items) {
    update_plainly(numbers, item);
  }
}

/// Updates in place; nothing is allocated.
void update_meta(const UpdateNumbers&, const std::vector<UpdateItemView>&) {}

} // namespace

void register_update(Libraries& libraries) {
  libraries.definitions.def(
      "update_(int kind, int flags, float[] numbers, Tensor(a!)[] weights, Tensor(b!)[] gradients, "
      "Tensor(c!)[] first, Tensor(d!)[] second, Tensor(e!)[] parameters, float[] rates, "
      "float[] decays, Tensor[] held, int[] held_at, int[] keys, int[] places) -> ()"
  );
  libraries.cpu.impl("update_", update_form<update_items>);
  libraries.cuda.impl("update_", update_form<update_on_cuda>);
  libraries.plain.impl("update_", update_form<update_plain>);
  libraries.meta.impl("update_", update_form<update_meta>);
}

void update_(const UpdateNumbers& n, UpdateTensors& t) {
  static const auto op = find_op<decltype(update_form<update_items>)>("megahost::update_");
  if (t.weights.empty()) {
    return;
  }
  const int64_t flags = (n.decoupled ? kDecoupled : 0) | (n.nesterov ? kNesterov : 0) |
                        (n.stochastic ? kStochastic : 0);
  HeldNumbers held; // in the order in which they are read
  const double scale = held.add(n.scale), step = held.add(n.step);
  const auto rates = held.add_all(t.rates), decays = held.add_all(t.decays);
  const std::vector<double> numbers{n.beta1, n.beta2, n.eps, scale, step};
  op.call(
      static_cast<int64_t>(n.kind),
      flags,
      numbers,
      t.weights,
      t.gradients,
      t.first,
      t.second,
      t.parameters,
      rates,
      decays,
      held.tensors,
      held.tensors.empty() ? std::vector<int64_t>() : held.at,
      t.keys,
      t.places
  );
}

} // namespace mh::ops
