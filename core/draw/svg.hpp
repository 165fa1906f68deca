#pragma once
/// The building blocks of every picture of ours: words of SVG, and one style for light and dark
/// pages.

#include <array>
#include <cstdio>
#include <string>

namespace mh::svg {

/// Background, text, and the classes label, title, head, grid; c0 .. c5 colour lines, f0 .. f5 fill
/// with the same colours.
inline constexpr const char* kStyle = R"(<style>
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
text { fill: #1f2328; } .label { fill: #59636e; } .title { font-weight: 600; font-size: 13px; }
.head { font-weight: 600; font-size: 15px; } .grid { stroke: #d1d9e0; stroke-width: 1; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #1a7f37; }
.c3 { stroke: #8250df; } .c4 { stroke: #cf222e; } .c5 { stroke: #57606a; }
.f0 { fill: #0969da; } .f1 { fill: #bc4c00; } .f2 { fill: #1a7f37; }
.f3 { fill: #8250df; } .f4 { fill: #cf222e; } .f5 { fill: #57606a; } .on { fill: #ffffff; }
.mark { fill: #ffffff; stroke-width: 1.8; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; } text { fill: #f0f6fc; } .label { fill: #9198a1; } .grid { stroke: #3d444d; }
.c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #56d364; }
.c3 { stroke: #bc8cff; } .c4 { stroke: #ff7b72; } .c5 { stroke: #b1bac4; }
.f0 { fill: #58a6ff; } .f1 { fill: #f0883e; } .f2 { fill: #56d364; }
.f3 { fill: #bc8cff; } .f4 { fill: #ff7b72; } .f5 { fill: #b1bac4; } .on { fill: #0d1117; }
.mark { fill: #0d1117; }
}
</style>
)";

/// Formats as printf does; at most 511 bytes.
template <class... Arguments>
[[nodiscard]] std::string format(const char* text, Arguments... arguments) {
  std::array<char, 512> buffer{};
  std::snprintf(buffer.data(), buffer.size(), text, arguments...);
  return buffer.data();
}

/// Text between tags: what XML forbids in it is gone or escaped.
[[nodiscard]] std::string escaped(const std::string& text);

/// A text element of these classes; `anchor` is start, middle or end.
[[nodiscard]] std::string
text_at(double x, double y, const char* classes, const char* anchor, const std::string& text);

/// The beginning of a document of this size, in pixels, with its style; it ends with "</svg>\n".
[[nodiscard]] std::string document(const std::string& title, int width, int height);

} // namespace mh::svg
