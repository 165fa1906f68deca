#include "megahost/builder.hpp"

#include "core/kernels/ops.hpp"
#include "core/model/deferred_values.hpp"
#include "core/model/fp8.hpp"
#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace mh {

namespace {

/// Each element of a value that is made later: a power of two that every float type has.
constexpr double kUnwritten = -0x1p9;

/// Elements of such a value's memory. The value is the first of them, expanded; the others show who
/// writes by a pointer.
constexpr int64_t kMemory = 64;

/// Whether a value that is made later has been written into, by whatever way, or replaced.
bool is_written(const at::Tensor& value, const at::Tensor& memory) {
  return value.storage().unsafeGetStorageImpl() != memory.storage().unsafeGetStorageImpl() ||
         (memory.is_cpu() && !memory.eq(kUnwritten).all().item<bool>());
}

/// The range of one dimension that this rank holds.
struct HeldRange {
  int64_t offset = 0;  // offset in the true tensor, in elements
  int64_t length = 0;  // true elements
  int64_t storage = 0; // elements held, padding included
};

HeldRange slice_of(
    const Axis& axis, const Axis& padded, size_t d, const Placement& placed, const Mesh& mesh
) {
  int64_t units = padded.size;
  int64_t first = 0;
  for (const auto mesh_axis : kAllMeshAxes) {
    const auto& group = mesh.group(mesh_axis);
    if (placed[mesh_axis] == Along{PlacementType::split, static_cast<int8_t>(d)}) {
      units /= group.size();
      first = first + group.index() * units;
    } else if (d == 0 && placed[mesh_axis].type == PlacementType::replicated) {
      // Fewer units than ranks: neighbours hold the same one.
      first = first + group.index() * units / group.size();
      units = 1;
    }
  }
  const int64_t end = std::min(first + units, axis.size);
  const int64_t begin = std::min(first, axis.size);
  return {begin * axis.width, (end - begin) * axis.width, units * axis.width};
}

/// The groups that hold the same slice of a parameter with so many rows. Experts are told apart by
/// the expert mesh, everything else by the dense one.
std::vector<GradientSum> holders(const Placement& placed, int64_t rows, const Mesh& mesh) {
  const bool expert = placed[MeshAxis::ep].type != PlacementType::identical ||
                      placed[MeshAxis::etp].type != PlacementType::identical;
  std::vector<GradientSum> groups;
  for (const auto axis : expert ? std::array{MeshAxis::edp, MeshAxis::ep, MeshAxis::etp}
                                : std::array{MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) {
    if (mesh.size(axis) > 1 && placed[axis].type != PlacementType::split) {
      const bool shared = placed[axis].type == PlacementType::replicated;
      groups.push_back({axis, shared ? mesh.size(axis) / rows : 0});
    }
  }
  return groups;
}

/// Writes the first values of a leaf's pieces over zeros.
void initialise(
    const at::Tensor& zeros,
    const std::vector<Piece>& pieces,
    const std::vector<Init>& inits,
    uint64_t seed
) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& piece = pieces[i];
    inits[i].fill(
        Parameter().view(zeros, piece),
        random_key(seed, piece.name),
        piece.global_shape,
        piece.offset
    );
  }
}

} // namespace

Builder::Builder(ParameterStore& store, const Args& args)
    : store_(store)
    , args_(args) {
  MH_ASSERT(args.mesh != nullptr && args.rules != nullptr, "a builder needs a mesh and rules");
  ops::ensure_registered();
  if (args.fp8) {
    fp8_ = std::make_shared<Fp8State>(*args.fp8);
  }
}

at::TensorOptions Builder::options() const {
  return at::TensorOptions().device(args_.device).dtype(args_.dtype);
}

SequenceScope Builder::within(std::string_view sequence) {
  if (!sequence.empty() && !args_.sequences.contains(sequence)) {
    throw InternalError(
        "a block is built for the sequence `" + std::string(sequence) +
        "`, which Architecture::sequences does not name"
    );
  }
  return {sequence_, std::string(sequence)};
}

int64_t Builder::seq() const {
  return sequence_.empty() ? args_.seq : args_.sequences.at(sequence_);
}

Dims Builder::dims(Axis last) const {
  return {{axis::seq, seq()}, {axis::batch, args_.microbatch}, last};
}

Placement Builder::place(Axis last, Tier upto) const {
  return rules().place(dims(padded(last)), mesh(), upto);
}

Axis Builder::padded(Axis axis) const {
  if (axis.logical == axis::vocab) {
    int64_t multiple = args_.vocab_multiple;
    for (const auto& rule : rules().features) {
      if (rule.logical == axis::vocab) {
        multiple *= mesh().size(rule.mesh);
      }
    }
    axis.size = (axis.size + multiple - 1) / multiple * multiple;
  }
  return axis;
}

