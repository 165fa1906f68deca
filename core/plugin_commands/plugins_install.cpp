#include "core/base/text.hpp"
#include "core/draw/report.hpp"
#include "core/install/install.hpp"
#include "core/plugin_commands/commands.hpp"
#include "core/plugin_commands/plugin_tests.hpp"
#include "megahost/error.hpp"

#include <cstdio>

namespace mh {

namespace {

InstallSteps printed_steps() {
  return {
      [](const std::string& what) {
        std::printf("%s\n", what.c_str());
        std::fflush(stdout);
      },
      check_before_install};
}

void print_done(const InstallDone& done, const char* what) {
  const Installed& plugin = done.plugin;
  std::printf(
      "%s %s %s: %s%s\n",
      what,
      plugin.name.c_str(),
      plugin.files.front().version.c_str(),
      join(done.offers).c_str(),
      done.replaced.empty() || done.replaced == plugin.files.front().version
          ? ""
          : (", in place of " + done.replaced).c_str()
  );
  for (const Installed::File& file : plugin.files) {
    std::printf("  %s\n", (user_plugin_folder() / file.name).c_str());
  }
}

} // namespace

int command_plugins_install(const Invocation& invocation, Host&) {
  const InstallArgs args{
      invocation.arguments.front(), !invocation.has("--no-check"), invocation.all("--set")};
  print_done(install_plugin(args, printed_steps()), "installed");
  return 0;
}

int command_plugins_rebuild(const Invocation& invocation, Host&) {
  std::vector<Installed> chosen;
  if (!invocation.arguments.empty()) {
    chosen.push_back(installed_as(invocation.arguments.front()));
  } else {
    for (const Installed& plugin : installed_plugins()) {
      if (is_current(plugin)) {
        std::printf("%s is built for this megahost\n", plugin.name.c_str());
      } else {
        chosen.push_back(plugin);
      }
    }
  }
  int status = 0;
  for (const Installed& plugin : chosen) {
    try {
      print_done(rebuild_plugin(plugin, printed_steps()), "built again");
    } catch (const Error& error) { // the others may build
      status = report(error);
    }
  }
  return status;
}

int command_plugins_remove(const Invocation& invocation, Host&) {
  const Installed plugin = remove_plugin(invocation.arguments.front());
  std::printf(
      "removed %s, which was installed from %s\n", plugin.name.c_str(), plugin.from.c_str()
  );
  return 0;
}

} // namespace mh
