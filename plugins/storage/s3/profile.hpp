#pragma once
/// The settings in the environment and in the files of the AWS tools.
///
/// Source:  AWS SDKs and Tools Reference Guide, "Shared config and credentials files",
///          "Environment variables"

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace s3 {

/// Reads a variable of the environment; empty where it is not set.
using EnvironmentReader = std::function<std::string(const std::string& name)>;

[[nodiscard]] EnvironmentReader process_environment();

/// The settings of one section; those below another, `s3 =` and an indented line, are "s3.NAME".
using Settings = std::map<std::string, std::string>;
using Sections = std::map<std::string, Settings>;

/// The sections of such a file: "profile a", "sso-session b".
[[nodiscard]] Sections read_sections(const std::string& text);

/// A file of at most 1 MB; nothing if it cannot be read.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path);

/// The credentials and config files.
class Profiles {
public:
  /// `named` is the profile that a recipe names; empty: AWS_PROFILE's, or "default".
  Profiles(const EnvironmentReader& environment, const std::string& named);

  [[nodiscard]] const std::string& name() const { return name_; }

  /// The settings of a profile, those of the credentials file first; null if no file has it.
  [[nodiscard]] const Settings* find(const std::string& profile) const;

  [[nodiscard]] const Settings* session(const std::string& name) const;

  /// A setting of the profile that counts; empty if it has none.
  [[nodiscard]] std::string setting(const std::string& name) const;

  /// The folder with the files, ~/.aws.
  [[nodiscard]] const std::string& folder() const { return folder_; }

private:
  std::string name_, folder_;
  Sections profiles_, sessions_;
};

/// A setting of the settings; empty if it is not there.
[[nodiscard]] std::string value_of(const Settings& settings, const std::string& name);

} // namespace s3
