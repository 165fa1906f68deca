#include "core/checkpoint/local_saves.hpp"

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/formats/manifest.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/mesh.hpp"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace mh {

namespace {

using nlohmann::json;

constexpr const char* kLayout = "layout"; // a key of the manifest's state

/// The node of a rank, and its place there.
std::pair<int64_t, int64_t> place_of(const Nodes& nodes, int64_t rank) {
  for (size_t node = 0; node < nodes.ranks.size(); ++node) {
    const auto& ranks = nodes.ranks[node];
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    if (found != ranks.end()) {
      return {static_cast<int64_t>(node), found - ranks.begin()};
    }
  }
  MH_ASSERT(false, "a rank is on no node");
  return {};
}

json outline_of(const std::vector<Slice>& slices) {
  json outline = json::array();
  for (const Slice& slice : slices) {
    outline.push_back(
        {slice.name,
         slice.global_shape,
         slice.offset,
         slice.local.sizes().vec(),
         dtype_name(dtype_of(slice.local.scalar_type()))}
    );
  }
  return outline;
}

/// Host memory for slices of another rank.
std::vector<Slice> slices_from(const json& outline) {
  std::vector<Slice> slices;
  for (const json& one : outline) {
    const auto dtype = dtype_from_name(one[4].get<std::string>());
    slices.push_back(
        {one[0],
         one[1],
         one[2],
         at::empty(one[3].get<std::vector<int64_t>>(), at::TensorOptions(scalar_type(*dtype)))}
    );
  }
  return slices;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.reshape({-1}).view(at::kByte);
}

} // namespace

Ranks Nodes::own(const Ranks& all) const {
  return {
      .rank = index,
      .gather =
          [gather = all.gather, mine = ranks[static_cast<size_t>(node)]](const std::string& text) {
            const auto texts = gather(text);
            std::vector<std::string> own;
            for (const int64_t rank : mine) {
              own.push_back(texts[static_cast<size_t>(rank)]);
            }
            return own;
          },
      .group = nullptr};
}

Nodes nodes_of(const Ranks& ranks, const std::string& machine, int64_t local_rank) {
  const auto places = ranks.gather(json{machine, local_rank}.dump());
  Nodes nodes;
  std::map<std::string, size_t> newest; // node of each machine
  std::vector<std::set<int64_t>> used;  // local ranks of each node
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const auto place = json::parse(places[rank]);
    const int64_t local = place[1];
    auto found = newest.find(place[0].get<std::string>());
    if (found == newest.end() || used[found->second].contains(local)) {
      found = newest.insert_or_assign(place[0].get<std::string>(), used.size()).first;
      used.emplace_back();
      nodes.ranks.emplace_back();
    }
    used[found->second].insert(local);
    nodes.ranks[found->second].push_back(static_cast<int64_t>(rank));
  }
  std::tie(nodes.node, nodes.index) = place_of(nodes, ranks.rank);
  return nodes;
}

LocalSaves::LocalSaves(Storage& storage, Terms terms, Nodes nodes, Ranks ranks, Ranks meeting)
    : storage_(storage)
    , terms_(std::move(terms))
    , nodes_(std::move(nodes))
    , ranks_(std::move(ranks)) {
  terms_.copies = std::min(terms_.copies, nodes_.count() - 1);
  saves_ = std::make_unique<BackgroundSaves>(
      [this](const CheckpointContents& contents, const Ranks& all) { write(contents, all); },
      ranks_,
      std::move(meeting),
      [this](std::vector<Slice>& ret_copies) { exchange(ret_copies); }
  );
}

Path LocalSaves::place(int64_t node) const {
  char name[32];
  std::snprintf(name, sizeof name, "node-%05d", static_cast<int>(node));
  return terms_.folder / name;
}

/// Nodes whose parts this one keeps: its own first.
std::vector<int64_t> LocalSaves::kept_nodes() const {
  std::vector<int64_t> nodes;
  for (int64_t i = 0; i <= terms_.copies; ++i) {
    nodes.push_back((nodes_.node - i + nodes_.count()) % nodes_.count());
  }
  return nodes;
}

/// Ranks of the next nodes that keep copies of a rank's slices.
std::vector<int64_t> LocalSaves::holders(int64_t rank) const {
  const auto [node, index] = place_of(nodes_, rank);
  std::vector<int64_t> holders;
  for (int64_t i = 1; i <= terms_.copies; ++i) {
    const auto& there = nodes_.ranks[static_cast<size_t>((node + i) % nodes_.count())];
    holders.push_back(there[static_cast<size_t>(index) % there.size()]);
  }
  return holders;
}

void LocalSaves::plan(std::span<const Slice> slices) {
  saves_->plan(slices, nodes_.own(ranks_));
  const auto outlines =
      together(ranks_, [&] { return outline_of(saves_->planned(slices)).dump(); });
  others_.clear();
  for (size_t rank = 0; rank < outlines.size(); ++rank) {
    if (std::ranges::count(holders(static_cast<int64_t>(rank)), ranks_.rank) > 0) {
      others_.push_back({static_cast<int64_t>(rank), slices_from(json::parse(outlines[rank]))});
    }
  }
}

