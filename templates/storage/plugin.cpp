// A storage for paths @name@://...: here objects are files below a folder, the option `root`. Replace
// that with requests to your store.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/storage.hpp>

namespace {

class @Name@ : public mh::Storage {
public:
  struct Config {
    std::string root = "/tmp/@name@";
  };

  // Each field is an option of the recipe's `storage`: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("root", &Config::root, "folder with the objects").path();
  }

  @Name@(const Config& config, const Args&)
      : root_(config.root) {}

  // An object is seen when `finish` returns, whole: never a part of it, never before. With
  // Existing::refuse one of two writers gets EEXIST, whatever they do at the same moment: the last
  // object of a checkpoint, which makes it count, is put in this way.
  std::unique_ptr<mh::Upload> put(const mh::Path& path, Existing existing) override {
    return files_.put(file(path), existing);
  }

  std::unique_ptr<mh::ReadFile> get(const mh::Path& path) override {
    return files_.get(file(path));
  }

  bool contains(const mh::Path& path) override { return files_.contains(file(path)); }

  std::vector<Item> list(const mh::Path& prefix) override { return files_.list(file(prefix)); }

  void remove(const mh::Path& path) override { files_.remove(file(path)); }

  void remove_all(const mh::Path& prefix) override { files_.remove_all(file(prefix)); }

  std::vector<Unfinished> unfinished(const mh::Path& prefix) override {
    return files_.unfinished(file(prefix));
  }

  void remove_unfinished(const mh::Path& prefix) override { files_.remove_unfinished(file(prefix)); }

private:
  // A path comes whole, with the scheme. No path leads out of the root.
  mh::Path file(const mh::Path& path) const {
    const mh::Path below = path.native().substr(std::string_view("@name@://").size());
    for (const mh::Path& part : below) {
      if (part == ".." || part == "/") {
        throw mh::Error(path.string() + " leaves its root", "", mh::exit_code::data);
      }
    }
    return root_ / below;
  }

  mh::Path root_;
  mh::Storage& files_ = mh::local_storage();
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a storage", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "@name@://PATH: objects below a folder");
})
