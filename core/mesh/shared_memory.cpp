#include "core/mesh/shared_memory.hpp"

#include "core/base/seconds.hpp"
#include "core/mesh/exchange.hpp"
#include "core/mesh/store_text.hpp"

#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace mh {

namespace {

constexpr const char* kName = "megahost-rank";
constexpr size_t kSlots = 256; // tensors of a channel that others have not read
constexpr uint64_t kAlign = 64;
constexpr uint64_t kGrowth = 1 << 20;
constexpr int kSpins = 200;
// A sleeper looks this often whether the other lives.
constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 100'000'000};

/// One tensor in a member's memory. Its number is written last: it says that the tensor is there.
struct SharedSlot {
  std::atomic<uint64_t> number{0}; // from 1
  uint64_t offset = 0, bytes = 0;
  std::array<char, 16> what{};
  std::atomic<uint32_t> unread{0}; // members that will still read it
};

using SharedChannel = std::array<SharedSlot, kSlots>;

/// The head of a member's memory: a bell that it rings when a slot is written, and its channels: to
/// all, and to each member.
struct SharedHead {
  std::array<char, 40> token{};
  std::atomic<uint32_t> bell{0}, sleepers{0};

  static size_t bytes(size_t members) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (sizeof(SharedHead) + (members + 1) * sizeof(SharedChannel) + page - 1) / page * page;
  }

  SharedSlot& slot(size_t channel, int64_t number) {
    auto* const channels = reinterpret_cast<SharedChannel*>(this + 1);
    return channels[channel][static_cast<size_t>(number) % kSlots];
  }
};

static_assert(
    std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free
);

std::runtime_error failed(const std::string& call) {
  return std::runtime_error(call + ": " + std::strerror(errno));
}

std::string waited_text(std::chrono::milliseconds time) {
  return time.count() % 1000 == 0 ? std::to_string(time.count() / 1000) + " s"
                                  : std::to_string(time.count()) + " ms";
}

struct SharedFile {
  int number = -1;

  explicit SharedFile(int fd)
      : number(fd) {}

  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  ~SharedFile() {
    if (number >= 0) {
      close(number);
    }
  }
};

/// The memory of one member, of which it alone writes tensors. It holds a lock on the file while it
/// lives.
class SharedSegment {
public:
  SharedSegment(int fd, size_t members)
      : fd_(fd)
      , head_bytes_(SharedHead::bytes(members)) {
    struct stat file {};

    if (fd_.number >= 0 && fstat(fd_.number, &file) == 0 &&
        file.st_size >= static_cast<off_t>(head_bytes_)) {
      void* const at =
          mmap(nullptr, head_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.number, 0);
      head_ = at == MAP_FAILED ? nullptr : static_cast<SharedHead*>(at);
    }
  }

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  ~SharedSegment() {
    if (head_ != nullptr) {
      munmap(head_, head_bytes_);
    }
    if (data_ != nullptr) {
      munmap(data_, data_bytes_);
    }
  }

  /// One of our own, of zeros.
  static std::unique_ptr<SharedSegment> make(size_t members) {
    const int fd = memfd_create(kName, MFD_CLOEXEC);

    struct flock whole {};

    whole.l_type = F_WRLCK;
    if (fd >= 0 && (ftruncate(fd, static_cast<off_t>(SharedHead::bytes(members))) != 0 ||
                    fcntl(fd, F_SETLK, &whole) != 0)) {
      close(fd);
      return std::make_unique<SharedSegment>(-1, members);
    }
    return std::make_unique<SharedSegment>(fd, members);
  }

  [[nodiscard]] int fd() const { return fd_.number; }

  /// Null: it could not be opened.
  [[nodiscard]] SharedHead* head() const { return head_; }

