#pragma once
/// Numbers as people read them.

#include <cstdint>
#include <string>

namespace mh {

/// printf into a string.
[[gnu::format(printf, 1, 2)]] [[nodiscard]] std::string formatted(const char* format, ...);
/// "10,123,456".
[[nodiscard]] std::string grouped(int64_t number);
/// "1 layer", "1,200 layers".
[[nodiscard]] std::string counted(int64_t number, const std::string& noun);
/// "183.2 MB".
[[nodiscard]] std::string bytes_text(int64_t bytes);
/// "2m 05s", "1h 02m", "12s".
[[nodiscard]] std::string duration_text(double seconds);

} // namespace mh
