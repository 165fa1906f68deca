/// Commands that read what runs measured.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> run_reading_commands() {
  return {
      {
          "plot",
          "Runs",
          "draws what runs measured: loss, learning rate, gradient norm, speed",
          "Reads the metrics of run folders, of runs that are still going too. Several runs are "
          "drawn over each other. Validation losses are single points.",
          {{"RUN...", "run folder; several are drawn together"}},
          {
              {"--metric",
               "NAME",
               "what to draw: loss, lr, gradient_norm, tokens_per_second, seconds, memory or a "
               "loss by its name, such as 'lm loss'",
               true},
              {"--smooth", "STEPS", "draws the mean of this many steps around each"},
              {"--svg", "FILE", "writes a picture, readable on light and dark pages, instead"},
          },
          {
              {"megahost plot runs/quickstart", ""},
              {"megahost plot runs/quickstart runs/quickstart-2 --metric loss --smooth 20",
               "two runs, one chart"},
              {"megahost plot runs/quickstart --svg curves.svg", ""},
          },
      },
      {
          "compare",
          "Runs",
          "the differences of two runs: recipe, loss, speed, memory",
          "Losses are compared at equal steps, and at equal tokens where a step of one run has "
          "more of them; each is the mean of the steps since the row above.",
          {{"RUN", "run folder"}, {"OTHER-RUN", "run folder"}},
          {kJson},
          {{"megahost compare runs/quickstart runs/quickstart-2", ""}},
      },
      {
          "status",
          "Runs",
          "what runs do now: step, loss, speed, time left, newest checkpoint",
          "Reads run folders, on any machine that sees them: a run that is going is not disturbed, and "
          "nothing listens on a port. A run is running while its process holds the folder's lock; one "
          "of another machine, whose locks may not be seen here, while its metrics are fresh. Speed is "
          "the median of the newest 50 steps.",
          {{"RUN...", "run folder; several are listed"}},
          {
              kJson,
              {"--prometheus", "", "as Prometheus's text format, for its textfile collector"},
              kPlugin,
          },
          {
              {"megahost status runs/quickstart", ""},
              {"megahost status runs/*", "a row each"},
              {"megahost status runs/quickstart --prometheus > megahost.prom", ""},
          },
      },
      {
          "watch",
          "Runs",
          "shows a run while it goes on: curve, speed, ranks, events, goodput",
          "Reads the run's folder, as `status` does, again and again until the run ends; of a run "
          "that has ended, once. --http serves the same as a page with more curves, and what "
          "Prometheus reads at /metrics, to this machine alone: `ssh -L 8080:localhost:8080 HOST` "
          "brings it to another one.",
          {{"RUN", "run folder"}},
          {
              {"--every", "SECONDS", "how often it looks (2)"},
              {"--http",
               "PORT",
               "serves a page instead of drawing here; ADDRESS:PORT lets other machines read it, "
               "which needs no password"},
              kPlugin,
          },
          {
              {"megahost watch runs/quickstart", ""},
              {"megahost watch runs/quickstart --http 8080", "then open http://localhost:8080"},
          },
      },
  };
}

} // namespace mh
