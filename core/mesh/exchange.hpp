#pragma once
/// Collectives among members that can show each other tensors: ranks that are threads of one
/// process, or processes of one machine.

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}

namespace mh {

/// A place where the members of a group show tensors to all, in rounds, and send them to one
/// another.
///
/// Thread:  one of each member
class TensorExchange {
public:
  /// Tensors that are read where they lie; they are gone when the function returns.
  using Use = std::function<void(const std::vector<at::Tensor>& all)>;

  virtual ~TensorExchange() = default;

  /// Shows all members a tensor, which may change afterwards.
  ///
  /// `what`: name of the collective, at most 15 letters; that of all members
  /// Returns: the number of the round
  virtual int64_t show(const char* what, const at::Tensor& tensor) = 0;

  /// Whether `read` would not wait.
  [[nodiscard]] virtual bool shown(int64_t round) = 0;

  /// Waits until all members have shown their tensor; `use` gets them in the order of members. Each
  /// round is read once.
  ///
  /// `like`: a tensor of their size and type
  virtual void read(int64_t round, const at::Tensor& like, const Use& use) = 0;

  /// Sends a tensor, which may change afterwards.
  virtual void send(const at::Tensor& tensor, int to) = 0;

  /// The number of the next tensor that comes from a member.
  virtual int64_t expect(int from) = 0;

  /// Whether `receive` would not wait.
  [[nodiscard]] virtual bool arrived(int from, int64_t number) = 0;

  /// Waits for a tensor, once.
  virtual void receive(int from, int64_t number, const at::Tensor& into) = 0;
};

/// Sums are taken in the order of members: all have the same bits, whatever their number of
/// threads. A collective ends when it is waited for, or when another one begins and all members
/// have shown their tensor by then.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend>
exchange_backend(std::shared_ptr<TensorExchange> exchange, std::string name, int rank, int size);

} // namespace mh
