#pragma once
/// `megahost bench ...`: what this machine reaches.

#include "core/cli/invocation.hpp"
#include "megahost/host.hpp"

namespace mh {

int command_bench(const Invocation& invocation, Host& host);
int command_bench_step(const Invocation& invocation, Host& host);
int command_bench_data(const Invocation& invocation, Host& host);
int command_bench_gemm(const Invocation& invocation, Host& host);
int command_bench_attention(const Invocation& invocation, Host& host);
int command_bench_masks(const Invocation& invocation, Host& host);
int command_bench_memory(const Invocation& invocation, Host& host);
int command_bench_comm(const Invocation& invocation, Host& host);
int command_bench_ops(const Invocation& invocation, Host& host);
int command_bench_gpu(const Invocation& invocation, Host& host);

} // namespace mh
