#include "core/draw/page.hpp"

#include "core/draw/svg.hpp"

namespace mh::html {

std::string element(const std::string& tag, const std::string& text) {
  return "<" + tag + ">" + svg::escaped(text) + "</" + tag + ">";
}

std::string row(const TextRow& cells, const char* cell, const std::string& classes) {
  std::string text = classes.empty() ? "<tr>" : "<tr class=\"" + classes + "\">";
  for (const std::string& word : cells) {
    text += element(cell, word);
  }
  return text + "</tr>\n";
}

std::string page(const std::string& title, const std::string& body, int64_t seconds) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n" +
         element("title", title) +
         (seconds > 0
              ? "\n<meta http-equiv=\"refresh\" content=\"" + std::to_string(seconds) + "\">"
              : "") +
         R"(
<style>
:root { color-scheme: light dark; }
body { font: 14px system-ui, sans-serif; margin: 24px; background: #ffffff; color: #1f2328; }
h1 { font-size: 20px; } p, li { max-width: 60em; line-height: 1.4; }
table { border-collapse: collapse; margin-top: 16px; }
th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid #8884; }
svg { display: block; max-width: 100%; height: auto; margin-top: 16px; }
.failed { color: #cf222e; } .text td { text-align: left; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) {
body { background: #0d1117; color: #f0f6fc; } .failed { color: #ff7b72; }
}
</style></head><body>
)" + body +
         "</body></html>\n";
}

} // namespace mh::html
