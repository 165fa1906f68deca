#include "profile.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace s3 {

namespace {

constexpr std::streamsize kMostBytes = 1 << 20;

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos
             ? ""
             : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// A comment begins at a line's start, or after a space.
std::string without_comment(const std::string& line) {
  for (size_t i = 0; i < line.size(); ++i) {
    const bool after_space = i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t';
    if ((line[i] == '#' || line[i] == ';') && after_space) {
      return line.substr(0, i);
    }
  }
  return line;
}

Sections sections_of(const std::string& path) {
  return read_sections(read_small_file(path).value_or(""));
}

} // namespace

EnvironmentReader process_environment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
}

Sections read_sections(const std::string& text) {
  Sections sections;
  Settings* section = nullptr;
  std::string parent; // a setting without a value, below which others are
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = !line.empty() && (line[0] == ' ' || line[0] == '\t');
    line = without_comment(line);
    const std::string content = trimmed(line);
    if (content.empty()) {
      continue;
    }
    if (content.front() == '[') {
      section = &sections[trimmed(content.substr(1, content.find(']') - 1))];
      parent.clear();
      continue;
    }
    const size_t equals = content.find('=');
    if (section == nullptr || equals == std::string::npos) {
      continue;
    }
    const std::string name = trimmed(content.substr(0, equals));
    const std::string value = trimmed(content.substr(equals + 1));
    if (indented && !parent.empty()) {
      (*section)[parent + "." + name] = value;
    } else {
      (*section)[name] = value;
      parent = value.empty() ? name : "";
    }
  }
  return sections;
}

std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kMostBytes), '\0');
  file.read(text.data(), kMostBytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return file.eof() ? std::optional(text) : std::nullopt;
}

std::string value_of(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second;
}

Profiles::Profiles(const EnvironmentReader& environment, const std::string& named)
    : name_(named.empty() ? environment("AWS_PROFILE") : named)
    , folder_(environment("HOME") + "/.aws") {
  if (name_.empty()) {
    name_ = "default";
  }
  const std::string config = environment("AWS_CONFIG_FILE");
  for (const auto& [section, settings] :
       sections_of(config.empty() ? folder_ + "/config" : config)) {
    if (section.starts_with("profile ")) {
      profiles_[trimmed(section.substr(8))] = settings;
    } else if (section.starts_with("sso-session ")) {
      sessions_[trimmed(section.substr(12))] = settings;
    } else if (section == "default") {
      profiles_.try_emplace(section, settings);
    }
  }
  const std::string credentials = environment("AWS_SHARED_CREDENTIALS_FILE");
  for (const auto& [profile, settings] :
       sections_of(credentials.empty() ? folder_ + "/credentials" : credentials)) {
    for (const auto& [name, value] : settings) {
      profiles_[profile][name] = value;
    }
  }
}

const Settings* Profiles::find(const std::string& profile) const {
  const auto found = profiles_.find(profile);
  return found == profiles_.end() ? nullptr : &found->second;
}

const Settings* Profiles::session(const std::string& name) const {
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : &found->second;
}

std::string Profiles::setting(const std::string& name) const {
  const Settings* settings = find(name_);
  return settings == nullptr ? "" : value_of(*settings, name);
}

} // namespace s3
