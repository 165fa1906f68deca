#include "core/checkpoint_commands/saved.hpp"

#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/model/plugin_call.hpp"
#include "core/options/read.hpp"
#include "core/storage/folder_storage.hpp"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

namespace mh {

namespace {

[[noreturn]] void
no_such_step(const Path& folder, int64_t step, const std::vector<int64_t>& steps) {
  std::string there;
  for (const int64_t one : std::vector(steps.rbegin(), steps.rend())) {
    there += (there.empty() ? "" : ", ") + std::to_string(one);
  }
  throw Error(
      folder.string() + " holds no checkpoint of step " + std::to_string(step),
      "it holds those of steps " + there,
      exit_code::data
  );
}

} // namespace

Saved open_saved(const Invocation& invocation, const std::string& folder, Host& host) {
  auto storage = std::make_shared<FolderStorage>(host.storage(), folder);
  if (storage->contains(Path(folder) / kManifestName)) {
    if (invocation.has("--step")) {
      throw Error(folder + " is the checkpoint of one step", "leave --step out, or give the run");
    }
    auto reader = std::make_unique<Checkpoint>(*storage, folder);
    const int64_t step = reader->manifest().step;
    return {"native", std::move(storage), nullptr, std::move(reader), step};
  }
  FolderFormat found = format_of(folder, host, invocation.value("--format"));
  Saved saved{found.name, std::move(found.storage), std::move(found.format), nullptr};
  const auto& format = *saved.reads;
  if (const auto steps = steps_of(format, folder)) {
    if (steps->empty()) {
      throw Error(
          folder + " holds no checkpoint yet", "give a run that has saved one", exit_code::data
      );
    }
    saved.step = steps->front();
    if (invocation.has("--step")) {
      constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
      saved.step = number_option(invocation, "--step", 0, 0, kMost);
      if (std::find(steps->begin(), steps->end(), *saved.step) == steps->end()) {
        no_such_step(folder, *saved.step, *steps);
      }
    }
  } else if (invocation.has("--step")) {
    throw Error(
        folder + " is a " + format.about() + ", which has no steps",
        "leave --step out",
        exit_code::data
    );
  }
  saved.reader = in_plugin(format, "open", [&] { return format.open(folder, saved.step); });
  return saved;
}

ByteProgress::ByteProgress(std::string what, uint64_t all)
    : what_(std::move(what))
    , all_(all)
    , terminal_(Terminal::of(STDERR_FILENO)) {}

ByteProgress::~ByteProgress() {
  if (shown_ && terminal_.interactive) {
    std::fputs("\r\x1b[K", stderr);
  }
}

void ByteProgress::operator()(uint64_t done) {
  const auto now = Clock::now();
  const auto pause =
      terminal_.interactive ? std::chrono::milliseconds(100) : std::chrono::seconds(20);
  if (now - drawn_ < pause || all_ == 0) {
    return;
  }
  drawn_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(all_);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const std::string line = formatted(
      "%s %s of %s  ETA %s",
      what_.c_str(),
      bytes_text(static_cast<int64_t>(done)).c_str(),
      bytes_text(static_cast<int64_t>(all_)).c_str(),
      duration_text(share > 0 ? seconds / share * (1 - share) : 0).c_str()
  );
  if (terminal_.interactive) {
    const int cells_left = std::clamp(terminal_.width - cells(line) - 3, 0, 40);
    std::fprintf(
        stderr,
        "\r\x1b[K%s %s",
        terminal_.paint(Paint::cyan, bar(share, cells_left)).c_str(),
        line.c_str()
    );
    std::fflush(stderr);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  shown_ = true;
}

uint64_t tensor_bytes(const CheckpointTensor& tensor) {
  return value_bytes(tensor.dtype, tensor.shape);
}

Path output_folder(const Invocation& invocation) {
  const Path to = invocation.value("-o");
  if (to.empty()) {
    throw Error("megahost " + invocation.command + " needs a folder to write", "give it by -o DIR");
  }
  return to;
}

Path output_of_format(
    const Invocation& invocation,
    Storage& storage,
    const std::vector<std::string_view>& own,
    const std::string& half
) {
  const Path to = output_folder(invocation);
  for (const Storage::Item& item : storage.list(to)) {
    const bool ours = !item.is_prefix && std::ranges::any_of(own, [&](std::string_view name) {
      return item.name.starts_with(name);
    });
    if (!ours && (!item.is_prefix || item.name != half)) {
      throw Error(
          to.string() + " is not empty: it holds " + printable(item.name),
          "name another folder by -o: two formats in one could be taken for each other",
          exit_code::data
      );
    }
  }
  if (!half.empty()) {
    storage.remove_all(to / half);
  }
  if (!scheme_of(to.native()
      )) { // in a store `checkpoint gc` does it, which may ask for more rights
    storage.remove_unfinished(to);
  }
  return to;
}

namespace {

/// A line's number of kB, such as "MemAvailable:  12345 kB"; 0 if there is none.
uint64_t kilobytes_in(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string word; lines >> word;) {
    uint64_t value = 0;
    if (word == name + ":" && lines >> value) {
      return value << 10;
    }
  }
  return 0;
}

/// Free bytes of the disk on which a folder lies, or will; nothing in an object store.
std::optional<uint64_t> free_bytes(Path folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (scheme_of(folder.native())) {
    return std::nullopt;
  }
  folder = fs::absolute(folder, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) {
    folder = folder.parent_path();
  }
  const fs::space_info space = fs::space(folder, error);
  return error ? std::nullopt : std::optional<uint64_t>(space.available);
}

} // namespace

void say_needs(const std::string& what, const OutlinedTensors& tensors, const Path& to) {
  const auto text = [](uint64_t bytes) { return bytes_text(static_cast<int64_t>(bytes)); };
  constexpr uint64_t kWorking = 4 << 20; // buffers, and code that is loaded when it is first run
  const uint64_t more = tensors.at_once + kWorking;
  const uint64_t memory = kilobytes_in("/proc/self/status", "VmRSS") + more;
  const size_t files = tensors.files().size();
  std::fprintf(
      stderr,
      "%s writes %s in %zu %s and takes %s of memory\n",
      what.c_str(),
      text(tensors.bytes()).c_str(),
      files,
      files == 1 ? "file" : "files",
      text(memory).c_str()
  );
  if (const uint64_t free = kilobytes_in("/proc/meminfo", "MemAvailable");
      free > 0 && more > free) {
    throw Error(
        what + " takes " + text(memory) + " of memory, and this machine has " + text(free) +
            " free",
        "its largest tensors do not fit at once: do it on a machine with more memory",
        exit_code::memory
    );
  }
  if (const auto free = free_bytes(to); free && tensors.bytes() > *free) {
    throw Error(
        what + " writes " + text(tensors.bytes()) + ", and the disk of " + to.string() + " has " +
            text(*free) + " free",
        "free some space there, or name a folder of another disk by -o",
        exit_code::data
    );
  }
}

uint64_t file_bytes(const Invocation& invocation) {
  return static_cast<uint64_t>(real_option(invocation, "--file-size", 5000, 0.001, 1e9) * 1e6);
}

std::optional<at::ScalarType> dtype_named(const std::string& word) {
  return word == "float32" || word == "fp32"    ? std::optional(at::kFloat)
         : word == "float16" || word == "fp16"  ? std::optional(at::kHalf)
         : word == "bfloat16" || word == "bf16" ? std::optional(at::kBFloat16)
                                                : std::nullopt;
}

void return_freed_memory() {
  (void)mallopt(M_MMAP_THRESHOLD, 64 << 10);
}

} // namespace mh
