// megahost checkpoint ls, inspect, verify, diff: what checkpoints hold, and whether they are whole.

#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/base/visible.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/checkpoint_commands/commands.hpp"
#include "core/checkpoint_commands/saved.hpp"
#include "core/draw/columns.hpp"
#include "core/formats/json.hpp"
#include "core/formats/safetensors.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/changes.hpp"
#include "core/recipe/layouts.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/equal.h>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

/// The numbers of a checkpoint.
struct Summary {
  size_t tensors = 0, files = 0;
  uint64_t weights = 0, state = 0; ///< bytes
};

Summary summary_of(const CheckpointReader& saved) {
  Summary summary;
  for (const CheckpointTensor& tensor : saved.tensors()) {
    (tensor.is_weight ? summary.weights : summary.state) += tensor_bytes(tensor);
    ++summary.tensors;
  }
  std::set<size_t> files;
  for (const StoredBox& box : saved.boxes()) {
    files.insert(box.file);
  }
  summary.files = files.size();
  return summary;
}

std::string size_text(uint64_t bytes) {
  return bytes_text(static_cast<int64_t>(bytes));
}

std::string dtype_text(const CheckpointTensor& tensor) {
  return std::string(dtype_name(dtype_of(tensor.dtype)));
}

/// The description that the run that wrote a checkpoint left in it; absent if the format keeps no
/// state.
struct WrittenBy {
  nlohmann::json state;
  Value recipe = Table();

  explicit WrittenBy(const CheckpointReader& saved) {
    if (!saved.state().empty()) {
      state = parse_json(saved.state(), saved.path().string());
      recipe = read_sections(state.value("sections", std::map<std::string, std::string>()));
    }
  }

  [[nodiscard]] std::string text(const std::string& key) const {
    const Value* value = recipe.find_path(key);
    return value == nullptr ? "" : value->is_string() ? value->as_string() : to_text(*value);
  }

  /// "tensor 2, pipeline 2, zero 1".
  [[nodiscard]] std::string layout(Host& host) const {
    const Value* parallel = recipe.find("parallel");
    if (parallel == nullptr) {
      return "";
    }
    const std::string layout =
        layout_words(*parallel, shared_schema("parallel", host.known(Kind::strategy)));
    return layout.empty() ? "one rank, or copies" : layout;
  }
};

Json tensor_json(const CheckpointTensor& tensor, const std::vector<const StoredBox*>& boxes) {
  Json json{
      {"name", tensor.name},
      {"dtype", dtype_text(tensor)},
      {"shape", tensor.shape},
      {"bytes", tensor_bytes(tensor)},
      {"weight", tensor.is_weight},
      {"boxes", Json::array()}};
  for (const StoredBox* box : boxes) {
    json["boxes"].push_back({{"offset", box->offset}, {"shape", box->shape}, {"file", box->file}});
  }
  return json;
}

/// The boxes of each tensor.
std::map<size_t, std::vector<const StoredBox*>> by_tensor(const std::vector<StoredBox>& boxes) {
  std::map<size_t, std::vector<const StoredBox*>> found;
  for (const StoredBox& box : boxes) {
    found[box.tensor].push_back(&box);
  }
  return found;
}

void print_head(const Saved& saved, const Summary& summary, const Terminal& terminal, Host& host) {
  const WrittenBy by(*saved.reader);
  std::printf("%s\n", terminal.paint(Paint::bold, visible(saved.reader->path().string())).c_str());
  const auto row = [](const char* what, const std::string& text) {
    if (!text.empty()) {
      std::printf("  %-10s %s\n", what, visible(text).c_str());
    }
  };
  row("format", saved.format);
  row("step", saved.step ? grouped(*saved.step) : "");
  row("run", by.text("name"));
  row("model", by.text("model.use"));
  row("precision", by.text("precision"));
  row("layout", by.layout(host));
  row("tokens", by.state.contains("tokens") ? grouped(by.state["tokens"].get<int64_t>()) : "");
  row("weights", size_text(summary.weights));
  row("state", summary.state > 0 ? size_text(summary.state) + " of the optimizer and others" : "");
  row("tensors",
      grouped(static_cast<int64_t>(summary.tensors)) + " in " +
          grouped(static_cast<int64_t>(summary.files)) + (summary.files == 1 ? " file" : " files"));
}

