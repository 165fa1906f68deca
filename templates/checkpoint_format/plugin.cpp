// Plain bytes: each rank writes its boxes of tensors into one file, and rank 0 writes an index of
// text that says which box lies where. The index comes last: a step without one does not count.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/checkpoint_format.hpp>
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace {

constexpr const char* kFolder = "@name@"; // in the folder that a person names
constexpr const char* kIndex = "index";
constexpr uint64_t kLongestIndex = uint64_t{1} << 30;

using Sizes = std::vector<int64_t>;

/// A box of a tensor, and where its bytes are.
struct Box {
  std::string tensor;
  at::ScalarType dtype = at::kFloat;
  Sizes whole, offset, shape;
  std::string file;
  uint64_t position = 0;
};

/// All that says which box it is, the same on each rank that holds it.
std::string key_of(const mh::Slice& slice) {
  std::ostringstream text;
  text << static_cast<int>(slice.local.scalar_type()) << ' ' << slice.offset.size();
  for (const auto& sizes : {slice.global_shape, slice.offset, slice.local.sizes().vec()}) {
    for (const int64_t size : sizes) {
      text << ' ' << size;
    }
  }
  text << ' ' << slice.name;
  return text.str();
}

/// A line of the index: file, position and key.
Box parse(const std::string& line, const mh::Path& index) {
  std::istringstream text(line);
  Box box;
  int dtype = 0;
  size_t rank = 0;
  text >> box.file >> box.position >> dtype >> rank;
  const bool sane = text && rank < 100 && dtype >= 0 &&
                    dtype < static_cast<int>(at::ScalarType::NumOptions);
  for (Sizes* sizes : {&box.whole, &box.offset, &box.shape}) {
    sizes->resize(sane ? rank : 0);
    for (int64_t& size : *sizes) {
      text >> size;
    }
  }
  box.dtype = static_cast<at::ScalarType>(dtype);
  if (!sane || !std::getline(text >> std::ws, box.tensor) || box.tensor.empty() ||
      box.file.find('/') != std::string::npos) {
    throw mh::Error(index.string() + ": \"" + line + "\" is no line of it", "", mh::exit_code::data);
  }
  return box;
}

/// The part of a tensor that starts at `origin` which two boxes share; undefined if they share
/// nothing.
at::Tensor shared(at::Tensor value, const Sizes& origin, const Box& box, const mh::Slice& slice) {
  for (size_t d = 0; d < origin.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const int64_t begin = std::max(box.offset[d], slice.offset[d]);
    const int64_t end =
        std::min(box.offset[d] + box.shape[d], slice.offset[d] + slice.local.size(dim));
    if (begin >= end) {
      return {};
    }
    value = value.narrow(dim, begin - origin[d], end - begin);
  }
  return value;
}

class Reader : public mh::CheckpointReader {
public:
  Reader(mh::Storage& storage, mh::Path folder)
      : storage_(storage)
      , folder_(std::move(folder)) {
    std::istringstream text(mh::get_text(storage_, folder_ / kIndex, kLongestIndex));
    std::getline(text, state_);
    std::map<std::string, mh::CheckpointTensor> tensors;
    for (std::string line; std::getline(text, line);) {
      boxes_.push_back(parse(line, folder_ / kIndex));
      const Box& box = boxes_.back();
      const bool is_weight = !box.tensor.starts_with("optimizer."); // else its state
      tensors[box.tensor] = {box.tensor, box.dtype, box.whole, is_weight};
    }
    for (auto& [name, tensor] : tensors) {
      tensors_.push_back(std::move(tensor));
    }
  }

  mh::Path path() const override { return folder_; }

  const std::vector<mh::CheckpointTensor>& tensors() const override { return tensors_; }

  std::string state() const override { return state_; }

  // Each box is read once, whatever number of slices it has a part of.
  void read(std::span<const mh::Slice> slices) override {
    std::map<std::string, std::vector<const mh::Slice*>> wanted;
    for (const mh::Slice& slice : slices) {
      wanted[slice.name].push_back(&slice);
    }
    for (const Box& box : boxes_) {
      at::Tensor value;
      for (const mh::Slice* slice : wanted[box.tensor]) {
        const at::Tensor into = shared(slice->local, slice->offset, box, *slice);
        if (!into.defined() || into.numel() == 0) {
          continue;
        }
        if (!value.defined()) {
          value = read(box);
        }
        into.copy_(shared(value, box.offset, box, *slice));
      }
    }
  }

private:
  at::Tensor read(const Box& box) const {
    const at::Tensor value = at::empty(box.shape, at::TensorOptions(box.dtype));
    const mh::Path path = folder_ / box.file;
    const auto bytes = static_cast<std::byte*>(value.data_ptr());
    mh::read_exactly(*storage_.get(path), box.position, {bytes, value.nbytes()}, path);
    return value;
  }

  mh::Storage& storage_;
  mh::Path folder_;
  std::string state_;
  std::vector<Box> boxes_;
  std::vector<mh::CheckpointTensor> tensors_;
};

class @Name@ : public mh::CheckpointFormat {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {} // options of the recipe's section `checkpoint`

  @Name@(const Config&, const Args& args)
      : storage_(args.storage) {}

  std::string about() const override { return "@name@ folder"; }

  std::string mark() const override { return std::string(kFolder) + "/"; }

  mh::Path place(const mh::Path& folder) const override { return folder / kFolder; }

  bool detect(const mh::Path& folder) const override { return !saved(folder).empty(); }

  std::optional<std::vector<int64_t>> steps(const mh::Path& folder) const override {
    std::vector<int64_t> steps;
    for (const auto& [step, name] : saved(folder)) {
      steps.push_back(step);
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  std::unique_ptr<mh::CheckpointReader>
  open(const mh::Path& folder, std::optional<int64_t> step) const override {
    return std::make_unique<Reader>(storage_, place(folder) / saved(folder).at(step.value()));
  }

  void write(
      const mh::Path& folder, const mh::CheckpointContents& contents, const mh::Ranks& ranks
  ) const override {
    const mh::Path target = place(folder) / mh::on_first(ranks, [&] {
      return free_name(folder, contents.step);
    });
    // A slice that several ranks hold is the first one's to write.
    const auto held = mh::together(ranks, [&] {
      std::string keys;
      for (const mh::Slice& slice : contents.slices) {
        keys += key_of(slice) + "\n";
      }
      return keys;
    });
    std::set<std::string> taken;
    for (int64_t rank = 0; rank < ranks.rank; ++rank) {
      std::istringstream keys(held[static_cast<size_t>(rank)]);
      for (std::string key; std::getline(keys, key);) {
        taken.insert(key);
      }
    }
    const auto lines = mh::together(ranks, [&] {
      return write_own(target, "rank-" + std::to_string(ranks.rank), contents.slices, taken);
    });
    mh::on_first(ranks, [&] {
      std::string index = contents.state + "\n";
      for (const std::string& own : lines) {
        index += own;
      }
      mh::put_text(storage_, target / kIndex, index, mh::Storage::Existing::refuse);
      return std::string();
    });
  }

  void remove(const mh::Path& folder, int64_t step) const override {
    for (const auto& [name, is_prefix] : storage_.list(place(folder))) {
      if (is_prefix && std::atoll(name.c_str()) == step) {
        storage_.remove(place(folder) / name / kIndex); // first, so that it never counts in part
        storage_.remove_all(place(folder) / name);
      }
    }
  }

private:
  /// Names of the folders that have an index, by step; of several the last counts.
  std::map<int64_t, std::string> saved(const mh::Path& folder) const {
    std::map<int64_t, std::string> names;
    for (const auto& [name, is_prefix] : storage_.list(place(folder))) {
      if (is_prefix && storage_.contains(place(folder) / name / kIndex)) {
        names[std::atoll(name.c_str())] = name; // "10", "10-2"
      }
    }
    return names;
  }

  /// No folder is written twice: a step that is saved again gets another.
  std::string free_name(const mh::Path& folder, int64_t step) const {
    std::string name = std::to_string(step);
    for (int again = 2; !storage_.list(place(folder) / name).empty(); ++again) {
      name = std::to_string(step) + "-" + std::to_string(again);
    }
    return name;
  }

  std::string write_own(
      const mh::Path& target,
      const std::string& file,
      std::span<const mh::Slice> slices,
      std::set<std::string>& ret_taken
  ) const {
    const auto upload = storage_.put(target / file, mh::Storage::Existing::refuse);
    std::string lines;
    uint64_t position = 0;
    for (const mh::Slice& slice : slices) {
      const std::string key = key_of(slice);
      if (slice.local.numel() == 0 || !ret_taken.insert(key).second) {
        continue;
      }
      const at::Tensor value = slice.local.detach().to(at::kCPU).contiguous();
      upload->write({static_cast<const std::byte*>(value.data_ptr()), value.nbytes()});
      lines += file + " " + std::to_string(position) + " " + key + "\n";
      position += value.nbytes();
    }
    upload->finish();
    return lines;
  }

  mh::Storage& storage_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a checkpoint format", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "plain bytes, and an index of text");
})
