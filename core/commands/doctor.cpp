#include "core/bench/doctor.hpp"

#include "core/commands/commands.hpp"

#include <unistd.h>

#include <cstdio>

namespace mh {

int command_doctor(const Invocation& invocation, Host& host) {
  SeenMachine machine = look(host);
  for (const Registry::Entry* device : host.known(Kind::device)) {
    Speed speed = measure(*device);
    if (speed.there || !machine.gpus.empty()) { // why a card is not used is worth a line
      machine.speeds.push_back(std::move(speed));
    }
  }
  const std::vector<Finding> findings = judge(machine);
  const std::string text = invocation.has("--json")
                               ? doctor_json(machine, findings)
                               : doctor_text(findings, Terminal::of(STDOUT_FILENO));
  std::fputs(text.c_str(), stdout);
  return 0;
}

} // namespace mh
