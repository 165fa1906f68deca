#include "core/checkpoint/shared_read.hpp"

#include "core/base/host_name.hpp"
#include "core/checkpoint/box.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <utility>

namespace mh {

namespace {

/// Boxes that a rank asks for, by tensor, in the order of its slices.
using WantedBoxes = std::map<size_t, std::vector<Box>>;

std::string packed(const WantedBoxes& wanted) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [tensor, boxes] : wanted) {
    for (const Box& box : boxes) {
      all.push_back({tensor, box.offset, box.shape});
    }
  }
  std::string bytes;
  nlohmann::json::to_cbor(all, bytes);
  return bytes;
}

WantedBoxes unpacked(const std::string& bytes) {
  WantedBoxes wanted;
  for (const nlohmann::json& one : nlohmann::json::from_cbor(bytes)) {
    wanted[one[0]].push_back({one[1], one[2]});
  }
  return wanted;
}

void send_text(const Group& group, const std::string& text, int64_t to) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<uint8_t>(), text.data(), text.size());
  group.send(at::full({1}, bytes.numel(), at::kLong), to).wait();
  group.send(bytes, to).wait();
}

std::string receive_text(const Group& group, int64_t from) {
  const int64_t size = group.receive(at::empty({1}, at::kLong), from).wait().item().toLong();
  const at::Tensor bytes = group.receive(at::empty({size}, at::kByte), from).wait();
  return {
      reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()), static_cast<size_t>(size)};
}

/// The bytes of a tensor, one after the other.
at::Tensor flat_bytes(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}

int64_t elements(const std::vector<Box>& boxes) {
  int64_t sum = 0;
  for (const Box& box : boxes) {
    sum += box.elements();
  }
  return sum;
}

/// The ranks of this machine, and what each does.
class SharedRead {
public:
  SharedRead(
      CheckpointReader& saved,
      std::span<const Slice> slices,
      const Group& group,
      std::vector<int64_t> peers
  )
      : saved_(saved)
      , group_(group)
      , peers_(std::move(peers))
      , me_(static_cast<size_t>(
            std::find(peers_.begin(), peers_.end(), group.index()) - peers_.begin()
        ))
      , boxes_(saved.boxes()) {
    wanted_.resize(peers_.size());
    for (const Slice& slice : slices) {
      const auto tensor = static_cast<size_t>(saved.find(slice.name) - saved.tensors().data());
      wanted_[me_][tensor].push_back({slice.offset, slice.local.sizes().vec()});
      locals_[tensor].push_back(slice.local);
    }
    exchange();
    choose_readers();
  }

