#include "core/checkpoint/shared_read.hpp"

#include "core/base/host_name.hpp"
#include "core/checkpoint/box.hpp"
#include "core/checkpoint/format.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
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
      const size_t tensor = index_of(saved, *saved.find(slice.name));
      wanted_[me_][tensor].push_back({slice.offset, slice.local.sizes().vec()});
      locals_[tensor].push_back(slice.local);
    }
    exchange();
    choose_readers();
  }

  /// Memory of all rounds, so that no rank runs out of it while others wait for what it sends.
  void allocate() {
    std::vector<int64_t> sent(peers_.size());
    int64_t read = 0, received = 0;
    for (size_t reader = 0; reader < peers_.size(); ++reader) {
      for (const size_t i : reads_of_[reader]) {
        const StoredBox& box = boxes_[i];
        if (reader != me_) {
          received = std::max(received, bytes_of(box, parts(box, me_)));
          continue;
        }
        read = std::max(read, bytes_of(box, {Box{box.offset, box.shape}}));
        for (size_t peer = 0; peer < peers_.size(); ++peer) {
          sent[peer] = std::max(sent[peer], peer == me_ ? 0 : bytes_of(box, parts(box, peer)));
        }
      }
    }
    const auto bytes = [](int64_t size) { return at::empty({size}, at::kByte); };
    read_ = bytes(read);
    received_ = bytes(received);
    std::transform(sent.begin(), sent.end(), std::back_inserter(sent_), bytes);
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

  [[nodiscard]] int64_t bytes_of(const StoredBox& box, const std::vector<Box>& parts) const {
    return elements(parts) * static_cast<int64_t>(c10::elementSize(tensor_of(box).dtype));
  }

  /// The parts of a box, one after the other in a buffer.
  [[nodiscard]] std::vector<at::Tensor>
  parts_in(const at::Tensor& buffer, const StoredBox& box, const std::vector<Box>& parts) const {
    std::vector<at::Tensor> views;
    int64_t begin = 0;
    for (const Box& part : parts) {
      const int64_t length = bytes_of(box, {part});
      views.push_back(buffer.narrow(0, begin, length).view(tensor_of(box).dtype).view(part.shape));
      begin += length;
    }
    return views;
  }

  /// Does this rank's own part. A failure is told at the end: the others wait for what it sends.
  template <class Action>
  void attempt(const Action& action) {
    try {
      if (!failure_) {
        action();
      }
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
  }

  at::Tensor read_box(const StoredBox& box) {
    const auto& tensor = tensor_of(box);
    const at::Tensor local = parts_in(read_, box, {Box{box.offset, box.shape}}).front();
    const Slice slice{tensor.name, tensor.shape, box.offset, local};
    attempt([&] { saved_.read({&slice, 1}); });
    return local;
  }

  void hand_out(const StoredBox& box, size_t reader, const at::Tensor& read) {
    const Box whole{box.offset, box.shape};
    if (reader != me_) {
      receive(box, reader);
      return;
    }
    std::vector<Pending> sent;
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      std::vector<at::Tensor> pieces;
      const auto asked = parts(box, peer);
      for (const Box& part : asked) {
        pieces.push_back(whole.cut(read, part));
      }
      if (peer == me_) {
        fill(box, pieces);
      } else if (const int64_t bytes = bytes_of(box, asked); bytes > 0) {
        const auto views = parts_in(sent_[peer], box, asked);
        for (size_t i = 0; i < views.size(); ++i) {
          views[i].copy_(pieces[i]);
        }
        sent.push_back(group_.send(sent_[peer].narrow(0, 0, bytes), peers_[peer]));
      }
    }
    for (auto& one : sent) {
      one.wait();
    }
  }

  void receive(const StoredBox& box, size_t reader) {
    const auto mine = parts(box, me_);
    if (const int64_t bytes = bytes_of(box, mine); bytes > 0) {
      const at::Tensor all = group_.receive(received_.narrow(0, 0, bytes), peers_[reader]).wait();
      fill(box, parts_in(all, box, mine));
    }
  }

  /// Writes what this rank's slices have of a box into them.
  void fill(const StoredBox& box, const std::vector<at::Tensor>& pieces) {
    attempt([&] {
      for (size_t i = 0; i < pieces.size(); ++i) {
        const Box& own = wanted_[me_].at(box.tensor)[i];
        const Box part = own.common({box.offset, box.shape});
        if (part.elements() > 0) {
          own.cut(locals_.at(box.tensor)[i], part).copy_(pieces[i]);
        }
      }
    });
  }

  CheckpointReader& saved_;
  const Group& group_;
  std::vector<int64_t> peers_; // members of the group on this machine
  size_t me_;                  // among them
  std::vector<StoredBox> boxes_;
  std::vector<WantedBoxes> wanted_;                  // by peer
  std::map<size_t, std::vector<at::Tensor>> locals_; // as this rank's `wanted_`
  std::vector<std::vector<size_t>> reads_of_;        // boxes, by peer
  at::Tensor read_, received_;                       // bytes of the largest box, and of parts
  std::vector<at::Tensor> sent_;                     // by peer
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
  std::optional<SharedRead> shared;
  if (peers.size() > 1) {
    shared.emplace(saved, slices, *ranks.group, std::move(peers));
  }
  (void)together(ranks, [&] {
    if (shared) {
      shared->allocate();
    }
    return std::string();
  });
  if (shared) {
    shared->run();
  } else {
    saved.read(slices);
  }
}

} // namespace mh
