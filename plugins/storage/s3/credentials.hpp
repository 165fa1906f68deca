#pragma once
/// The sources of credentials, in the order of the AWS tools: the environment, a web identity
/// (EKS), the profile (keys, a role, SSO, a process), the container (ECS, EKS Pod Identity), the
/// machine (EC2).
///
/// Source:  AWS SDKs and Tools Reference Guide, "Standardized credential providers"

#include "http.hpp"
#include "profile.hpp"

#include <mutex>

namespace s3 {

/// The inputs of a search for credentials.
struct CredentialsPlace {
  EnvironmentReader environment;
  std::string profile{}; ///< profile of a recipe; its credentials come before the environment's
  std::string region{};  ///< region of STS
  Credentials given{};   ///< if there are any, no others are looked for
};

/// Throws:  mh::Error where a source is set up and does not work, and where there is none; it names
///          the source, and nothing secret
[[nodiscard]] Credentials find_credentials(const CredentialsPlace& place, Http& http);

/// Found once, and again before they end or when a server has refused them.
///
/// Thread:  any
class CredentialsCache {
public:
  CredentialsCache(CredentialsPlace place, Http& http);

  [[nodiscard]] Credentials get();
  /// Says that a server calls these expired: the next `get` looks again.
  void refused(const Credentials& credentials);

private:
  CredentialsPlace place_;
  Http& http_;
  std::mutex mutex_;
  Credentials found_;
};

} // namespace s3
