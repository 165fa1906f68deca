#include "core/formats/crc32c.hpp"
#include "objects.hpp"
#include "xml.hpp"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <future>
#include <optional>
#include <utility>

namespace s3 {

namespace {

constexpr size_t kMostParts = 10'000;

/// The four bytes of a CRC-32C, the highest first, in base 64.
std::string checksum_text(std::string_view bytes) {
  const uint32_t crc = mh::crc32c(bytes);
  std::string text;
  for (const int shift : {24, 16, 8, 0}) {
    text += static_cast<char>(crc >> shift & 0xff);
  }
  return base64(text);
}

struct UploadPart {
  std::string etag{}, checksum{};
  std::string bytes{}; ///< empty once it has landed: the memory is the next part's
};

class Writing final : public mh::Upload {
public:
  Writing(std::shared_ptr<StoreClient> client, const mh::Path& path, mh::Storage::Existing existing)
      : client_(std::move(client))
      , part_bytes_(static_cast<size_t>(client_->options().part_size) << 20)
      , request_{.action = "write", .path = path, .method = "PUT", .place = place_of(path)} {
    if (existing == mh::Storage::Existing::refuse) {
      condition_ = {{"if-none-match", "*"}};
    }
  }

  ~Writing() override {
    for (std::future<UploadPart>& part : in_flight_) {
      part.wait();
    }
    if (!upload_.empty()) {
      try {
        Request abort = part_request();
        abort.method = "DELETE";
        (void)client_->ask(abort);
      } catch (const std::exception&) { // `remove_unfinished` finds it
      }
    }
  }

  void write(std::span<const std::byte> bytes) override {
    size_ += bytes.size();
    while (!bytes.empty()) {
      if (buffer_.size() == part_bytes_) { // more is to come: it is no last part
        send();
      }
      const size_t count = std::min(bytes.size(), part_bytes_ - buffer_.size());
      buffer_.append(reinterpret_cast<const char*>(bytes.data()), count);
      bytes = bytes.subspan(count);
    }
  }

  void finish() override {
    if (upload_.empty()) {
      put_whole();
      return;
    }
    send();
    while (!in_flight_.empty()) {
      land_one();
    }
    // Some stores, Ceph 16 for one, know the condition for whole objects alone.
    if (!condition_.empty() && size_of_object()) {
      refuse();
    }
    complete();
    upload_.clear();
  }

private:
  [[nodiscard]] Request part_request() const {
    Request request = request_;
    request.query["uploadId"] = upload_;
    return request;
  }

  void put_whole() {
    Request request = request_;
    request.headers = condition_;
    request.headers["content-type"] = "application/octet-stream";
    if (client_->options().checksums) {
      request.headers["x-amz-checksum-crc32c"] = checksum_text(buffer_);
    }
    request.body = buffer_;
    const Reply reply = client_->require(request, {412});
    if (reply.status == 412 && !holds(buffer_)) {
      refuse();
    }
  }

  /// Whether an object has these bytes: then an earlier try has put it, ours or one that libcurl made
  /// on its own, and its answer was lost.
  bool holds(std::string_view bytes) {
    if (size_of_object() != bytes.size()) {
      return false;
    }
    std::string there(bytes.size(), '\0');
    const std::span<std::byte> into = std::as_writable_bytes(std::span(there));
    mh::read_exactly(*open_object(client_, request_.path), 0, into, request_.path);
    return there == bytes;
  }

  [[noreturn]] void refuse() { throw mh::StorageError(request_.action, request_.path, EEXIST); }

