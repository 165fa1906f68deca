#include "core/formats/dcp_metadata.hpp"

#include "core/base/printable.hpp"
#include "core/formats/crc32c.hpp"
#include "core/formats/manifest.hpp"
#include "core/formats/pickle.hpp"
#include "core/formats/torch_file.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace mh {

namespace {

constexpr const char* kDcp = "torch.distributed.checkpoint.metadata";
constexpr const char* kFiles = "torch.distributed.checkpoint.filesystem";

std::string dcp_class(const char* name) {
  return std::string(kDcp) + "." + name;
}

/// The last attribute of a Metadata that megahost wrote, which PyTorch passes over: the CRC-32C of
/// all bytes before its digits. The pickle's end follows them.
constexpr std::string_view kChecksumName = "megahost.crc32c", kEnd = "ub.";
constexpr size_t kDigits = 8;

/// The place of the digits; nothing if others wrote it.
std::optional<size_t> place_of_checksum(std::string_view bytes) {
  const std::string before = PickleWriter().text(kChecksumName).finish().substr(2); // no protocol
  const std::string name = before.substr(0, before.size() - 1) + std::string("X\x08\0\0\0", 5);
  if (bytes.size() < name.size() + kDigits + kEnd.size()) {
    return std::nullopt;
  }
  const size_t digits = bytes.size() - kEnd.size() - kDigits;
  const bool is_there =
      bytes.ends_with(kEnd) && bytes.substr(0, digits).ends_with(std::string_view(name));
  return is_there ? std::optional(digits) : std::nullopt;
}

std::string checksum_before(std::string_view bytes, size_t digits) {
  return crc_text(crc32c(bytes.substr(0, digits)));
}

class DcpReader {
public:
  /// has_checksum: its bytes are those that were written
  DcpReader(const Pickle& pickle, bool has_checksum)
      : pickle_(pickle)
      , has_checksum_(has_checksum) {}

  [[nodiscard]] DcpMetadata read() const {
    const PickleValue& root = pickle_.root();
    if (!root.is(PickleKind::object) || !root.text.ends_with("Metadata")) {
      pickle_.refuse(root, "it is no Metadata of torch.distributed.checkpoint");
    }
    const Places places = read_places(member(root, "storage_data", PickleKind::dict));
    if (!has_checksum_) {
      require_apart(places);
    }
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

  /// PyTorch writes a chunk where no other lies: a number that was changed to another's place shows.
  void require_apart(const Places& places) const {
    std::vector<const Places::value_type*> sorted;
    for (const auto& place : places) {
      sorted.push_back(&place);
    }
    std::ranges::sort(sorted, {}, [](const auto* one) {
      return std::tie(one->second.file, one->second.offset);
    });
    for (size_t i = 1; i < sorted.size(); ++i) {
      const auto& [before, first] = *sorted[i - 1];
      const auto& [index, second] = *sorted[i];
      if (first.file == second.file && first.offset + first.bytes > second.offset) {
        pickle_.refuse(
            pickle_.root(),
            printable(before.first) + " at " + shape_text(before.second) + " and " +
                printable(index.first) + " at " + shape_text(index.second) +
                " are said to lie in the same bytes of " + printable(second.file)
        );
      }
    }
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
  bool has_checksum_;
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
  const auto digits = place_of_checksum(bytes);
  if (digits && bytes.substr(*digits, kDigits) != checksum_before(bytes, *digits)) {
    throw Error(
        file + ": its checksum does not match",
        "the checkpoint is damaged: use another one",
        exit_code::data
    );
  }
  const Pickle pickle(std::move(bytes), file);
  return DcpReader(pickle, digits.has_value()).read();
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
  out.dict().text("storage_meta").none().text("version").text("1.0.0");
  out.text(kChecksumName).text(std::string(kDigits, '0')).dict().build();
  std::string text = out.finish();
  const auto digits = place_of_checksum(text);
  MH_ASSERT(digits, "the checksum is the last attribute");
  return text.replace(*digits, kDigits, checksum_before(text, *digits));
}

} // namespace mh