/// A tensor that differs between two checkpoints, in words; empty if it does not.
std::string difference(
    CheckpointReader& left,
    CheckpointReader& right,
    const CheckpointTensor& tensor,
    double& ret_most
) {
  const CheckpointTensor* other = right.find(tensor.name);
  if (other == nullptr) {
    return "only in " + left.path().string();
  }
  if (other->shape != tensor.shape || other->dtype != tensor.dtype) {
    return dtype_text(tensor) + " " + shape_text(tensor.shape) + ", then " + dtype_text(*other) +
           " " + shape_text(other->shape);
  }
  const at::Tensor a = whole_tensor(left, tensor.name), b = whole_tensor(right, tensor.name);
  if (at::equal(a, b)) {
    return "";
  }
  const at::Tensor distance = a.to(at::kDouble).sub_(b.to(at::kDouble)).abs_();
  const auto most = distance.max().item<double>();
  ret_most = std::max(ret_most, most);
  return formatted(
      "%lld of %lld numbers differ, by at most %.3g",
      static_cast<long long>(distance.ne(0).sum().item<int64_t>()),
      static_cast<long long>(distance.numel()),
      most
  );
}

} // namespace

int command_checkpoint_ls(const Invocation& invocation, Host& host) {
  const std::string& folder = invocation.arguments.front();
  const FolderFormat found = format_of(folder, host, invocation.value("--format"));
  const auto& format = *found.format;
  const auto steps = steps_of(format, folder);
  std::vector<std::optional<int64_t>> all;
  if (steps) {
    all.assign(steps->begin(), steps->end());
  } else {
    all.emplace_back();
  }
  Json list = Json::array();
  std::vector<TextRow> rows{{"step", "weights", "state", "tensors", "files", "folder"}};
  for (const auto& step : all) {
    try {
      const auto saved = in_plugin(format, "open", [&] { return format.open(folder, step); });
      const Summary summary = summary_of(*saved);
      list.push_back(
          {{"step", step ? Json(*step) : Json()},
           {"folder", saved->path().string()},
           {"format", found.name},
           {"weights_bytes", summary.weights},
           {"state_bytes", summary.state},
           {"tensors", summary.tensors},
           {"files", summary.files}}
      );
      rows.push_back(
          {step ? grouped(*step) : "-",
           size_text(summary.weights),
           size_text(summary.state),
           grouped(static_cast<int64_t>(summary.tensors)),
           grouped(static_cast<int64_t>(summary.files)),
           saved->path().string()}
      );
    } catch (const Error& error) {
      list.push_back({{"step", step ? Json(*step) : Json()}, {"damaged", error.what()}});
      rows.push_back(
          {step ? grouped(*step) : "-", "-", "-", "-", "-", "damaged: " + std::string(error.what())}
      );
    }
  }
  if (invocation.has("--json")) {
    std::puts(json_text(list).c_str());
  } else {
    std::fputs(columns(rows, Terminal::of(STDOUT_FILENO)).c_str(), stdout);
  }
  return 0;
}

int command_checkpoint_inspect(const Invocation& invocation, Host& host) {
  const Saved saved = open_saved(invocation, invocation.arguments.front(), host);
  const Summary summary = summary_of(*saved.reader);
  const auto boxes = saved.reader->boxes();
  auto stored = by_tensor(boxes);
  const auto& tensors = saved.reader->tensors();
  const std::string part = invocation.value("--tensor");
  const auto is_shown = [&](const CheckpointTensor& tensor) {
    return (invocation.has("--all") || tensor.is_weight || !part.empty()) &&
           tensor.name.find(part) != std::string::npos;
  };
  if (invocation.has("--json")) {
    const WrittenBy by(*saved.reader);
    Json json{
        {"folder", saved.reader->path().string()},
        {"format", saved.format},
        {"step", saved.step ? Json(*saved.step) : Json()},
        {"weights_bytes", summary.weights},
        {"state_bytes", summary.state},
        {"files", summary.files},
        {"state", by.state},
        {"tensors", Json::array()}};
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].name.find(part) != std::string::npos) {
        json["tensors"].push_back(tensor_json(tensors[i], stored[i]));
      }
    }
    std::puts(json_text(json).c_str());
    return 0;
  }
  const Terminal terminal = Terminal::of(STDOUT_FILENO);
  print_head(saved, summary, terminal, host);
  std::vector<TextRow> rows{{"tensor", "dtype", "shape", "bytes", "blocks"}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (is_shown(tensors[i])) {
      rows.push_back(
          {printable(tensors[i].name),
           dtype_text(tensors[i]),
           shape_text(tensors[i].shape),
           size_text(tensor_bytes(tensors[i])),
           grouped(static_cast<int64_t>(stored[i].size()))}
      );
    }
  }
  if (rows.size() == 1 && !part.empty()) {
    throw Error(
        saved.reader->path().string() + " holds no tensor whose name has " + printable(part),
        "leave --tensor out to see all names",
        exit_code::data
    );
  }
  std::printf("\n%s", columns(rows, terminal).c_str());
  const size_t hidden = tensors.size() + 1 - rows.size();
  if (hidden > 0 && part.empty()) {
    std::printf("%zu tensors of state are not shown: --all shows them\n", hidden);
  }
  return 0;
}

