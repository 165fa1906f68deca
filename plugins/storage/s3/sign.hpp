#pragma once
/// Signatures of requests, and the hashes and encodings that they are made of.
///
/// Source:  AWS General Reference, "Signature Version 4 signing process"; Amazon S3 API Reference,
///          "Authenticating Requests: Using the Authorization Header"

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace s3 {

/// Names in lower case, and so in the order in which they are signed.
using Headers = std::map<std::string, std::string, std::less<>>;
/// Not encoded, in the order in which they are signed.
using Query = std::map<std::string, std::string>;

/// The credentials that sign. Only `source` may be shown.
struct Credentials {
  std::string key{}, secret{}, token{};
  std::time_t until = 0; ///< when they end, in seconds since 1970; 0: they do not
  std::string source{};  ///< source of the credentials, for messages: "the environment"

  [[nodiscard]] bool sign() const { return !key.empty(); }
};

/// The scope and the time of a signature.
struct SigningScope {
  std::string region, service;
  std::time_t now = 0;
};

inline constexpr const char* kUnsignedPayload = "UNSIGNED-PAYLOAD";

[[nodiscard]] std::string hex(std::string_view bytes);
[[nodiscard]] std::string base64(std::string_view bytes);
/// 64 hexadecimal digits.
[[nodiscard]] std::string sha256(std::string_view bytes);
/// 40 hexadecimal digits.
[[nodiscard]] std::string sha1(std::string_view bytes);

/// Percent-encoded but for letters, digits and -._~, and for slashes where they stay.
[[nodiscard]] std::string percent_encoded(std::string_view text, bool keep_slashes = false);
[[nodiscard]] std::string percent_decoded(std::string_view text);
/// "a=1&b=", names and values encoded.
[[nodiscard]] std::string query_text(const Query& query);

/// The canonical request. `path` is encoded already, `payload` the hash of the body.
[[nodiscard]] std::string canonical_request(
    std::string_view method,
    std::string_view path,
    std::string_view query,
    const Headers& headers,
    std::string_view payload
);

/// The text that is signed.
[[nodiscard]] std::string
string_to_sign(const SigningScope& scope, std::string_view canonical_request);

/// Adds `x-amz-date`, `x-amz-security-token` where there is a token, and `authorization`, which
/// signs all headers that are there.
void sign(
    const Credentials& credentials,
    const SigningScope& scope,
    std::string_view method,
    std::string_view path,
    std::string_view query,
    std::string_view payload,
    Headers& ret_headers
);

} // namespace s3