int64_t LocalSaves::bytes() const {
  int64_t bytes = saves_->bytes();
  for (const Part& part : others_) {
    for (const Slice& slice : part.slices) {
      bytes += static_cast<int64_t>(slice.local.nbytes());
    }
  }
  return bytes;
}

/// Other nodes get copies of what was copied, and this rank theirs.
void LocalSaves::exchange(std::vector<Slice>& ret_copies) {
  if (terms_.copies == 0) {
    return;
  }
  MH_ASSERT(ranks_.group != nullptr, "ranks of several nodes have a group");
  std::vector<Pending> sent;
  std::vector<at::Tensor> kept; // until they are sent
  for (const int64_t holder : holders(ranks_.rank)) {
    for (const Slice& slice : ret_copies) {
      kept.push_back(as_bytes(slice.local));
      sent.push_back(ranks_.group->send(kept.back(), holder));
    }
  }
  for (const Part& part : others_) {
    for (const Slice& slice : part.slices) {
      ranks_.group->receive(as_bytes(slice.local), part.owner).wait();
    }
  }
  for (Pending& one : sent) {
    one.wait();
  }
  for (const Part& part : others_) {
    ret_copies.insert(ret_copies.end(), part.slices.begin(), part.slices.end());
  }
}

void LocalSaves::write(const CheckpointContents& contents, const Ranks& ranks) const {
  std::map<int64_t, StepFolder> folders; // folders of the nodes whose parts lie here
  for (const int64_t node : kept_nodes()) {
    folders.emplace(
        std::piecewise_construct,
        std::forward_as_tuple(node),
        std::forward_as_tuple(storage_, place(node), kManifestName, contents.warn)
    );
  }
  const auto each = [&](const auto& action) {
    for (auto& [node, folder] : folders) {
      if (nodes_.leads()) {
        action(node, folder);
      }
    }
  };
  try {
    const auto begun = together(ranks, [&] {
      json places = json::object();
      each([&](int64_t node, StepFolder& folder) {
        folder.recover();
        places[std::to_string(node)] = folder.begin(contents.step).string();
      });
      return json{places, ranks.rank == 0 ? contents.state : ""}.dump();
    });
    const auto first = static_cast<size_t>(nodes_.ranks[static_cast<size_t>(nodes_.node)].front());
    const json places = json::parse(begun[first])[0];
    json state = json::parse(json::parse(begun[0])[1].get<std::string>());
    state[kLayout] = terms_.layout;
    const auto parts = together(ranks, [&] {
      json texts = json::object();
      auto next = contents.slices.begin();
      const auto write_slices = [&](int64_t owner, size_t count) {
        const std::string node = std::to_string(place_of(nodes_, owner).first);
        const Path directory = places[node].get<std::string>();
        texts[std::to_string(owner)] =
            manifest_text(write_part(storage_, directory, {next, count}, owner));
        next += static_cast<ptrdiff_t>(count);
      };
      size_t copies = 0;
      for (const Part& part : others_) {
        copies += part.slices.size();
      }
      write_slices(ranks.rank, contents.slices.size() - copies);
      for (const Part& part : others_) {
        write_slices(part.owner, part.slices.size());
      }
      return texts.dump();
    });
    (void)together(ranks, [&]() -> std::string {
      std::vector<json> written;
      for (const std::string& text : parts) {
        written.push_back(json::parse(text));
      }
      each([&](int64_t node, StepFolder& folder) {
        std::vector<Manifest> merged;
        for (const int64_t owner : nodes_.ranks[static_cast<size_t>(node)]) {
          const std::string name = std::to_string(owner);
          const std::string text = written[static_cast<size_t>(owner)][name];
          for (const json& other : written) {
            if (other.contains(name) && other[name] != text) {
              throw Error("a copy of rank " + name + "'s part has other bytes", "save again");
            }
          }
          merged.push_back(read_manifest(text, "rank " + name, /*is_part=*/true));
        }
        Manifest manifest = merge_manifests(std::move(merged), /*whole=*/false);
        manifest.step = contents.step;
        manifest.state = state;
        folder.commit(contents.step, manifest_text(std::move(manifest)));
      });
      return "";
    });
  } catch (const Error&) {
    each([&](int64_t, StepFolder& folder) { folder.abandon(contents.step); });
    throw;
  }
  each([&](int64_t, StepFolder& folder) { // the new one is there on all nodes
    try {
      for (const int64_t step : folder.steps()) {
        if (step != contents.step) {
          (void)folder.remove(step);
        }
      }
    } catch (const Error& error) {
      contents.warn(std::string("an older local checkpoint is not removed: ") + error.what());
    }
  });
}

