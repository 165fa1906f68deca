#include "core/formats/dcp_metadata.hpp"

#include "core/base/printable.hpp"
#include "core/formats/manifest.hpp"
#include "core/formats/pickle.hpp"
#include "core/formats/torch_file.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace mh {

namespace {

constexpr const char* kDcp = "torch.distributed.checkpoint.metadata";
constexpr const char* kFiles = "torch.distributed.checkpoint.filesystem";

std::string dcp_class(const char* name) {
  return std::string(kDcp) + "." + name;
}

class DcpReader {
public:
  explicit DcpReader(const Pickle& pickle)
      : pickle_(pickle) {}

  [[nodiscard]] DcpMetadata read() const {
    const PickleValue& root = pickle_.root();
    if (!root.is(PickleKind::object) || !root.text.ends_with("Metadata")) {
      pickle_.refuse(root, "it is no Metadata of torch.distributed.checkpoint");
    }
    const Places places = read_places(member(root, "storage_data", PickleKind::dict));
    DcpMetadata metadata;
    std::map<std::string, DcpTensor> tensors;
    std::map<std::string, DcpObject> objects;
    const PickleValue& all = member(root, "state_dict_metadata", PickleKind::dict);
    for (size_t i = 0; i + 1 < all.items.size(); i += 2) {
      const PickleValue& key = *all.items[i];
      if (!key.is(PickleKind::text)) {
        pickle_.refuse(key, "a name that is no text");
      }
      const std::string name(key.text);
      const PickleValue& value = *all.items[i + 1];
      if (value.is_object(dcp_class("TensorStorageMetadata"))) {
        tensors[name] = read_tensor(name, value, places);
      } else if (value.is_object(dcp_class("BytesStorageMetadata"))) {
        objects[name] = {name, place_of(places, Index(name, {}), value)};
      } else {
        pickle_.refuse(value, printable(name) + " is neither a tensor nor an object");
      }
    }
    for (auto& [name, tensor] : tensors) {
      metadata.tensors.push_back(std::move(tensor));
    }
    for (auto& [name, object] : objects) {
      metadata.objects.push_back(std::move(object));
    }
    return metadata;
  }

private:
  using Index = std::pair<std::string, std::vector<int64_t>>;
  using Places = std::map<Index, DcpPlace>;

  [[nodiscard]] const PickleValue&
  member(const PickleValue& object, std::string_view key, PickleKind kind) const {
    const PickleValue* value = object.get(key);
    if (value == nullptr || value->kind != kind) {
      pickle_.refuse(object, "`" + std::string(key) + "` is missing or of another type");
    }
    return *value;
  }

  [[nodiscard]] std::vector<int64_t> sizes(const PickleValue& object, std::string_view key) const {
    const PickleValue* value = object.get(key);
    if (value == nullptr) {
      pickle_.refuse(object, "`" + std::string(key) + "` is missing");
    }
    std::vector<int64_t> found = pickle_.integers(*value, "`" + std::string(key) + "`");
    if (std::any_of(found.begin(), found.end(), [](int64_t size) { return size < 0; })) {
      pickle_.refuse(*value, "`" + std::string(key) + "` " + shape_text(found));
    }
    return found;
  }

  [[nodiscard]] Places read_places(const PickleValue& all) const {
    Places places;
    for (size_t i = 0; i + 1 < all.items.size(); i += 2) {
      const PickleValue& index = *all.items[i];
      const PickleValue& info = *all.items[i + 1];
      if (!index.is_object(dcp_class("MetadataIndex")) ||
          !info.is_object(std::string(kFiles) + "._StorageInfo")) {
        pickle_.refuse(index, "`storage_data` says something else than places in files");
      }
      Index key(std::string(member(index, "fqn", PickleKind::text).text), {});
      if (const PickleValue* offset = index.get("offset");
          offset != nullptr && !offset->is(PickleKind::none)) {
        key.second = sizes(index, "offset");
      }
      const PickleValue& file = member(info, "relative_path", PickleKind::text);
      const int64_t offset = member(info, "offset", PickleKind::integer).integer;
      const int64_t bytes = member(info, "length", PickleKind::integer).integer;
      if (!is_file_name(file.text)) {
        pickle_.refuse(file, printable(file.text) + " is no name of a file in the folder");
      }
      if (offset < 0 || bytes < 0 || offset > INT64_MAX - bytes) {
        pickle_.refuse(
            info,
            printable(key.first) + " is said to be " + std::to_string(bytes) + " bytes at byte " +
                std::to_string(offset)
        );
      }
      if (const PickleValue* steps = info.get("transform_descriptors");
          steps != nullptr && !steps->is(PickleKind::none) && !steps->items.empty()) {
        pickle_.refuse(*steps, printable(key.first) + " is compressed or otherwise transformed");
      }
      const DcpPlace place{
          std::string(file.text), static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes)};
      if (!places.emplace(std::move(key), place).second) {
        pickle_.refuse(index, "two places of one chunk");
      }
    }
    return places;
  }

  [[nodiscard]] DcpPlace
  place_of(const Places& places, const Index& index, const PickleValue& value) const {
    const auto found = places.find(index);
    if (found == places.end()) {
      pickle_.refuse(
          value,
          printable(index.first) + ": nothing says where its chunk at " + shape_text(index.second) +
              " lies"
      );
    }
    return found->second;
  }

