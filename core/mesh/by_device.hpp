#pragma once
/// One transport of two: host tensors go by one, an accelerator's by the other.

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}

namespace mh {

/// Both connect the same members of one group. A collective goes where its input lies.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend>
by_device(c10::intrusive_ptr<c10d::Backend> host, c10::intrusive_ptr<c10d::Backend> accelerator);

} // namespace mh
