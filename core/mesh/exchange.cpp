#include "core/mesh/exchange.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <deque>
#include <utility>

namespace mh {

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr int64_t kPiece = 32'768; // elements of a thread: those of all members stay in its cache

/// Something that ends when it is waited for, or before.
struct Posted : c10d::Work {
  std::function<bool()> ready;
  std::function<void()> finish; // empty: it has ended

  bool isCompleted() override { return finish == nullptr; }

  bool isSuccess() const override { return true; }

  bool wait(std::chrono::milliseconds) override {
    end();
    return true;
  }

  void end() {
    if (finish != nullptr) {
      const at::NoGradGuard no_grad; // whoever waits may do so while gradients are recorded
      std::exchange(finish, nullptr)();
    }
  }
};

void reduce_piece(at::Tensor into, const Tensors& all, const c10d::ReduceOp& op) {
  into.copy_(all[0]);
  for (size_t i = 1; i < all.size(); ++i) {
    if (op == c10d::ReduceOp::SUM) {
      into.add_(all[i]);
    } else if (op == c10d::ReduceOp::MAX) {
      at::maximum_out(into, into, all[i]);
    } else {
      at::minimum_out(into, into, all[i]);
    }
  }
}

/// Tensors are contiguous; pieces of all members fit a cache.
void reduce_by_pieces(const at::Tensor& into, const Tensors& all, const c10d::ReduceOp& op) {
  const int64_t length = kPiece * at::get_num_threads();
  if (into.numel() <= length) {
    reduce_piece(into, all, op);
    return;
  }
  const at::Tensor whole = into.view(-1);
  Tensors pieces(all.size());
  for (int64_t first = 0; first < whole.numel(); first += length) {
    const int64_t count = std::min(length, whole.numel() - first);
    for (size_t i = 0; i < all.size(); ++i) {
      pieces[i] = all[i].reshape(-1).narrow(0, first, count);
    }
    reduce_piece(whole.narrow(0, first, count), pieces, op);
  }
}

/// The slice of member `rank` of each tensor.
Tensors slices(const Tensors& all, int rank) {
  Tensors mine;
  for (const auto& tensor : all) {
    mine.push_back(tensor.chunk(static_cast<int64_t>(all.size()), 0)[static_cast<size_t>(rank)]);
  }
  return mine;
}

void copy_rows(const at::Tensor& output, const Tensors& all) {
  const auto pieces = output.chunk(static_cast<int64_t>(all.size()), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    pieces[i].copy_(all[i]);
  }
}

class ExchangeBackend : public c10d::Backend {
public:
  ExchangeBackend(std::shared_ptr<TensorExchange> exchange, std::string name, int rank, int size)
      : c10d::Backend(rank, size)
      , exchange_(std::move(exchange))
      , name_(std::move(name)) {}

  const std::string getBackendName() const override { return name_; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return exchanged(
        "all-reduce",
        tensors[0],
        [output = tensors[0], op = options.reduceOp](const Tensors& all) {
          reduce_by_pieces(output, all, op);
        }
    );
  }

  WorkPtr
  _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    return exchanged("all-gather", input, [output](const Tensors& all) { copy_rows(output, all); });
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options
  ) override {
    return exchanged(
        "reduce-scatter",
        input,
        [output, rank = getRank(), op = options.reduceOp](const Tensors& all) {
          reduce_by_pieces(output, slices(all, rank), op);
        }
    );
  }

  WorkPtr alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_rows,
      std::vector<int64_t>& input_rows,
      const c10d::AllToAllOptions& /*options*/
  ) override {
    if (!output_rows.empty() || !input_rows.empty()) {
      return exchanged_rows(output, input, output_rows, input_rows);
    }
    return exchanged("all-to-all", input, [output, rank = getRank()](const Tensors& all) {
      copy_rows(output, slices(all, rank));
    });
  }

  WorkPtr send(Tensors& tensors, int to, int) override {
    const at::NoGradGuard no_grad;
    finish_what_is_ready();
    exchange_->send(tensors[0], to);
    return c10::make_intrusive<Posted>();
  }

  WorkPtr recv(Tensors& tensors, int from, int) override {
    const int64_t number = exchange_->expect(from);
    return posted(
        [exchange = exchange_, from, number] { return exchange->arrived(from, number); },
        [exchange = exchange_, from, number, into = tensors[0]] {
          exchange->receive(from, number, into);
        }
    );
  }

private:
  WorkPtr exchanged(const char* what, const at::Tensor& mine, TensorExchange::Use use) {
    const at::NoGradGuard no_grad;
    finish_what_is_ready();
    const int64_t round = exchange_->show(what, mine);
    return posted(
        [exchange = exchange_, round] { return exchange->shown(round); },
        [exchange = exchange_, round, mine, use = std::move(use)] {
          exchange->read(round, mine, use);
        }
    );
  }

  /// Uneven slices: a tensor to each member, and one from each.
  WorkPtr exchanged_rows(
      const at::Tensor& output,
      const at::Tensor& input,
      const std::vector<int64_t>& output_rows,
      const std::vector<int64_t>& input_rows
  ) {
    std::vector<WorkPtr> arrivals;
    int64_t to_row = 0, from_row = 0;
    for (int member = 0; member < getSize(); ++member) {
      const auto at = static_cast<size_t>(member);
      Tensors out{input.narrow(0, from_row, input_rows[at])};
      Tensors in{output.narrow(0, to_row, output_rows[at])};
      (void)send(out, member, 0);
      arrivals.push_back(recv(in, member, 0));
      from_row += input_rows[at];
      to_row += output_rows[at];
    }
    auto all = c10::make_intrusive<Posted>();
    all->finish = [arrivals] {
      for (const auto& arrival : arrivals) {
        arrival->wait();
      }
    };
    return all;
  }

  WorkPtr posted(std::function<bool()> ready, std::function<void()> finish) {
    auto work = c10::make_intrusive<Posted>();
    work->ready = std::move(ready);
    work->finish = std::move(finish);
    unfinished_.push_back(work);
    return work;
  }

  /// Lets go of what others have shown, and of the copies that they made of ours.
  void finish_what_is_ready() {
    std::erase_if(unfinished_, [](const auto& work) {
      if (!work->isCompleted() && work->ready()) {
        work->end();
      }
      return work->isCompleted();
    });
  }

  std::shared_ptr<TensorExchange> exchange_;
  std::string name_;
  std::deque<c10::intrusive_ptr<Posted>> unfinished_;
};

} // namespace

c10::intrusive_ptr<c10d::Backend>
exchange_backend(std::shared_ptr<TensorExchange> exchange, std::string name, int rank, int size) {
  return c10::make_intrusive<ExchangeBackend>(std::move(exchange), std::move(name), rank, size);
}

} // namespace mh