  /// Its bytes from `offset` on, which the owner has written.
  char* at(uint64_t offset, uint64_t bytes) {
    if (offset + bytes > data_bytes_) {
      struct stat file {};

      if (fstat(fd_.number, &file) != 0) {
        throw failed("fstat of shared memory");
      }
      map(static_cast<uint64_t>(file.st_size) - head_bytes_);
      if (offset + bytes > data_bytes_) {
        throw std::runtime_error("shared memory is shorter than what lies in it");
      }
    }
    return data_ + offset;
  }

  /// Makes it larger.
  void grow(uint64_t bytes) {
    if (bytes <= data_bytes_) {
      return;
    }
    const uint64_t wanted = (bytes + kGrowth - 1) / kGrowth * kGrowth;
    do {
      errno = posix_fallocate(
          fd_.number,
          static_cast<off_t>(head_bytes_ + data_bytes_),
          static_cast<off_t>(wanted - data_bytes_)
      );
    } while (errno == EINTR); // a signal that the run handles
    if (errno != 0) {
      throw failed("shared memory of " + std::to_string(wanted) + " bytes");
    }
    map(wanted);
  }

  /// Whether its owner's process has ended, or left the group.
  [[nodiscard]] bool left() const {
    struct flock whole {};

    whole.l_type = F_WRLCK;
    return fcntl(fd_.number, F_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
  }

private:
  void map(uint64_t bytes) {
    if (data_ != nullptr) {
      munmap(data_, data_bytes_);
      data_ = nullptr;
    }
    void* const at = mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_SHARED,
        fd_.number,
        static_cast<off_t>(head_bytes_)
    );
    if (at == MAP_FAILED) {
      data_bytes_ = 0;
      throw failed("shared memory of " + std::to_string(bytes) + " bytes");
    }
    data_ = static_cast<char*>(at);
    data_bytes_ = bytes;
  }

  SharedFile fd_;
  size_t head_bytes_;
  SharedHead* head_ = nullptr;
  char* data_ = nullptr;
  uint64_t data_bytes_ = 0;
};

/// The places in our own memory that hold tensors which others have not read.
class SegmentPlaces {
public:
  /// The first place that is free.
  uint64_t take(uint64_t bytes, const SharedSlot& slot) {
    std::erase_if(taken_, [](const auto& place) {
      return place.second.slot->unread.load(std::memory_order_acquire) == 0;
    });
    const uint64_t size = std::max(kAlign, (bytes + kAlign - 1) / kAlign * kAlign);
    uint64_t offset = 0;
    for (const auto& [at, place] : taken_) {
      if (at - offset >= size) {
        break;
      }
      offset = at + place.bytes;
    }
    taken_.emplace(offset, Taken{size, &slot});
    return offset;
  }

private:
  struct Taken {
    uint64_t bytes = 0;
    const SharedSlot* slot = nullptr;
  };

  std::map<uint64_t, Taken> taken_; // by offset
};

class SharedMemory : public TensorExchange {
public:
  SharedMemory(SharedMemoryTerms terms, std::vector<std::unique_ptr<SharedSegment>> memories)
      : terms_(std::move(terms))
      , memories_(std::move(memories))
      , sent_(memories_.size())
      , expected_(memories_.size()) {}

  int64_t show(const char* what, const at::Tensor& tensor) override {
    write(0, rounds_, what, tensor, memories_.size());
    return rounds_++;
  }

  bool shown(int64_t round) override {
    for (size_t member = 0; member < memories_.size(); ++member) {
      if (!written(member, 0, round)) {
        return false;
      }
    }
    return true;
  }

  void read(int64_t round, const at::Tensor& like, const Use& use) override {
    const char* const what = head(own()).slot(0, round).what.data();
    std::vector<at::Tensor> all;
    for (size_t member = 0; member < memories_.size(); ++member) {
      all.push_back(tensor_of(member, 0, round, what, like));
    }
    use(all);
    for (size_t member = 0; member < memories_.size(); ++member) {
      let_go(member, 0, round);
    }
  }

