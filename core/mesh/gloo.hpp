#pragma once
/// Gloo, LibTorch's transport between processes on CPUs. Its headers stay in one source file.

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
} // namespace c10d

namespace mh {

/// Connects the members of one group. `interface` is a name such as "eth0", or an address such as
/// "127.0.0.1" to listen on; empty: what the machine's name resolves to.
///
/// Throws:  c10::Error if the others do not come within `timeout`
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const std::string& interface,
    std::chrono::milliseconds timeout
);

} // namespace mh
