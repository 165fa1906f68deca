#include "core/step/transfers.hpp"

#include <algorithm>
#include <utility>

namespace mh {

Arrival from_here(std::vector<at::Tensor> tensors) {
  Arrival arrival;
  for (auto& tensor : tensors) {
    arrival.tensors.emplace_back(std::move(tensor));
  }
  return arrival;
}

void Transfers::Peer::release_oldest() {
  for (auto& tensor : sent.front().tensors) {
    (void)tensor.wait();
  }
  sent.pop_front();
}

void Transfers::send(int64_t to, const std::vector<at::Tensor>& tensors) {
  Peer& peer = peers_[to];
  const auto over = [&] {
    return std::all_of(
        peer.sent.front().tensors.begin(),
        peer.sent.front().tensors.end(),
        [](const Pending& tensor) { return tensor.done(); }
    );
  };
  while (!peer.sent.empty() && (peer.sent.size() >= most_ahead_ || over())) {
    peer.release_oldest();
  }
  Sent& sent = peer.sent.emplace_back();
  sent.number = peer.posted++;
  for (const auto& tensor : tensors) {
    sent.tensors.push_back(stages_.send(tensor, to));
  }
}

Arrival Transfers::receive(int64_t from, const std::vector<at::Tensor>& room) {
  Arrival arrival{from, peers_[from].posted++};
  for (const auto& tensor : room) {
    arrival.tensors.push_back(stages_.receive(tensor, from));
  }
  return arrival;
}

std::vector<at::Tensor> Transfers::wait(Arrival arrival) {
  std::vector<at::Tensor> tensors;
  for (auto& pending : arrival.tensors) {
    tensors.push_back(pending.wait());
  }
  if (arrival.from >= 0) {
    Peer& peer = peers_[arrival.from];
    while (!peer.sent.empty() && peer.sent.front().number < arrival.number) {
      peer.release_oldest();
    }
  }
  return tensors;
}

void Transfers::finish() {
  for (auto& [stage, peer] : peers_) {
    while (!peer.sent.empty()) {
      peer.release_oldest();
    }
  }
}

} // namespace mh
