// A launcher that tells each process its place by variables of the environment: @UPPER@_RANK,
// @UPPER@_SIZE, @UPPER@_MASTER (host:port). Replace them with those of your scheduler.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/launcher.hpp>
#include <megahost/plugin.hpp>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace {

int64_t number(const char* name, std::string_view text, int64_t least) {
  int64_t value = least - 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw mh::Error(
        std::string(name) + " holds `" + std::string(text) + "`, expected a whole number of at " +
            "least " + std::to_string(least),
        "start the processes with their launcher, or unset it",
        mh::exit_code::communication
    );
  }
  return value;
}

class @Name@ : public mh::Launcher {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {} // f.add(...) makes an option

  @Name@(const Config&, const Args&) {}

  // Nothing where this launcher did not start the process; an error where only a part is there.
  std::optional<mh::World> detect() const override {
    const char* rank = std::getenv("@UPPER@_RANK");
    const char* size = std::getenv("@UPPER@_SIZE");
    const char* master = std::getenv("@UPPER@_MASTER");
    if (rank == nullptr && size == nullptr && master == nullptr) {
      return std::nullopt;
    }
    const std::string_view place = master == nullptr ? "" : master;
    const size_t colon = place.rfind(':');
    if (rank == nullptr || size == nullptr || colon == std::string_view::npos) {
      throw mh::Error(
          "only a part of @UPPER@_RANK, @UPPER@_SIZE and @UPPER@_MASTER (host:port) is set",
          "set all three or none",
          mh::exit_code::communication
      );
    }
    mh::World world;
    world.size = world.local_size = number("@UPPER@_SIZE", size, 1);
    world.rank = world.local_rank = number("@UPPER@_RANK", rank, 0);
    world.master_address = place.substr(0, colon);
    world.master_port = static_cast<int>(number("@UPPER@_MASTER", place.substr(colon + 1), 1));
    if (world.rank >= world.size) {
      throw mh::Error(
          "@UPPER@_RANK is " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
              " processes, ranks begin at 0",
          "start the processes with their launcher",
          mh::exit_code::communication
      );
    }
    return world;
  }
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a launcher", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "ranks from variables of the environment");
})
