#include "core/step/batches.hpp"

#include "core/memory/staging.hpp"
#include "core/model/labels.hpp"
#include "core/model/plugin_call.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

namespace mh {
namespace {

// [samples][length] -> [length, samples]
at::Tensor stack(const std::string& name, const std::vector<Sample>& samples) {
  const size_t length =
      std::visit([](const auto& values) { return values.size(); }, samples.front().at(name));
  const auto width = static_cast<int64_t>(samples.size());
  return std::visit(
      [&]<class T>(const std::vector<T>&) {
        const auto dtype = std::is_same_v<T, int64_t> ? at::kLong : at::kFloat;
        at::Tensor stacked = at::empty({static_cast<int64_t>(length), width}, dtype);
        T* data = stacked.data_ptr<T>();
        for (int64_t column = 0; column < width; ++column) {
          const auto found = samples[static_cast<size_t>(column)].find(name);
          const auto* values = found == samples[static_cast<size_t>(column)].end()
                                   ? nullptr
                                   : std::get_if<std::vector<T>>(&found->second);
          if (values == nullptr || values->size() != length) {
            throw Error(
                "the corpus gives array `" + name +
                    "` with another length or type, or not at"
                    " all, in some samples of one batch",
                "the arrays of all samples must be alike",
                exit_code::data
            );
          }
          for (size_t row = 0; row < length; ++row) {
            data[static_cast<int64_t>(row) * width + column] = (*values)[row];
          }
        }
        return stacked;
      },
      samples.front().at(name)
  );
}

/// The rows of these tokens, in their order.
at::Tensor cut(const at::Tensor& array, const std::vector<TokenRun>& tokens) {
  std::vector<at::Tensor> runs;
  for (const auto& [first, count] : tokens) {
    runs.push_back(array.narrow(0, first, count));
  }
  return runs.size() == 1 ? runs.front() : at::cat(runs);
}

void check_declared(const std::vector<ArraySpec>& arrays, const Sample& sample, int64_t index) {
  const auto difference = arrays.empty() ? std::string() : array_difference(arrays, sample);
  if (!difference.empty()) {
    throw Error(
        "sample " + std::to_string(index) + " of the corpus is not what it declares: " + difference,
        "`arrays` of the corpus says what its samples hold, before any are read",
        exit_code::data
    );
  }
}

/// Refuses ids that the model does not have: an embedding sharded over ranks would take any.
void check_ids(const at::Tensor& tokens, const std::string& name, int64_t first, int64_t vocab) {
  const auto ids = tokens.accessor<int64_t, 2>();
  for (int64_t token = 0; token < ids.size(0); ++token) {
    for (int64_t sample = 0; sample < ids.size(1); ++sample) {
      const int64_t id = ids[token][sample];
      if (id < 0 || id >= vocab) {
        throw Error(
            "sample " + std::to_string(first + sample) + " of the corpus holds the id " +
                std::to_string(id) + " at `" + name + "`[" + std::to_string(token) +
                "], but the model has ids 0 to " + std::to_string(vocab - 1),
            "raise model.vocab, or use the tokenizer and the corpus that belong together",
            exit_code::data
        );
      }
    }
  }
}

std::map<std::string, int64_t, std::less<>> ends_of_labels(const Batch& batch) {
  std::map<std::string, int64_t, std::less<>> ends;
  for (const auto& [name, labels] : batch.arrays) {
    const auto mask = batch.arrays.find(mask_of_labels(name));
    if (mask != batch.arrays.end() && mask->second.sizes() == labels.sizes() &&
        labels.scalar_type() == at::kLong && labels.numel() > 0) {
      ends.emplace(name, labels_end(labels, mask->second).item<int64_t>());
    }
  }
  return ends;
}

/// The indices at which a mask is not 0, and as many others as make their number a multiple of 64:
/// tensors of one size follow one another in the same memory.
at::Tensor counted_in(const at::Tensor& mask) {
  constexpr int64_t kMultiple = 64;
  const auto where = [](const at::Tensor& x) { return x.nonzero().squeeze(1); };
  const at::Tensor flat = mask.flatten();
  const at::Tensor own = where(flat), others = where(flat.eq(0));
  const int64_t lacking = (kMultiple - own.numel() % kMultiple) % kMultiple;
  return at::cat({own, others.narrow(0, 0, std::min(lacking, others.numel()))});
}

/// Batch::counted of the arrays that are there.
std::map<std::string, at::Tensor, std::less<>>
counted_of(const Batch& batch, const std::vector<ArraySpec>& arrays) {
  std::map<std::string, at::Tensor, std::less<>> counted;
  for (const auto& spec : arrays) {
    const auto found = batch.arrays.find(spec.name);
    if (spec.share < 1 && found != batch.arrays.end()) {
      counted.emplace(spec.name, counted_in(found->second));
    }
  }
  return counted;
}

/// The documents of `segments` [seq, samples], or nothing if one of a sample goes on after another.
std::optional<std::vector<DocumentStart>> documents_of(const at::Tensor& segments) {
  std::vector<DocumentStart> documents;
  const auto rows = segments.accessor<int64_t, 2>();
  for (int64_t sample = 0; sample < segments.size(1); ++sample) {
    std::set<int64_t> ids;
    for (int64_t token = 0; token < segments.size(0); ++token) {
      const int64_t id = rows[token][sample];
      if (token > 0 && id == rows[token - 1][sample]) {
        continue;
      }
      if (!ids.insert(id).second) {
        return std::nullopt;
      }
      documents.push_back({sample, token, id});
    }
  }
  return documents;
}

} // namespace

int64_t BatchLayout::tokens_per_sample() const {
  int64_t sum = seq;
  for (const auto& [name, length] : sequences) {
    sum += length;
  }
  return sum;
}

std::set<int64_t> batch_sizes(const Recipe::Batch& batch) {
  std::set<int64_t> sizes{batch.global};
  for (int64_t size = batch.rampup_start.value_or(batch.global); size < batch.global;
       size += *batch.rampup_increment) {
    sizes.insert(size);
  }
  return sizes;
}

int64_t samples_of(const Corpus& corpus, Split split) {
  return in_plugin(corpus, "size", [&] { return corpus.size(split); });
}

std::string summary_of(const Corpus& corpus) {
  return in_plugin(corpus, "summary", [&] { return corpus.summary(); });
}

std::vector<Batch>
load_batches(const Corpus& corpus, Split split, int64_t first, const BatchLayout& layout) {
  std::vector<Batch> batches;
  for (int64_t m = 0; m < layout.microbatches; ++m) {
    Batch batch;
    batch.seq = layout.seq;
    batch.sequences = layout.sequences;
    batch.batch = layout.micro * layout.data_ranks;
    const int64_t start = first + m * batch.batch + layout.data_rank * layout.micro;
    std::vector<Sample> samples;
    for (int64_t i = start; i < start + layout.micro; ++i) {
      batch.samples.push_back(i);
      samples.push_back(in_plugin(corpus, "sample", [&] { return corpus.sample(split, i); }));
    }
    check_declared(layout.arrays, samples.front(), start);
    for (const auto& [name, array] : samples.front()) {
      const at::Tensor& whole = batch.arrays.emplace(name, stack(name, samples)).first->second;
      const bool ids = name == "tokens" || name.ends_with("_tokens");
      if (layout.vocab > 0 && ids && whole.scalar_type() == at::kLong) {
        check_ids(whole, name, start, layout.vocab);
      }
      if (name.ends_with("segments") && whole.scalar_type() == at::kLong) {
        if (auto documents = documents_of(whole)) {
          batch.documents.emplace(name, std::move(*documents));
        }
      }
    }
    add_shifted(layout.shifted, batch.arrays);
    for (auto& [name, array] : batch.arrays) {
      array = own_rows(array, name, layout);
    }
    for (const auto& sample : samples) {
      for (const auto& [name, array] : sample) {
        if (!batch.arrays.contains(name)) {
          throw Error(
              "the corpus gives array `" + name + "` in some samples of one batch only",
              "the arrays of all samples must be alike",
              exit_code::data
          );
        }
      }
    }
    batch.labels_end = ends_of_labels(batch);
    batch.counted = counted_of(batch, layout.arrays);
    batches.push_back(std::move(batch));
  }
  return batches;
}

at::Tensor own_rows(const at::Tensor& whole, const std::string& name, const BatchLayout& layout) {
  const auto made = std::ranges::find(layout.shifted, name, &ShiftedArray::name);
  const std::string& declared = made == layout.shifted.end() ? name : made->from;
  const bool per_token =
      std::any_of(layout.arrays.begin(), layout.arrays.end(), [&](const auto& spec) {
        return spec.name == declared && spec.axis == axis::seq;
      });
  return layout.tokens && per_token ? cut(whole, layout.tokens(whole.size(0))) : whole;
}

void add_shifted(
    const std::vector<ShiftedArray>& shifted, std::map<std::string, at::Tensor, std::less<>>& arrays
) {
  const auto segments = arrays.find("segments");
  for (const auto& [name, from, ahead] : shifted) {
    const auto found = arrays.find(from);
    if (found == arrays.end()) {
      continue;
    }
    const at::Tensor& whole = found->second;
    at::Tensor made = at::zeros_like(whole);
    const int64_t rows = whole.size(0) - ahead;
    if (rows > 0) {
      const auto first = [&](const at::Tensor& x) { return x.narrow(0, 0, rows); };
      const auto further = [&](const at::Tensor& x) { return x.narrow(0, ahead, rows); };
      first(made).copy_(further(whole));
      if (segments != arrays.end()) {
        first(made).mul_(first(segments->second).eq(further(segments->second)));
      }
    }
    arrays.insert_or_assign(name, made);
  }
}

Batch to_device(const Batch& batch, at::Device device) {
  Batch moved = batch;
  for (auto& [name, array] : moved.arrays) {
    array = staged(array, device);
  }
  for (auto& [name, indices] : moved.counted) {
    indices = staged(indices, device);
  }
  return moved;
}

Prefetcher::Prefetcher(
    const Corpus& corpus, Split split, Layout layout, int64_t steps, std::optional<int64_t> threads
)
    : corpus_(corpus)
    , split_(split)
    , layout_(std::move(layout))
    , steps_(steps)
    , threads_(threads.value_or(std::max<int64_t>(steps, 1))) {}

Prefetcher::~Prefetcher() = default; // waits for the threads

std::vector<Batch> Prefetcher::get(int64_t first, int64_t left) {
  if (!ahead_.empty() && ahead_.front().first != first) {
    ahead_.clear(); // the run went elsewhere
  }
  const BatchLayout now = layout_(first);
  const int64_t own = ahead_.empty() ? 0 : 1; // steps in the queue that are not behind this one
  while (std::ssize(ahead_) - own < std::min(steps_, left)) {
    const int64_t start = ahead_.empty() ? first + now.global() : ahead_.back().next;
    const BatchLayout layout = layout_(start);
    std::shared_future<std::vector<Batch>> before; // the step that has the thread until then
    if (std::ssize(ahead_) >= threads_) {
      before = ahead_[ahead_.size() - static_cast<size_t>(threads_)].batches;
    }
    ahead_.push_back({start, start + layout.global(), std::async(std::launch::async, [=, this] {
                        if (before.valid()) {
                          before.wait();
                        }
                        return load_batches(corpus_, split_, start, layout);
                      })});
  }
  if (own == 0) {
    return load_batches(corpus_, split_, first, now);
  }
  const auto batches = std::move(ahead_.front().batches);
  ahead_.pop_front();
  return batches.get();
}

} // namespace mh
