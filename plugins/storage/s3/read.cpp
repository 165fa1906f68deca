#include "objects.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <vector>

namespace s3 {

namespace {

constexpr uint64_t kLeastRead = 256 << 10; // bytes asked for at least, and kept
constexpr uint64_t kLeastRange = 1 << 20, kMostRange = 8 << 20; // bytes of a concurrent request
constexpr uint64_t kMostAhead = 64 << 20; // bytes of all requests of an object

std::string range_text(uint64_t begin, uint64_t size) {
  return "bytes=" + std::to_string(begin) + "-" + std::to_string(begin + size - 1);
}

/// The object's size in "bytes 0-99/12345".
std::optional<uint64_t> whole_size(const std::string& content_range) {
  const size_t slash = content_range.rfind('/');
  uint64_t size = 0;
  const char* end = content_range.data() + content_range.size();
  const bool known = slash != std::string::npos &&
                     std::from_chars(content_range.data() + slash + 1, end, size).ptr == end;
  return known ? std::optional(size) : std::nullopt;
}

class Object final : public mh::ReadFile {
public:
  Object(std::shared_ptr<StoreClient> client, const mh::Path& path)
      : client_(std::move(client))
      , request_{.action = "read", .path = path, .place = place_of(path)} {
    Ahead& begin = add(0, kLeastRead);
    const Request first = ranged(0, begin.into());
    const Reply reply = client_->ask(first);
    if (reply.status == 416) { // no byte can be asked of an empty object
      ahead_.clear();
      return;
    }
    if (!reply.ok()) {
      throw client_->error(first, reply);
    }
    const auto size = reply.status == 206 ? whole_size(reply.header("content-range"))
                                          : std::optional<uint64_t>(reply.received);
    if (!size || reply.received != std::min(*size, kLeastRead)) {
      throw cut_short(first, "its size is not told");
    }
    size_ = *size;
    begin.size = reply.received;
    request_.headers["if-match"] = reply.header("etag");
  }

  [[nodiscard]] uint64_t size() const override { return size_; }

  [[nodiscard]] std::string version() const override {
    const auto etag = request_.headers.find("if-match");
    return etag == request_.headers.end() ? "" : etag->second;
  }

  [[nodiscard]] size_t read(uint64_t offset, std::span<std::byte> into) override {
    const uint64_t left = size_ - std::min(offset, size_);
    const std::span<std::byte> wanted = into.first(std::min<uint64_t>(into.size(), left));
    in_order_ = offset == read_to_ ? in_order_ : 0;
    for (size_t done = 0; done < wanted.size();) {
      done += copy(offset + done, wanted.subspan(done));
    }
    in_order_ += wanted.size();
    read_to_ = offset + wanted.size();
    return wanted.size();
  }

private:
  /// Bytes that are there, or that are being read.
  struct Ahead {
    uint64_t begin;
    uint64_t size;
    std::unique_ptr<std::byte[]> bytes; // kMostRange, of which none is touched before it is needed
    std::future<void> read;             // invalid if the bytes are there

    [[nodiscard]] uint64_t end() const { return begin + size; }

    [[nodiscard]] std::span<std::byte> into() const { return {bytes.get(), size}; }
  };

  /// A range at the end of those ahead, in memory of one that was read.
  Ahead& add(uint64_t begin, uint64_t size) {
    if (spare_.empty()) {
      spare_.push_back(std::make_unique_for_overwrite<std::byte[]>(kMostRange));
    }
    ahead_.push_back({begin, size, std::move(spare_.back()), {}});
    spare_.pop_back();
    return ahead_.back();
  }

  void drop_first() {
    Ahead& first = ahead_.front();
    if (first.read.valid()) {
      first.read.wait();
    }
    spare_.push_back(std::move(first.bytes));
    ahead_.pop_front();
  }

  void drop_all() {
    while (!ahead_.empty()) {
      drop_first();
    }
  }

  /// Copies what the first range has of the bytes at `offset`.
  size_t copy(uint64_t offset, std::span<std::byte> into) {
    if (ahead_.empty() || offset < ahead_.front().begin || offset > ahead_.back().end()) {
      drop_all();
    }
    while (!ahead_.empty() && ahead_.front().end() <= offset) {
      drop_first();
    }
    ask_ahead(offset, into.size());
    const Ahead& first = ahead_.front();
    if (first.read.valid()) {
      try {
        ahead_.front().read.get();
      } catch (...) {
        drop_all();
        throw;
      }
    }
    const uint64_t at = offset - first.begin;
    const size_t count = std::min<uint64_t>(into.size(), first.size - at);
    std::memcpy(into.data(), first.bytes.get() + at, count);
    return count;
  }

  /// Asks for the bytes that are wanted, and for as many further ones as have been read in order:
  /// requests go on while the reader works, and at most half of all that is asked for is in vain.
  void ask_ahead(uint64_t offset, uint64_t wanted) {
    const auto most = static_cast<size_t>(client_->options().connections);
    const uint64_t reach = std::clamp(std::max(wanted, in_order_), kLeastRead, kMostAhead);
    const uint64_t range = std::clamp(reach / most, std::min(reach, kLeastRange), kMostRange);
    const uint64_t end = std::min(size_, offset + reach);
    uint64_t next = ahead_.empty() ? offset : ahead_.back().end();
    const bool waits = ahead_.empty() || ahead_.front().read.valid();
    const size_t ranges = most + (waits ? 0 : 1); // else the first is there, and copied from
    while (next < end && ahead_.size() < ranges) {
      Ahead& added = add(next, std::min(range, size_ - next));
      const std::span<std::byte> into = added.into();
      added.read = std::async(std::launch::async, [this, next, into] { fetch(next, into); });
      next = added.end();
    }
  }

  [[nodiscard]] Request ranged(uint64_t offset, std::span<std::byte> into) const {
    Request request = request_;
    request.headers["range"] = range_text(offset, into.size());
    request.into = into;
    return request;
  }

  static mh::StorageError cut_short(const Request& request, const std::string& reason) {
    return {request.action, request.path, EIO, "the answer is no part of it: " + reason, ""};
  }

  void fetch(uint64_t offset, std::span<std::byte> into) {
    const Request request = ranged(offset, into);
    const Reply reply = client_->require(request, {412});
    if (reply.status == 412) {
      throw mh::StorageError(
          request.action, request.path, ESTALE, "it was replaced while it was read", "read it again"
      );
    }
    if (reply.received != into.size()) {
      throw cut_short(request, std::to_string(reply.received) + " bytes");
    }
  }

  std::shared_ptr<StoreClient> client_;
  Request request_;
  uint64_t size_ = 0;
  uint64_t read_to_ = 0;  ///< end of the last read
  uint64_t in_order_ = 0; ///< bytes up to there that were read one after the other
  std::vector<std::unique_ptr<std::byte[]>> spare_;
  std::deque<Ahead> ahead_; ///< each begins where the one before ends
};

} // namespace

std::unique_ptr<mh::ReadFile>
open_object(std::shared_ptr<StoreClient> client, const mh::Path& path) {
  return std::make_unique<Object>(std::move(client), path);
}

} // namespace s3