int command_checkpoint_verify(const Invocation& invocation, Host& host) {
  const Saved saved = open_saved(invocation, invocation.arguments.front(), host);
  const Summary summary = summary_of(*saved.reader);
  Verification found;
  {
    ByteProgress progress("verifying", summary.weights + summary.state);
    uint64_t done = 0;
    const auto read = [&](uint64_t bytes) { progress(done += bytes); };
    found = saved.reads
                ? in_plugin(*saved.reads, "verify", [&] { return saved.reader->verify(read); })
                : saved.reader->verify(read);
  }
  const std::string where = saved.reader->path().string();
  if (invocation.has("--json")) {
    const Json json{
        {"folder", where},
        {"whole", found.damages.empty()},
        {"checksums", found.checksums},
        {"damages", found.damages}};
    std::puts(json_text(json).c_str());
  } else {
    for (const std::string& damage : found.damages) {
      std::printf("damaged: %s\n", visible(damage).c_str());
    }
    const std::string read = grouped(static_cast<int64_t>(summary.tensors)) + " tensors, " +
                             size_text(summary.weights + summary.state);
    std::printf(
        "%s: %s\n",
        visible(where).c_str(),
        !found.damages.empty()
            ? (grouped(static_cast<int64_t>(found.damages.size())) + " damages").c_str()
        : found.checksums ? (read + ", every checksum matches").c_str()
                          : (read + " can be read; this format keeps no checksums").c_str()
    );
  }
  return found.damages.empty() ? 0 : exit_code::data;
}

int command_checkpoint_diff(const Invocation& invocation, Host& host) {
  const Saved left = open_saved(invocation, invocation.arguments[0], host);
  const Saved right = open_saved(invocation, invocation.arguments[1], host);
  if (left.reader->names() != right.reader->names()) {
    throw Error(
        "the tensors of " + left.reader->path().string() + " and " + right.reader->path().string() +
            " are named by different programs",
        "bring one of them to the other's names: megahost checkpoint export",
        exit_code::data
    );
  }
  const bool weights = !invocation.has("--all");
  uint64_t all = 0, done = 0;
  for (const CheckpointTensor& tensor : left.reader->tensors()) {
    all += weights && !tensor.is_weight ? 0 : tensor_bytes(tensor);
  }
  std::vector<TextRow> rows{{"tensor", "difference"}};
  size_t same = 0;
  double most = 0;
  {
    ByteProgress progress("comparing", all);
    for (const CheckpointTensor& tensor : left.reader->tensors()) {
      if (weights && !tensor.is_weight) {
        continue;
      }
      const std::string how = difference(*left.reader, *right.reader, tensor, most);
      progress(done += tensor_bytes(tensor));
      if (how.empty()) {
        ++same;
      } else {
        rows.push_back({tensor.name, how});
      }
    }
  }
  for (const CheckpointTensor& tensor : right.reader->tensors()) {
    if ((!weights || tensor.is_weight) && left.reader->find(tensor.name) == nullptr) {
      rows.push_back({tensor.name, "only in " + right.reader->path().string()});
    }
  }
  if (rows.size() > 1) {
    std::fputs(columns(rows, Terminal::of(STDOUT_FILENO)).c_str(), stdout);
  }
  std::printf(
      "%zu tensors are the same bit for bit, %zu differ%s\n",
      same,
      rows.size() - 1,
      most > 0 ? formatted(", by at most %.3g", most).c_str() : ""
  );
  return rows.size() == 1 ? 0 : 1;
}

} // namespace mh
