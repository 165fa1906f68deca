#pragma once
/// `megahost checkpoint ...`: what checkpoints hold, whether they are whole, and others made of them.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

namespace mh {

int command_checkpoint_ls(const Invocation& invocation, Host& host);
int command_checkpoint_inspect(const Invocation& invocation, Host& host);
int command_checkpoint_verify(const Invocation& invocation, Host& host);
int command_checkpoint_average(const Invocation& invocation, Host& host);
int command_checkpoint_diff(const Invocation& invocation, Host& host);
int command_checkpoint_export(const Invocation& invocation, Host& host);
int command_checkpoint_gc(const Invocation& invocation, Host& host);
int command_checkpoint_import(const Invocation& invocation, Host& host);

} // namespace mh
