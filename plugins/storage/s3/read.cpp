#include "objects.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace s3 {

namespace {

constexpr uint64_t kBlock = 256 << 10;                          // read at least, and kept
constexpr uint64_t kLeastRange = 1 << 20, kMostRange = 8 << 20; // bytes of a concurrent request

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
    block_.resize(kBlock);
    Request first = ranged(0, block_);
    const Reply reply = client_->ask(first);
    if (reply.status == 416) { // no byte can be asked of an empty object
      block_.clear();
      return;
    }
    if (!reply.ok()) {
      throw client_->error(first, reply);
    }
    const auto size = reply.status == 206 ? whole_size(reply.header("content-range"))
                                          : std::optional<uint64_t>(reply.received);
    if (!size || reply.received != std::min(*size, kBlock)) {
      throw cut_short(first, "its size is not told");
    }
    size_ = *size;
    block_.resize(reply.received);
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
    if (wanted.empty()) {
      return 0;
    }
    if (offset >= begin_ && offset < begin_ + block_.size()) {
      return copy_from_block(offset, wanted);
    }
    if (wanted.size() < kBlock) {
      begin_ = offset;
      block_.resize(std::min(kBlock, left));
      const std::span<std::byte> block = block_;
      try {
        fetch(offset, block);
      } catch (...) {
        block_.clear();
        throw;
      }
      return copy_from_block(offset, wanted);
    }
    const auto threads = static_cast<size_t>(client_->options().connections);
    const uint64_t range = std::clamp(wanted.size() / threads + 1, kLeastRange, kMostRange);
    in_parallel((wanted.size() + range - 1) / range, threads, [&](size_t i) {
      const uint64_t at = i * range;
      fetch(offset + at, wanted.subspan(at, std::min(range, wanted.size() - at)));
    });
    return wanted.size();
  }

private:
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

  size_t copy_from_block(uint64_t offset, std::span<std::byte> into) const {
    const uint64_t at = offset - begin_;
    const size_t count = std::min<uint64_t>(into.size(), block_.size() - at);
    std::memcpy(into.data(), block_.data() + at, count);
    return count;
  }

  std::shared_ptr<StoreClient> client_;
  Request request_;
  uint64_t size_ = 0;
  uint64_t begin_ = 0; ///< offset of the block
  std::vector<std::byte> block_;
};

} // namespace

std::unique_ptr<mh::ReadFile>
open_object(std::shared_ptr<StoreClient> client, const mh::Path& path) {
  return std::make_unique<Object>(std::move(client), path);
}

} // namespace s3
