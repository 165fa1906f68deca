#pragma once
/// `megahost plugins ...`: which there are, what they take, whether they keep the rules, and how others are added.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

namespace mh {

int command_plugins(const Invocation& invocation, Host& host);
int command_plugins_check(const Invocation& invocation, Host& host);
int command_plugins_install(const Invocation& invocation, Host& host);
int command_plugins_new(const Invocation& invocation, Host& host);
int command_plugins_rebuild(const Invocation& invocation, Host& host);
int command_plugins_remove(const Invocation& invocation, Host& host);
int command_plugins_show(const Invocation& invocation, Host& host);

} // namespace mh
