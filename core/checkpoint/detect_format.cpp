#include "core/checkpoint/detect_format.hpp"

#include "core/base/text.hpp"
#include "core/formats/manifest.hpp"
#include "core/language/read.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/paths.hpp"
#include "core/storage/folder_storage.hpp"

#include <algorithm>
#include <filesystem>

namespace mh {

namespace {

constexpr const char* kWhichFolder = "give the folder that megahost run named";

/// The formats that can be made without options: a folder that is read is given none.
std::vector<FolderFormat> known_formats(Host& host, const Path& folder) {
  std::vector<FolderFormat> formats;
  const auto storage = std::make_shared<FolderStorage>(host.storage(), folder);
  for (const Registry::Entry* entry : host.known(Kind::checkpoint_format)) {
    const auto& fields = entry->schema.fields;
    if (std::none_of(fields.begin(), fields.end(), [](const Field& f) { return f.required; })) {
      formats.push_back(
          {entry->name,
           storage,
           Registry::make<CheckpointFormat>(*entry, Table(), {.storage = *storage}),
           entry->writes}
      );
    }
  }
  return formats;
}

bool detects(const FolderFormat& one, const Path& folder) {
  return in_plugin(*one.format, "detect", [&] { return one.format->detect(folder); });
}

std::string with_article(const std::string& noun) {
  return (std::string_view("aeiouAEIOU").find(noun.front()) == std::string_view::npos ? "a " : "an "
         ) +
         noun;
}

/// "a run folder (no checkpoints/)".
std::string lacking(const FolderFormat& one) {
  return with_article(one.format->about()) + " (no " + one.format->mark() + ")";
}

/// A step's folder of a run that ended while it was written, or removed.
void refuse_incomplete(const Path& folder, Storage& storage) {
  const auto items = storage.list(folder);
  const bool has_shards = std::any_of(items.begin(), items.end(), [](const Storage::Item& item) {
    return item.name.starts_with("shard-");
  });
  if (has_shards && folder.filename().native().starts_with("step-")) {
    throw Error(
        folder.string() + " is a checkpoint that is not complete: it has no " + kManifestName +
            ", which is written last",
        "give the folder of the run, of which the newest complete one is taken; "
        "megahost checkpoint gc removes those that are not",
        exit_code::data
    );
  }
}

[[noreturn]] void refuse_unknown(const Path& folder, const std::vector<FolderFormat>& formats) {
  std::string text = folder.string() + (formats.size() > 1 ? " is neither " : " is not ");
  for (size_t i = 0; i < formats.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == formats.size() ? " nor " : ", ") + lacking(formats[i]);
  }
  const std::string apart = checkpoints_apart(folder);
  throw Error(
      text,
      apart.empty() ? kWhichFolder
                    : "its checkpoints are in " + apart + ": give that, with the recipe " +
                          (folder / "recipe.toml").string(),
      exit_code::data
  );
}

std::optional<FolderFormat> only_one(const Path& folder, std::vector<FolderFormat> formats) {
  std::erase_if(formats, [&](const FolderFormat& one) { return !detects(one, folder); });
  if (std::ranges::count(formats, true, &FolderFormat::writes) == 1) {
    std::erase_if(formats, [](const FolderFormat& one) { return !one.writes; });
  }
  if (formats.size() > 1) {
    std::vector<std::string> names;
    for (const FolderFormat& one : formats) {
      names.push_back(one.name);
    }
    throw Error(
        folder.string() + " could be read in several formats: " + join(names),
        "--weights-format NAME says which",
        exit_code::data
    );
  }
  return formats.empty() ? std::nullopt : std::optional(std::move(formats.front()));
}

} // namespace

std::optional<FolderFormat> find_format(const Path& folder, Host& host) {
  return only_one(folder, known_formats(host, folder));
}

std::optional<std::string> config_of(const Path& folder, Host& host) {
  for (const FolderFormat& one : known_formats(host, folder)) {
    auto text = detects(one, folder)
                    ? in_plugin(*one.format, "config", [&] { return one.format->config(folder); })
                    : std::nullopt;
    if (text) {
      return text;
    }
  }
  return std::nullopt;
}

FolderFormat format_of(const Path& folder, Host& host, const std::string& named) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored) && host.storage().list(folder).empty()) {
    throw Error("there is no folder " + folder.string(), kWhichFolder, exit_code::data);
  }
  if (!named.empty()) {
    const auto storage = std::make_shared<FolderStorage>(host.storage(), folder);
    FolderFormat one{
        named, storage, host.make<CheckpointFormat>(named, Table(), {.storage = *storage})};
    if (!detects(one, folder)) {
      throw Error(folder.string() + " is not " + lacking(one), kWhichFolder, exit_code::data);
    }
    return one;
  }
  if (auto found = find_format(folder, host)) {
    return std::move(*found);
  }
  refuse_incomplete(folder, host.storage());
  refuse_unknown(folder, known_formats(host, folder));
}

std::string checkpoints_apart(const Path& folder) {
  const auto recipe = folder / "recipe.toml";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(recipe, ignored)) {
    return "";
  }
  const RunPlaces places = run_places(read_toml(read_source(recipe, recipe.string())));
  return places.run ? checkpoints_of(places, folder) : "";
}

std::optional<std::vector<int64_t>> steps_of(const CheckpointFormat& format, const Path& folder) {
  return in_plugin(format, "steps", [&] { return format.steps(folder); });
}

} // namespace mh