  [[nodiscard]] DcpTensor
  read_tensor(const std::string& name, const PickleValue& value, const Places& places) const {
    DcpTensor tensor{
        .name = name, .dtype = Dtype::f32, .shape = sizes(value, "size"), .chunks = {}};
    const PickleValue& properties = member(value, "properties", PickleKind::object);
    const PickleValue* dtype = properties.state; // a tuple: dtype, layout, ...
    dtype = dtype != nullptr && dtype->is(PickleKind::tuple) && !dtype->items.empty()
                ? dtype->items[0]
                : properties.get("dtype");
    const auto known = dtype != nullptr ? torch_dtype(dtype->text) : std::nullopt;
    if (!known) {
      pickle_.refuse(
          properties,
          printable(name) + " is of " + printable(dtype == nullptr ? "" : dtype->text) +
              ", which is not read"
      );
    }
    tensor.dtype = *known;
    if (!tensor_bytes(tensor.dtype, tensor.shape)) {
      pickle_.refuse(value, printable(name) + " of shape " + shape_text(tensor.shape));
    }
    StoredTensor cover{name, tensor.dtype, tensor.shape, {}};
    for (const PickleValue* chunk : member(value, "chunks", PickleKind::list).items) {
      DcpChunk read{sizes(*chunk, "offsets"), sizes(*chunk, "sizes"), {}};
      if (tensor_bytes(tensor.dtype, read.shape) == 0) {
        continue; // the rank that wrote it has none of the tensor
      }
      read.place = place_of(places, Index(name, read.offset), *chunk);
      cover.chunks.push_back({read.place.file, read.offset, read.shape});
      tensor.chunks.push_back(std::move(read));
    }
    if (const std::string why = cover_problem(cover); !why.empty()) {
      pickle_.refuse(value, printable(name) + ": " + why);
    }
    return tensor;
  }

  const Pickle& pickle_;
};

/// Writes an object of a class that has attributes and no arguments, up to its attributes.
PickleWriter& begin_object(PickleWriter& out, const char* module, const char* name) {
  return out.global(module, name).mark().tuple().make().mark();
}

void write_size(PickleWriter& out, const std::vector<int64_t>& sizes) {
  out.global("torch", "Size").mark().integers(sizes).tuple().reduce();
}

void write_tensor(PickleWriter& out, const DcpTensor& tensor) {
  begin_object(out, kDcp, "TensorStorageMetadata");
  out.text("properties").global(kDcp, "TensorProperties").mark().tuple().make().mark();
  out.global("torch", torch_dtype_name(tensor.dtype));
  out.global("torch.serialization", "_get_layout").mark().text("torch.strided").tuple().reduce();
  out.boolean(false); // requires_grad
  out.global(kDcp, "_MEM_FORMAT_ENCODING").mark().integer(0).tuple().reduce();
  out.boolean(false).tuple().build(); // pin_memory
  out.text("size");
  write_size(out, tensor.shape);
  out.text("chunks").mark();
  for (const DcpChunk& chunk : tensor.chunks) {
    begin_object(out, kDcp, "ChunkStorageMetadata").text("offsets");
    write_size(out, chunk.offset);
    out.text("sizes");
    write_size(out, chunk.shape);
    out.dict().build();
  }
  out.list().dict().build();
}

void write_place(
    PickleWriter& out,
    const std::string& name,
    const std::vector<int64_t>* offset,
    const DcpPlace& place
) {
  begin_object(out, kDcp, "MetadataIndex").text("fqn").text(name).text("offset");
  if (offset == nullptr) {
    out.none();
  } else {
    write_size(out, *offset);
  }
  out.text("index").none().dict().build();
  begin_object(out, kFiles, "_StorageInfo").text("relative_path").text(place.file);
  out.text("offset").integer(static_cast<int64_t>(place.offset));
  out.text("length").integer(static_cast<int64_t>(place.bytes));
  out.text("transform_descriptors").none().dict().build();
}

} // namespace

DcpMetadata read_dcp_metadata(std::string bytes, const std::string& file) {
  const Pickle pickle(std::move(bytes), file);
  return DcpReader(pickle).read();
}

std::string dcp_metadata_text(const DcpMetadata& metadata) {
  PickleWriter out;
  begin_object(out, kDcp, "Metadata").text("state_dict_metadata").mark();
  for (const DcpTensor& tensor : metadata.tensors) {
    out.text(tensor.name);
    write_tensor(out, tensor);
  }
  for (const DcpObject& object : metadata.objects) {
    out.text(object.name);
    begin_object(out, kDcp, "BytesStorageMetadata").dict().build();
  }
  out.dict().text("planner_data").mark(); // no nested dicts: the path of a name is the name
  for (const DcpTensor& tensor : metadata.tensors) {
    out.text(tensor.name).mark().text(tensor.name).tuple();
  }
  for (const DcpObject& object : metadata.objects) {
    out.text(object.name).mark().text(object.name).tuple();
  }
  out.dict().text("storage_data").mark();
  for (const DcpTensor& tensor : metadata.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      write_place(out, tensor.name, &chunk.offset, chunk.place);
    }
  }
  for (const DcpObject& object : metadata.objects) {
    write_place(out, object.name, nullptr, object.place);
  }
  out.dict().text("storage_meta").none().text("version").text("1.0.0").dict().build();
  return out.finish();
}

} // namespace mh
