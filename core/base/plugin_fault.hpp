#pragma once

namespace mh {

/// The help of an error that is a plugin's fault.
inline constexpr const char* kMendPlugin =
    "this is the plugin's to mend; megahost plugins check tests its file";

} // namespace mh