Parameter& Builder::parameter(const std::vector<ParamSpec>& specs, const Placement& seen) {
  Parameter parameter;
  std::vector<int64_t> leaf; // rows, then the other dimensions
  for (const auto& spec : specs) {
    Dims storage = spec.dims;
    for (auto& axis : storage) {
      axis = padded(axis);
    }
    const Placement placed = rules().place(storage, mesh(), Tier::features);
    Piece piece;
    piece.name = global_name(spec.name);
    std::vector<int64_t> held;
    for (size_t d = 0; d < storage.size(); ++d) {
      const HeldRange slice = slice_of(spec.dims[d], storage[d], d, placed, mesh());
      piece.global_shape.push_back(spec.dims[d].elements());
      piece.offset.push_back(slice.offset);
      piece.shape.push_back(slice.length);
      held.push_back(slice.storage);
    }
    for (const auto axis : {MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) {
      piece.copies *= mesh().size(axis);
    }
    for (const auto axis : kAllMeshAxes) {
      const int64_t degree = mesh().size(axis);
      if (degree == 1) {
        continue;
      }
      const PlacementType type = placed[axis].type;
      if (type == PlacementType::split) {
        piece.copies /= degree;
        piece.shards.push_back({axis, 1});
      } else if (type == PlacementType::replicated) {
        const int64_t inner = degree / storage[0].size;
        piece.copies /= storage[0].size;
        piece.shards.push_back({axis, inner});
        piece.sums.push_back({axis, inner});
      } else if (seen[axis].type != PlacementType::identical) {
        piece.sums.push_back({axis, 0});
      }
    }
    piece.same = holders(placed, storage[0].size, mesh());
    piece.row = leaf.empty() ? 0 : leaf[0];
    if (leaf.empty()) {
      leaf = held;
    } else {
      MH_ASSERT(
          std::equal(leaf.begin() + 1, leaf.end(), held.begin() + 1, held.end()),
          "pieces packed along rows have equal columns"
      );
      leaf[0] += held[0];
    }
    parameter.pieces.push_back(std::move(piece));
  }
  std::vector<Init> inits;
  for (const auto& spec : specs) {
    inits.push_back(args_.initialise ? spec.init : Init::zeros());
  }
  at::Tensor memory;
  if (DeferredValues* deferred = DeferredValues::current()) {
    memory = at::full({kMemory}, kUnwritten, options());
    // No view to autograd, which would hold the memory for as long as the value lives.
    parameter.value = memory.narrow(0, 0, 1).expand(leaf).variable_data();
    deferred->add(
        parameter.pieces.front().name,
        [pieces = parameter.pieces, inits, seed = args_.seed](const auto& zeros) {
          initialise(zeros, pieces, inits, seed);
        }
    );
  } else {
    parameter.value = at::zeros(leaf, options());
    initialise(parameter.value, parameter.pieces, inits, args_.seed);
  }
  parameter.value.requires_grad_();
  Parameter& made = store_.add(std::move(parameter));
  made_.push_back({&made, made.value._version(), std::move(memory)});
  return made;
}

void refuse_written(const std::string& what) {
  throw Error(
      "a constructor writes into the value of " + what + ", which would be lost under ZeRO-3",
      "give its ParamSpec initial values instead: Init::uniform, Init::log_uniform, Init::of_index "
      "(megahost/parameter.hpp)"
  );
}

void Builder::refuse_written_values() const {
  constexpr size_t kOwners = 2; // a memory is held by its value and by `made_`
  for (const Made& made : made_) {
    const at::Tensor& value = made.parameter->value;
    const std::string name = "the parameter `" + made.parameter->pieces.front().name + "`";
    const bool later = made.memory.defined();
    if (value._version() != made.version || (later && is_written(value, made.memory))) {
      refuse_written(name);
    }
    if (later && made.memory.storage().use_count() > kOwners) {
      throw Error(
          "a constructor keeps a view of the value of " + name + ", which is made after it",
          "keep the Parameter, and take the view of its value in forward"
      );
    }
  }
}

void Builder::make_values(DeferredValues& deferred) {
  deferred.make_rest(store_);
  for (Made& made : made_) {
    made.memory.reset();
    made.version = made.parameter->value._version();
  }
}

Parameter& Builder::shared(std::string_view name) {
  shared_names_.emplace_back(name);
  Parameter* parameter = store_.find(name);
  if (parameter == nullptr) {
    throw InternalError(
        "no block before this one made the shared parameter `" + std::string(name) + "`"
    );
  }
  return *parameter;
}

Builder::Scope::Scope(Builder& builder, std::string_view name)
    : builder_(builder)
    , length_(builder.prefix_.size()) {
  builder_.prefix_ += std::string(name) + ".";
}

Builder::Scope::~Scope() {
  builder_.prefix_.resize(length_);
}

} // namespace mh