/// Nodes whose parts of a step are whole here, by step: {"10": [0, 3]}.
std::string LocalSaves::whole_steps() const {
  json found = json::object();
  for (int64_t node = 0; node < nodes_.count(); ++node) {
    StepFolder folder(storage_, place(node), kManifestName, [](const std::string&) {});
    for (const int64_t step : folder.steps()) {
      try {
        Checkpoint saved(storage_, folder.path(step), /*is_part=*/true);
        if (saved.manifest().state.value(kLayout, "") == terms_.layout) {
          saved.require_whole();
          found[std::to_string(step)].push_back(node);
        }
      } catch (const Error&) { // another node may have a whole copy
      }
    }
  }
  return found.dump();
}

/// Copies a node's part of a step from the donor node, file by file.
void LocalSaves::give(int64_t step, int64_t node, int64_t donor) {
  const int64_t from = nodes_.ranks[static_cast<size_t>(donor)].front();
  const int64_t to = nodes_.ranks[static_cast<size_t>(node)].front();
  const bool gives = ranks_.rank == from, takes = ranks_.rank == to;
  StepFolder folder(storage_, place(node), kManifestName, [](const std::string&) {});
  Path directory;
  const std::string text = together(ranks_, [&]() -> std::string {
    directory = gives ? folder.path(step) : directory;
    if (takes) {
      folder.recover();
      for (const int64_t old : folder.steps()) { // the damaged one, or another that is of no use
        (void)folder.remove(old);
      }
      directory = folder.begin(step);
    }
    return gives ? get_text(storage_, directory / kManifestName, uint64_t{1} << 32) : "";
  })[static_cast<size_t>(from)];
  const Manifest manifest = read_manifest(text, "the copy of node " + std::to_string(node), true);
  for (const StoredFile& file : manifest.files) {
    at::Tensor bytes;
    (void)together(ranks_, [&]() -> std::string {
      if (gives || takes) {
        bytes = at::empty({static_cast<int64_t>(file.size)}, at::kByte);
      }
      if (gives) {
        const auto stored = storage_.get(directory / file.name);
        read_exactly(*stored, 0, bytes_of(bytes), directory / file.name);
      }
      return "";
    });
    if (gives) {
      ranks_.group->send(bytes, to).wait();
    } else if (takes) {
      ranks_.group->receive(bytes, from).wait();
    }
    (void)together(ranks_, [&]() -> std::string {
      if (takes) {
        const auto upload = storage_.put(directory / file.name, Storage::Existing::refuse);
        upload->write(bytes_of(bytes));
        upload->finish();
      }
      return "";
    });
  }
  (void)together(ranks_, [&]() -> std::string {
    if (takes) {
      folder.commit(step, text);
      Checkpoint(storage_, folder.path(step), /*is_part=*/true).require_whole();
    }
    return "";
  });
}

std::optional<int64_t>
LocalSaves::recover(int64_t newer_than, const std::function<void(const std::string&)>& say) {
  const auto found = together(ranks_, [&] { return nodes_.leads() ? whole_steps() : "{}"; });
  std::map<int64_t, std::map<int64_t, std::vector<int64_t>>>
      where; // step, part, nodes that have it
  for (int64_t node = 0; node < nodes_.count(); ++node) {
    const int64_t leader = nodes_.ranks[static_cast<size_t>(node)].front();
    const json steps = json::parse(found[static_cast<size_t>(leader)]);
    for (const auto& [step, parts] : steps.items()) {
      for (const int64_t part : parts) {
        where[std::stoll(step)][part].push_back(node);
      }
    }
  }
  for (auto step = where.rbegin(); step != where.rend() && step->first > newer_than; ++step) {
    if (std::ssize(step->second) < nodes_.count()) {
      if (ranks_.rank == 0) {
        say("the local checkpoint of step " + std::to_string(step->first) + " has the parts of " +
            std::to_string(step->second.size()) + " of " + std::to_string(nodes_.count()) +
            " nodes: it is of no use");
      }
      continue;
    }
    for (const auto& [part, holders] : step->second) {
      if (std::ranges::count(holders, part) == 0) {
        if (ranks_.rank == 0) {
          say("node " + std::to_string(part) + " has lost its local checkpoint of step " +
              std::to_string(step->first) + " and takes the copy of node " +
              std::to_string(holders.front()));
        }
        give(step->first, part, holders.front());
      }
    }
    return step->first;
  }
  return std::nullopt;
}

std::unique_ptr<CheckpointReader> LocalSaves::open(int64_t step) const {
  const StepFolder folder(storage_, place(nodes_.node), kManifestName, [](const std::string&) {});
  return std::make_unique<Checkpoint>(storage_, folder.path(step), /*is_part=*/true);
}

void LocalSaves::clear() {
  if (nodes_.leads()) {
    for (const Storage::Item& item : storage_.list(terms_.folder)) {
      if (item.is_prefix && item.name.starts_with("node-")) {
        const Path node = terms_.folder / item.name;
        StepFolder folder(storage_, node, kManifestName, [](const std::string&) {});
        for (const int64_t step : folder.steps()) {
          (void)folder.remove(step);
        }
        storage_.remove_all(node);
      }
    }
  }
}

} // namespace mh
