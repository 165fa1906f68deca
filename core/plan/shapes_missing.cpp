#include "core/plan/shapes_missing.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace mh {

namespace {

/// The first word of `text` between two marks behind `start`; empty if there is none.
std::string between(const std::string& text, const std::string& start, const std::string& end) {
  const size_t at = text.find(start);
  if (at == std::string::npos) {
    return "";
  }
  const size_t begin = at + start.size();
  const size_t stop = text.find(end, begin);
  return stop == std::string::npos ? "" : text.substr(begin, stop - begin);
}

/// " (in the architecture of plugin org.example.shift, forward of block layers.0)"; empty if
/// unknown.
std::string where_of(const c10::Error& error) {
  return error.context().empty() ? "" : " (" + error.context().front() + ")";
}

/// Operators whose result, or its size, depends on values.
constexpr std::string_view kNeedValues[] = {
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave.Tensor"};

bool needs_values(const std::string& name) {
  return std::find(std::begin(kNeedValues), std::end(kNeedValues), name) != std::end(kNeedValues);
}

} // namespace

void explain_missing_shape(const c10::Error& error) {
  const std::string text = error.msg();
  // LibTorch names its operators in one form; a plugin's have a fallback that names them in
  // another.
  std::string name = between(text, "Could not run '", "'");
  if (name.empty() && text.find(": attempted to run this operator with Meta") != text.npos) {
    name = between(text, "", ": attempted");
  }
  if (text.starts_with("convolution_overrideable not implemented")) { // what convolutions end in
    name = "aten::convolution_overrideable";
  }
  const bool read = name == "aten::_local_scalar_dense" || // item()
                    name == "aten::equal" ||
                    (name.empty() && (text.find("meta tensor") != std::string::npos ||
                                      text.find("Meta tensor") != std::string::npos));
  if (read) {
    throw Error(
        "the step reads a tensor's value on the host" + where_of(error) +
            ", which a plan does not have (" +
            (name.empty() ? text.substr(0, text.find('\n')) : name) + ")",
        "read it with context.host_value(tensor, assumed); an optimizer goes on with the tensor: "
        "weight.sub_(step * trust), at::where(mask, a, b)"
    );
  }
  if (needs_values(name)) {
    throw Error(
        "the result of the operation " + name + where_of(error) +
            ", or its size, depends on values, which the Meta device does not have: a step with it "
            "cannot be planned",
        "use an operation whose result has a size known before (where with a mask, topk, cumsum), "
        "or read values with context.host_values(tensor, assumed)"
    );
  }
  if (!name.empty()) {
    const size_t colons = name.find("::");
    const std::string space = name.substr(0, colons);
    const std::string op = colons == std::string::npos ? name : name.substr(colons + 2);
    throw Error(
        "the operation " + name + where_of(error) +
            " has no shape function, so a step with it cannot be planned: a plan runs the step on "
            "the Meta device",
        "in the plugin that calls it: registry.operators(\"" + space +
            "\", [](torch::Library& m) { m.impl(\"" + op +
            "\", torch::dispatch(c10::DispatchKey::Meta, shape)); }), where `shape` takes the "
            "operation's arguments and returns empty tensors of its results' sizes and strides"
    );
  }
  throw error;
}

} // namespace mh