  /// Round after round each rank reads one box of its own, and all send what was read.
  void run() {
    size_t rounds = 0;
    for (const auto& reads : reads_of_) {
      rounds = std::max(rounds, reads.size());
    }
    for (size_t round = 0; round < rounds; ++round) {
      const at::Tensor read =
          round < reads_of_[me_].size() ? read_box(boxes_[reads_of_[me_][round]]) : at::Tensor();
      for (size_t reader = 0; reader < peers_.size(); ++reader) {
        if (round < reads_of_[reader].size()) {
          hand_out(boxes_[reads_of_[reader][round]], reader, read);
        }
      }
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

private:
  /// Each rank shows the others what it asks for.
  void exchange() {
    const std::string mine = packed(wanted_[me_]);
    for (size_t from = 0; from < peers_.size(); ++from) {
      for (size_t to = 0; to < peers_.size(); ++to) {
        if (from == to) {
          continue;
        }
        if (from == me_) {
          send_text(group_, mine, peers_[to]);
        } else if (to == me_) {
          wanted_[from] = unpacked(receive_text(group_, peers_[from]));
        }
      }
    }
  }

  [[nodiscard]] const CheckpointTensor& tensor_of(const StoredBox& box) const {
    return saved_.tensors()[box.tensor];
  }

  /// The intersections of the boxes that a rank asks for with a stored one, in their order.
  [[nodiscard]] std::vector<Box> parts(const StoredBox& box, size_t peer) const {
    std::vector<Box> parts;
    if (const auto asked = wanted_[peer].find(box.tensor); asked != wanted_[peer].end()) {
      for (const Box& one : asked->second) {
        parts.push_back(one.common({box.offset, box.shape}));
      }
    }
    return parts;
  }

  /// Chooses the rank that reads each file, on every rank alike: the one that asks for most of it;
  /// of those that ask for as much, the one that reads least.
  void choose_readers() {
    std::map<size_t, std::vector<size_t>> files;
    for (size_t i = 0; i < boxes_.size(); ++i) {
      files[boxes_[i].file].push_back(i);
    }
    reads_of_.resize(peers_.size());
    std::vector<int64_t> load(peers_.size(), 0);
    for (const auto& [file, inside] : files) {
      std::vector<int64_t> asked(peers_.size(), 0);
      std::vector<size_t> needed;
      int64_t bytes = 0;
      for (const size_t i : inside) {
        const auto size = static_cast<int64_t>(c10::elementSize(tensor_of(boxes_[i]).dtype));
        bool any = false;
        for (size_t peer = 0; peer < peers_.size(); ++peer) {
          const int64_t wants = elements(parts(boxes_[i], peer)) * size;
          asked[peer] += wants;
          any = any || wants > 0;
        }
        if (any) {
          needed.push_back(i);
          bytes += c10::multiply_integers(boxes_[i].shape) * size;
        }
      }
      size_t best = 0;
      for (size_t peer = 1; peer < peers_.size(); ++peer) {
        if (asked[peer] > asked[best] || (asked[peer] == asked[best] && load[peer] < load[best])) {
          best = peer;
        }
      }
      load[best] += bytes;
      reads_of_[best].insert(reads_of_[best].end(), needed.begin(), needed.end());
    }
  }

  /// After a failure the others are sent zeros: they wait for something.
  at::Tensor read_box(const StoredBox& box) {
    const auto& tensor = tensor_of(box);
    const at::Tensor local = at::zeros(box.shape, at::TensorOptions(tensor.dtype));
    const Slice slice{tensor.name, tensor.shape, box.offset, local};
    if (!failure_) {
      try {
        saved_.read({&slice, 1});
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      }
    }
    return local;
  }

  void hand_out(const StoredBox& box, size_t reader, const at::Tensor& read) {
    const Box whole{box.offset, box.shape};
    if (reader != me_) {
      receive(box, reader);
      return;
    }
    std::vector<Pending> sent;
    std::vector<at::Tensor> kept; // until they are sent
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      std::vector<at::Tensor> pieces;
      const auto asked = parts(box, peer);
      for (const Box& part : asked) {
        pieces.push_back(whole.cut(read, part));
      }
      if (peer == me_) {
        fill(box, pieces);
      } else if (elements(asked) > 0) {
        for (auto& piece : pieces) {
          piece = flat_bytes(piece);
        }
        kept.push_back(at::cat(pieces));
        sent.push_back(group_.send(kept.back(), peers_[peer]));
      }
    }
    for (auto& one : sent) {
      one.wait();
    }
  }

  void receive(const StoredBox& box, size_t reader) {
    const auto mine = parts(box, me_);
    const at::ScalarType dtype = tensor_of(box).dtype;
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    const int64_t bytes = elements(mine) * size;
    if (bytes == 0) {
      return;
    }
    const at::Tensor all = group_.receive(at::empty({bytes}, at::kByte), peers_[reader]).wait();
    std::vector<at::Tensor> pieces;
    int64_t begin = 0;
    for (const Box& part : mine) {
      const int64_t length = part.elements() * size;
      pieces.push_back(all.narrow(0, begin, length).view(dtype).view(part.shape));
      begin += length;
    }
    fill(box, pieces);
  }

  /// Writes what this rank's slices have of a box into them.
  void fill(const StoredBox& box, const std::vector<at::Tensor>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Box& own = wanted_[me_].at(box.tensor)[i];
      const Box part = own.common({box.offset, box.shape});
      if (part.elements() > 0) {
        own.cut(locals_.at(box.tensor)[i], part).copy_(pieces[i]);
      }
    }
  }

  CheckpointReader& saved_;
  const Group& group_;
  std::vector<int64_t> peers_; // members of the group on this machine
  size_t me_;                  // among them
  std::vector<StoredBox> boxes_;
  std::vector<WantedBoxes> wanted_;                  // by peer
  std::map<size_t, std::vector<at::Tensor>> locals_; // as this rank's `wanted_`
  std::vector<std::vector<size_t>> reads_of_;        // boxes, by peer
  std::exception_ptr failure_;
};

} // namespace

std::string machine_word() {
  std::string boot; // machines may have one name, and none of their own in containers
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? host_name() : boot;
}

void read_together(
    CheckpointReader& saved,
    std::span<const Slice> slices,
    const Ranks& ranks,
    const std::string& machine
) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> peers;
  if (ranks.group != nullptr) {
    const auto machines = ranks.gather(machine);
    for (size_t rank = 0; rank < machines.size(); ++rank) {
      if (machines[rank] == machine) {
        peers.push_back(static_cast<int64_t>(rank));
      }
    }
  }
  if (peers.size() < 2) {
    saved.read(slices);
    return;
  }
  SharedRead(saved, slices, *ranks.group, std::move(peers)).run();
}

} // namespace mh