  /// Sends the buffer as the next part, next to those that are in flight.
  void send() {
    if (upload_.empty()) {
      begin();
    }
    if (sent_ == kMostParts) {
      throw mh::StorageError(
          request_.action,
          request_.path,
          EFBIG,
          "it has more than 10,000 parts of " + std::to_string(part_bytes_ >> 20) + " MiB",
          "set storage.part_size higher"
      );
    }
    if (in_flight_.size() >= static_cast<size_t>(client_->options().connections)) {
      land_one();
    }
    Request request = part_request();
    request.query["partNumber"] = std::to_string(++sent_);
    in_flight_.push_back(std::async(
        std::launch::async,
        [client = client_,
         request = std::move(request),
         bytes = std::exchange(buffer_, take_spare())]() mutable {
          UploadPart part{.bytes = std::move(bytes)};
          if (client->options().checksums) {
            part.checksum = request.headers["x-amz-checksum-crc32c"] = checksum_text(part.bytes);
          }
          request.body = part.bytes;
          part.etag = client->require(request).header("etag");
          return part;
        }
    ));
  }

  void land_one() {
    std::future<UploadPart> part = std::move(in_flight_.front());
    in_flight_.pop_front();
    parts_.push_back(part.get());
    spare_.push_back(std::move(parts_.back().bytes));
    spare_.back().clear();
  }

  /// An empty buffer that has room for a part.
  std::string take_spare() {
    std::string bytes;
    if (!spare_.empty()) {
      bytes = std::move(spare_.back());
      spare_.pop_back();
    }
    bytes.reserve(part_bytes_);
    return bytes;
  }

  void begin() {
    Request request = request_;
    request.method = "POST";
    request.query["uploads"] = "";
    request.headers["content-type"] = "application/octet-stream";
    if (client_->options().checksums) {
      request.headers["x-amz-checksum-algorithm"] = "CRC32C";
    }
    const Reply reply = client_->require(request);
    upload_ = unescaped(first_element(reply.body, "UploadId"));
    if (upload_.empty()) {
      throw mh::StorageError(
          request.action, request.path, EPROTO, "the store gives no id for an upload in parts", ""
      );
    }
  }

  void complete() {
    std::string list = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto& [etag, checksum, landed] = parts_[i];
      list += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" + escaped(etag) +
              "</ETag>" +
              (checksum.empty() ? "" : "<ChecksumCRC32C>" + checksum + "</ChecksumCRC32C>") +
              "</Part>";
    }
    list += "</CompleteMultipartUpload>";
    Request request = part_request();
    request.method = "POST";
    request.headers = condition_;
    request.headers["content-type"] = "application/xml";
    request.body = list;
    const Reply reply = client_->require(request, {404, 412});
    if (!reply.ok() && is_complete()) {
      return; // by an earlier try, whose answer was lost
    }
    if (reply.status == 412) {
      refuse();
    }
    if (!reply.ok()) {
      throw client_->error(request, reply);
    }
  }

  /// Whether the upload has become the object: it is gone, and an object of our size is there.
  bool is_complete() {
    Request parts = part_request();
    parts.method = "GET";
    if (client_->require(parts, {404}).ok()) {
      return false;
    }
    return size_of_object() == size_;
  }

  /// Nothing if there is no object of the name.
  std::optional<uint64_t> size_of_object() {
    try {
      return open_object(client_, request_.path)->size();
    } catch (const mh::StorageError& error) {
      if (error.code() == ENOENT) {
        return std::nullopt;
      }
      throw;
    }
  }

  std::shared_ptr<StoreClient> client_;
  size_t part_bytes_;
  Request request_;
  Headers condition_{};
  uint64_t size_ = 0;
  std::string buffer_{};
  std::string upload_{}; ///< the id of the upload in parts; empty: there is none
  size_t sent_ = 0;
  std::deque<std::future<UploadPart>> in_flight_{};
  std::vector<std::string> spare_{}; ///< buffers of parts that have landed
  std::vector<UploadPart> parts_{};
};

} // namespace

std::unique_ptr<mh::Upload> put_object(
    std::shared_ptr<StoreClient> client, const mh::Path& path, mh::Storage::Existing existing
) {
  return std::make_unique<Writing>(std::move(client), path, existing);
}

} // namespace s3
