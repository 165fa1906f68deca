// A launcher that tells each process its place by variables of the environment: @UPPER@_RANK,
// @UPPER@_SIZE, @UPPER@_MASTER (host:port), or others that begin with the option `prefix`. Replace
// them with those of your scheduler.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/launcher.hpp>
#include <megahost/plugin.hpp>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace {

int64_t number(const std::string& name, std::string_view text, int64_t least) {
  int64_t value = least - 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw mh::Error(
        name + " holds `" + std::string(text) + "`, expected a whole number of at " +
            "least " + std::to_string(least),
        "start the processes with their launcher, or unset it",
        mh::exit_code::communication
    );
  }
  return value;
}

class @Name@ : public mh::Launcher {
public:
  struct Config {
    std::string prefix = "@UPPER@";
  };

  // Each field is an option of the recipe's `launcher`: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("prefix", &Config::prefix, "what the names of the variables begin with");
  }

  @Name@(const Config& config, const Args&)
      : prefix_(config.prefix) {}

  // Nothing where this launcher did not start the process; an error where only a part is there.
  std::optional<mh::World> detect() const override {
    const std::string ranks = prefix_ + "_RANK", sizes = prefix_ + "_SIZE", masters = prefix_ + "_MASTER";
    const char* rank = std::getenv(ranks.c_str());
    const char* size = std::getenv(sizes.c_str());
    const char* master = std::getenv(masters.c_str());
    if (rank == nullptr && size == nullptr && master == nullptr) {
      return std::nullopt;
    }
    const std::string_view place = master == nullptr ? "" : master;
    const size_t colon = place.rfind(':');
    if (rank == nullptr || size == nullptr || colon == std::string_view::npos) {
      throw mh::Error(
          "only a part of " + ranks + ", " + sizes + " and " + masters + " (host:port) is set",
          "set all three or none",
          mh::exit_code::communication
      );
    }
    mh::World world;
    world.size = world.local_size = number(sizes, size, 1);
    world.rank = world.local_rank = number(ranks, rank, 0);
    world.master_address = place.substr(0, colon);
    world.master_port = static_cast<int>(number(masters, place.substr(colon + 1), 1));
    if (world.rank >= world.size) {
      throw mh::Error(
          ranks + " is " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
              " processes, ranks begin at 0",
          "start the processes with their launcher",
          mh::exit_code::communication
      );
    }
    return world;
  }

private:
  std::string prefix_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a launcher", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "ranks from variables of the environment");
})
