#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/report.hpp"
#include "core/runs/exposition.hpp"
#include "core/runs/page_server.hpp"
#include "core/runs/run_view.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

namespace mh {

namespace {

constexpr const char* kFromTop = "\x1b[H";    // the cursor goes to the first cell
constexpr const char* kRestOfLine = "\x1b[K"; // these two: what was there before is gone
constexpr const char* kRestOfScreen = "\x1b[J";

/// Draws over what was drawn before, so that nothing flickers.
void redraw(const std::string& text) {
  std::string screen = kFromTop;
  for (const char c : text) {
    screen += c == '\n' ? kRestOfLine + std::string(1, c) : std::string(1, c);
  }
  std::fputs((screen + kRestOfScreen).c_str(), stdout);
  std::fflush(stdout);
}

/// Until the run ends; a person who has seen enough presses Ctrl-C.
int watch_on_terminal(RunStatus run, int64_t seconds, Host& host) {
  std::fputs("\x1b[2J", stdout);
  while (true) {
    const Terminal terminal = Terminal::of(STDOUT_FILENO); // its size may have changed
    redraw(view_text(run, terminal, terminal.height - 1));
    if (!run.goes_on()) {
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
    update_status(run, host);
  }
}

int serve_pages(RunStatus run, const std::string& where, int64_t seconds, Host& host) {
  PageServer server(where);
  std::printf(
      "http://%s/ shows %s, http://%s/metrics is for Prometheus; Ctrl-C ends it\n",
      server.place().c_str(),
      run.metrics.name.c_str(),
      server.place().c_str()
  );
  std::fflush(stdout);
  while (true) {
    server.serve([&](const std::string& path) -> ServedPage {
      if (path != "/" && path != "/metrics") {
        return {};
      }
      update_status(run, host);
      if (path == "/") {
        return {"text/html; charset=utf-8", view_page(run, run.goes_on() ? seconds : 0)};
      }
      return {"text/plain; version=0.0.4; charset=utf-8", exposition({run})};
    });
  }
}

} // namespace

int command_watch(const Invocation& invocation, Host& host) {
  const int64_t seconds = number_option(invocation, "--every", 2, 1, 3600);
  RunStatus run = read_status(invocation.arguments.front(), host);
  if (invocation.has("--http")) {
    return serve_pages(std::move(run), invocation.value("--http"), seconds, host);
  }
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  if (terminal.interactive && run.goes_on()) {
    return watch_on_terminal(std::move(run), seconds, host);
  }
  constexpr int kPage = 60; // lines: nothing scrolls away in a file
  std::fputs(
      view_text(run, terminal, terminal.interactive ? terminal.height : kPage).c_str(), stdout
  );
  return 0;
}

} // namespace mh
