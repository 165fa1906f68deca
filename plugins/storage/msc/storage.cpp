#include "storage.hpp"

#include "plugins/storage/arrow/storage.hpp"
#include "plugins/storage/s3/storage.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace msc {

namespace {

constexpr std::string_view kScheme = "msc://";

} // namespace

void Msc::fields(mh::Fields<Config>& f) {
  f.add(
       "config",
       &Config::config,
       "configuration of Multi-Storage Client, as YAML or JSON; unless given MSC_CONFIG, or where "
       "the client looks for it, ~/.msc_config.yaml first"
  )
      .path();
}

Msc::Msc(const Config& config, const Args& /*args*/, s3::EnvironmentReader environment)
    : config_(config)
    , environment_(std::move(environment)) {}

Msc::Place Msc::at(const mh::Path& path) {
  const std::string& text = path.native();
  const auto refuse = [&](const std::string& reason) {
    throw mh::Error(text + ": " + reason, "msc://PROFILE/PATH", mh::exit_code::data);
  };
  if (!text.starts_with(kScheme)) {
    refuse("this is no path of a profile");
  }
  const std::string rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  const std::string profile = rest.substr(0, slash);
  if (profile.empty()) {
    refuse("it names no profile");
  }
  // The client lets .. out of a folder; here a profile is all that a path reaches.
  for (const mh::Path& part : mh::Path(rest.substr(slash))) {
    if (part == "." || part == "..") {
      refuse("a path in a profile cannot have the part \"" + part.string() + "\"");
    }
  }
  const Opened opened = open(profile);
  return {opened.storage, opened.before + rest.substr(slash)};
}

Msc::Opened Msc::open(const std::string& profile) {
  const std::lock_guard lock(mutex_);
  if (const auto found = open_.find(profile); found != open_.end()) {
    return found->second;
  }
  const std::string file = find_config(config_.config, environment_);
  const auto text = s3::read_small_file(file);
  if (!text) {
    throw mh::Error(
        file + ", a configuration of Multi-Storage Client, cannot be read",
        "MSC_CONFIG or storage.config names it",
        mh::exit_code::data
    );
  }
  const MscProfile read = read_profile(*text, file, profile, environment_);
  const std::string base = read.base_path.empty() ? "" : "/" + read.base_path;
  Opened opened;
  switch (read.provider) {
  case Provider::s3:
    opened = {std::make_shared<s3::S3>(read.options, Args{}, read.credentials), "s3:/" + base};
    break;
  case Provider::google:
    opened = {std::make_shared<clouds::Google>(read.google), "gs:/" + base};
    break;
  case Provider::azure:
    opened = {std::make_shared<clouds::Azure>(read.azure, Args{}, read.secret), "az:/" + base};
    break;
  case Provider::file:
    opened = {{std::shared_ptr<mh::Storage>(), &mh::local_storage()}, read.base_path};
    break;
  }
  open_[profile] = opened;
  return opened;
}

std::unique_ptr<mh::Upload> Msc::put(const mh::Path& path, Existing existing) {
  const Place place = at(path);
  return place.storage->put(place.path, existing);
}

std::unique_ptr<mh::ReadFile> Msc::get(const mh::Path& path) {
  const Place place = at(path);
  return place.storage->get(place.path);
}

bool Msc::contains(const mh::Path& path) {
  const Place place = at(path);
  return place.storage->contains(place.path);
}

std::vector<mh::Storage::Item> Msc::list(const mh::Path& prefix) {
  const Place place = at(prefix);
  return place.storage->list(place.path);
}

void Msc::remove(const mh::Path& path) {
  const Place place = at(path);
  place.storage->remove(place.path);
}

void Msc::remove_all(const mh::Path& prefix) {
  const Place place = at(prefix);
  place.storage->remove_all(place.path);
}

std::vector<mh::Storage::Unfinished> Msc::unfinished(const mh::Path& prefix) {
  const Place place = at(prefix);
  return place.storage->unfinished(place.path);
}

void Msc::remove_unfinished(const mh::Path& prefix) {
  const Place place = at(prefix);
  place.storage->remove_unfinished(place.path);
}

} // namespace msc
