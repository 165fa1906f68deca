#pragma once
/// The configuration of NVIDIA's Multi-Storage Client: names for places in stores, as YAML or JSON.
///
///     profiles:
///       corpora:
///         storage_provider:
///           type: s3
///           options: { base_path: bucket/corpora, endpoint_url: https://store:9000 }
///         credentials_provider:
///           type: S3Credentials
///           options: { access_key: "${KEY}", secret_key: "${SECRET}" }
///
/// A key that would change which bytes are read or written, and that is not known here, is refused
/// by its name. No message has a value of the file.
///
/// Source:  multi-storage-client 1.3.1, schema.py, config.py, providers/s3.py

#include "plugins/storage/arrow/readers.hpp"
#include "plugins/storage/s3/client.hpp"

#include <optional>
#include <string>

namespace msc {

enum class Provider : uint8_t { s3, google, azure, file };

/// The place that a profile is a name of.
struct MscProfile {
  Provider provider = Provider::s3;
  std::string base_path{}; ///< a bucket and a prefix, or a folder; no slash at its end
  s3::Options options{};
  /// The credentials in the file; without them those count that `s3://` takes.
  s3::Credentials credentials{};
  clouds::GoogleOptions google{};
  clouds::AzureOptions azure{};
  clouds::AzureSecret secret{}; ///< the secret of Azure's account, if the file has one
};

/// The file that counts: `named` by a recipe, MSC_CONFIG's, or the first one in the places where the
/// client looks.
///
/// Throws:  mh::Error where there is none
[[nodiscard]] std::string
find_config(const std::string& named, const s3::EnvironmentReader& environment);

/// A profile of a configuration's text; `file` is for messages.
///
/// Throws:  mh::Error (exit code 5) naming the file and the key
[[nodiscard]] MscProfile read_profile(
    const std::string& text,
    const std::string& file,
    const std::string& profile,
    const s3::EnvironmentReader& environment
);

} // namespace msc
