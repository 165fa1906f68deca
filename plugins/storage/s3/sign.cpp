#include "sign.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

namespace s3 {

namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string digest(const EVP_MD* kind, std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), hash.data(), &size, kind, nullptr);
  return {reinterpret_cast<const char*>(hash.data()), size};
}

std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  HMAC(
      EVP_sha256(),
      key.data(),
      static_cast<int>(key.size()),
      reinterpret_cast<const unsigned char*>(text.data()),
      text.size(),
      hash.data(),
      &size
  );
  return {reinterpret_cast<const char*>(hash.data()), size};
}

/// "20130524T000000Z".
std::string time_text(std::time_t now) {
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 17> text{};
  (void)std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

std::string scope_text(const SigningScope& scope) {
  return time_text(scope.now).substr(0, 8) + "/" + scope.region + "/" + scope.service +
         "/aws4_request";
}

std::string signed_names(const Headers& headers) {
  std::string names;
  for (const auto& [name, value] : headers) {
    names += (names.empty() ? "" : ";") + name;
  }
  return names;
}

int hex_value(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                : -1;
}

} // namespace

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0'); // and a zero byte
  const int size = EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()),
      static_cast<int>(bytes.size())
  );
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string sha256(std::string_view bytes) {
  return hex(digest(EVP_sha256(), bytes));
}

std::string sha1(std::string_view bytes) {
  return hex(digest(EVP_sha1(), bytes));
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/');
    const auto byte = static_cast<unsigned char>(c);
    encoded += plain ? std::string(1, c) : std::string{'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return encoded;
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
                       hex_value(text[i + 2]) >= 0;
    if (coded) {
      decoded += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

std::string query_text(const Query& query) {
  std::map<std::string, std::string> encoded; // the order is that of the encoded names
  for (const auto& [name, value] : query) {
    encoded[percent_encoded(name)] = percent_encoded(value);
  }
  std::string text;
  for (const auto& [name, value] : encoded) {
    text += (text.empty() ? "" : "&") + name + "=" + value;
  }
  return text;
}

std::string canonical_request(
    std::string_view method,
    std::string_view path,
    std::string_view query,
    const Headers& headers,
    std::string_view payload
) {
  std::string text;
  for (const std::string_view part : {method, path, query}) {
    text += std::string(part) + "\n";
  }
  for (const auto& [name, value] : headers) {
    text += name + ":" + value + "\n";
  }
  return text + "\n" + signed_names(headers) + "\n" + std::string(payload);
}

std::string string_to_sign(const SigningScope& scope, std::string_view canonical_request) {
  return std::string(kAlgorithm) + "\n" + time_text(scope.now) + "\n" + scope_text(scope) + "\n" +
         sha256(canonical_request);
}

void sign(
    const Credentials& credentials,
    const SigningScope& scope,
    std::string_view method,
    std::string_view path,
    std::string_view query,
    std::string_view payload,
    Headers& ret_headers
) {
  ret_headers["x-amz-date"] = time_text(scope.now);
  if (!credentials.token.empty()) {
    ret_headers["x-amz-security-token"] = credentials.token;
  }
  std::string key = "AWS4" + credentials.secret;
  for (const std::string& part :
       {time_text(scope.now).substr(0, 8),
        scope.region,
        scope.service,
        std::string("aws4_request")}) {
    key = hmac(key, part);
  }
  const std::string text =
      string_to_sign(scope, canonical_request(method, path, query, ret_headers, payload));
  const std::string names = signed_names(ret_headers);
  ret_headers["authorization"] = std::string(kAlgorithm) + " Credential=" + credentials.key + "/" +
                                 scope_text(scope) + ", SignedHeaders=" + names +
                                 ", Signature=" + hex(hmac(key, text));
}

} // namespace s3