  void send(const at::Tensor& tensor, int to) override {
    const auto channel = static_cast<size_t>(to);
    write(channel + 1, sent_[channel]++, "send", tensor, 1);
  }

  int64_t expect(int from) override { return expected_[static_cast<size_t>(from)]++; }

  bool arrived(int from, int64_t number) override {
    return written(static_cast<size_t>(from), own() + 1, number);
  }

  void receive(int from, int64_t number, const at::Tensor& into) override {
    const auto member = static_cast<size_t>(from);
    into.copy_(tensor_of(member, own() + 1, number, "send", into));
    let_go(member, own() + 1, number);
  }

private:
  [[nodiscard]] size_t own() const { return static_cast<size_t>(terms_.member); }

  [[nodiscard]] SharedHead& head(size_t member) const { return *memories_[member]->head(); }

  [[nodiscard]] std::string rank_of(size_t member) const {
    return "rank " + std::to_string(terms_.ranks[member]);
  }

  [[nodiscard]] bool written(size_t member, size_t channel, int64_t number) const {
    return head(member).slot(channel, number).number.load(std::memory_order_acquire) ==
           static_cast<uint64_t>(number) + 1;
  }

  void write(
      size_t channel, int64_t number, const char* what, const at::Tensor& tensor, size_t readers
  ) {
    SharedHead& mine = head(own());
    SharedSlot& slot = mine.slot(channel, number);
    const auto end = Clock::now() + terms_.timeout;
    while (slot.unread.load(std::memory_order_acquire) != 0) { // all slots are full
      if (Clock::now() > end) {
        throw std::runtime_error("nothing was read for " + waited_text(terms_.timeout));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    slot.bytes = tensor.nbytes();
    slot.offset = places_.take(slot.bytes, slot);
    slot.what = {};
    std::strncpy(slot.what.data(), what, slot.what.size() - 1);
    memories_[own()]->grow(slot.offset + std::max(slot.bytes, kAlign));
    at::from_blob(memories_[own()]->at(slot.offset, slot.bytes), tensor.sizes(), tensor.options())
        .copy_(tensor);
    slot.unread.store(static_cast<uint32_t>(readers), std::memory_order_relaxed);
    slot.number.store(static_cast<uint64_t>(number) + 1, std::memory_order_release);
    mine.bell.fetch_add(1);
    if (mine.sleepers.load() != 0) {
      syscall(SYS_futex, &mine.bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    }
  }

  /// The tensor that a member has written, in its memory.
  at::Tensor tensor_of(
      size_t member, size_t channel, int64_t number, std::string_view what, const at::Tensor& like
  ) {
    await(member, [&] { return written(member, channel, number); });
    const SharedSlot& slot = head(member).slot(channel, number);
    const std::string_view its = slot.what.data();
    if (its != what || slot.bytes != like.nbytes()) {
      throw std::runtime_error(
          rank_of(member) + " is at another one: " + std::string(its) + " of " +
          std::to_string(slot.bytes) + " bytes, here " + std::string(what) + " of " +
          std::to_string(like.nbytes()) + " bytes"
      );
    }
    return at::from_blob(
        memories_[member]->at(slot.offset, slot.bytes), like.sizes(), like.options()
    );
  }

  void let_go(size_t member, size_t channel, int64_t number) {
    head(member).slot(channel, number).unread.fetch_sub(1, std::memory_order_release);
  }

  /// Waits for what a member will write; not for one that has left.
  template <class Ready>
  void await(size_t member, const Ready& ready) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (ready()) {
        return;
      }
    }
    SharedHead& its = head(member);
    const auto end = Clock::now() + terms_.timeout;
    while (true) {
      const uint32_t heard = its.bell.load();
      if (ready()) {
        return;
      }
      its.sleepers.fetch_add(1);
      syscall(SYS_futex, &its.bell, FUTEX_WAIT, heard, &kLook, nullptr, 0);
      its.sleepers.fetch_sub(1);
      const bool left = memories_[member]->left() && member != own();
      if (ready()) {
        return;
      }
      if (left) {
        throw std::runtime_error(rank_of(member) + " has ended");
      }
      if (Clock::now() > end) {
        throw std::runtime_error(
            "nothing came from " + rank_of(member) + " for " + waited_text(terms_.timeout)
        );
      }
    }
  }

  SharedMemoryTerms terms_;
  std::vector<std::unique_ptr<SharedSegment>> memories_; // by member
  SegmentPlaces places_;
  int64_t rounds_ = 0;
  std::vector<int64_t> sent_, expected_; // to and from each member
};

std::string random_token() {
  std::random_device device;
  std::ostringstream text;
  for (int word = 0; word < 4; ++word) {
    text << std::hex << device();
  }
  return text.str();
}

/// The boot of this machine: containers of one machine have the same.
std::string boot() {
  std::string id = "unknown";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

/// Where a member's memory is found, as it says itself: machine, path and token, a line each.
struct SegmentNotice {
  std::string machine, path, token;

  [[nodiscard]] std::string text() const { return machine + "\n" + path + "\n" + token; }

  static SegmentNotice parse(const std::string& text) {
    SegmentNotice found;
    std::istringstream lines(text);
    std::getline(lines, found.machine);
    std::getline(lines, found.path);
    std::getline(lines, found.token);
    return found;
  }
};

std::unique_ptr<SharedSegment> open_segment(const SegmentNotice& announced, size_t members) {
  std::error_code unreadable; // a process of another container may have the same number
  if (!std::filesystem::read_symlink(announced.path, unreadable)
           .string()
           .starts_with(std::string("/memfd:") + kName)) {
    return nullptr;
  }
  auto memory =
      std::make_unique<SharedSegment>(open(announced.path.c_str(), O_RDWR | O_CLOEXEC), members);
  const bool right = memory->head() != nullptr && memory->head()->token.data() == announced.token;
  return right ? std::move(memory) : nullptr;
}

} // namespace

c10::intrusive_ptr<c10d::Backend>
make_shared_memory(const c10::intrusive_ptr<c10d::Store>& store, const SharedMemoryTerms& terms) {
  const size_t members = terms.ranks.size();
  const auto key = [](const char* what, size_t member) { return what + std::to_string(member); };
  const auto own = static_cast<size_t>(terms.member);
  auto memory = SharedSegment::make(members);
  SegmentNotice mine{terms.machine + " " + boot(), "", random_token()};
  if (memory->head() != nullptr) {
    std::strncpy(
        memory->head()->token.data(), mine.token.c_str(), memory->head()->token.size() - 1
    );
    mine.path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(memory->fd());
  }
  store->set(key("memory of ", own), bytes_of(mine.text()));
  std::vector<SegmentNotice> announced;
  for (size_t member = 0; member < members; ++member) {
    announced.push_back(SegmentNotice::parse(text_of(store->get(key("memory of ", member)))));
    if (announced.back().machine != mine.machine) {
      return {};
    }
  }
  std::vector<std::unique_ptr<SharedSegment>> memories;
  for (size_t member = 0; member < members; ++member) {
    memories.push_back(
        member == own ? std::move(memory) : open_segment(announced[member], members)
    );
  }
  const bool all = std::all_of(memories.begin(), memories.end(), [](const auto& one) {
    return one != nullptr && one->head() != nullptr;
  });
  store->set(key("memory opened by ", own), bytes_of(all ? "all" : "not all"));
  for (size_t member = 0; member < members; ++member) {
    if (text_of(store->get(key("memory opened by ", member))) != "all") {
      return {};
    }
  }
  return exchange_backend(
      std::make_shared<SharedMemory>(terms, std::move(memories)),
      "shared memory",
      terms.member,
      static_cast<int>(members)
  );
}

} // namespace mh
