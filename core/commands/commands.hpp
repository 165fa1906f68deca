#pragma once
/// The commands that need plugins or LibTorch, one file each.

#include "core/cli/invocation.hpp"
#include "core/options/read.hpp"
#include "core/recipe/commands.hpp"

namespace mh {

int command_run(const Invocation& invocation, Host& host);
int command_eval(const Invocation& invocation, Host& host);
int command_generate(const Invocation& invocation, Host& host);
int command_fill_mask(const Invocation& invocation, Host& host);
int command_embed(const Invocation& invocation, Host& host);
int command_sweep(const Invocation& invocation, Host& host);
int command_plot(const Invocation& invocation, Host& host);
int command_compare(const Invocation& invocation, Host& host);
int command_status(const Invocation& invocation, Host& host);
int command_watch(const Invocation& invocation, Host& host);
int command_check(const Invocation& invocation, Host& host);
int command_mesh(const Invocation& invocation, Host& host);
int command_plan(const Invocation& invocation, Host& host);
int command_program(const Invocation& invocation, Host& host);
int command_launch(const Invocation& invocation, Host& host);
int command_schedule(const Invocation& invocation, Host& host);
int command_tokenizer_encode(const Invocation& invocation, Host& host);
int command_tokenizer_decode(const Invocation& invocation, Host& host);
int command_tokenizer_inspect(const Invocation& invocation, Host& host);
int command_help(const Invocation& invocation, Host& host);
int command_doctor(const Invocation& invocation, Host& host);
int command_docs(const Invocation& invocation, Host& host);

} // namespace mh
