#include "core/session/built_in.hpp"

#include "core/foreign/built_in.hpp"
#include "core/session/devices.hpp"

namespace mh {

void merge_built_in(Host& host) {
  host.registry().merge(builtin_devices());
  host.registry().merge(built_in_formats());
}

} // namespace mh
