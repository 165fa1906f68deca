#include "core/formats/pickle.hpp"

#include "core/base/printable.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <unordered_map>
#include <utility>

namespace mh {

namespace {

// Sorted. All that files of tensors name; none is ever called.
constexpr std::string_view kAllowedGlobals[] = {
    "__builtin__.bytearray",
    "__builtin__.getattr", // for a class alone: a member of an enum
    "__builtin__.set",
    "_codecs.encode",
    "argparse.Namespace",
    "builtins.bytearray",
    "builtins.getattr",
    "builtins.set",
    "collections.OrderedDict",
    "megatron.core.dist_checkpointing.strategies.state_dict_saver.MCoreMetadata",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreSavePlan",
    "megatron.core.enums.ModelType",
    "megatron.core.transformer.enums.AttnBackend",
    "megatron.core.transformer.enums.AttnMaskType",
    "megatron.core.transformer.enums.AttnType",
    "megatron.core.transformer.enums.LayerType",
    "megatron.model.enums.PositionEmbeddingType",
    "neuronx_distributed.trainer.checkpoint.TensorReference",
    "neuronx_distributed.utils.serialization.TensorReference",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.PosixPath", // where DCP saved; nothing follows it
    "pathlib._local.PosixPath",
    "torch.BFloat16Storage",
    "torch.BoolStorage",
    "torch.ByteStorage",
    "torch.CharStorage",
    "torch.ComplexDoubleStorage",
    "torch.ComplexFloatStorage",
    "torch.DoubleStorage",
    "torch.FloatStorage",
    "torch.HalfStorage",
    "torch.IntStorage",
    "torch.LongStorage",
    "torch.ShortStorage",
    "torch.Size",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.bfloat16",
    "torch.bool",
    "torch.complex128",
    "torch.complex64",
    "torch.device",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.planner.BytesIOWriteData",
    "torch.distributed.checkpoint.planner.SavePlan",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.float16",
    "torch.float32",
    "torch.float4_e2m1fn_x2",
    "torch.float64",
    "torch.float8_e4m3fn",
    "torch.float8_e4m3fnuz",
    "torch.float8_e5m2",
    "torch.float8_e5m2fnuz",
    "torch.float8_e8m0fnu",
    "torch.int16",
    "torch.int32",
    "torch.int64",
    "torch.int8",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.uint16",
    "torch.uint32",
    "torch.uint64",
    "torch.uint8",
    "torch_xla.utils.serialization.TensorReference",
};

static_assert(std::is_sorted(std::begin(kAllowedGlobals), std::end(kAllowedGlobals)));

/// The name as the list has it, which lives forever; nothing if it is not there.
std::optional<std::string_view> allowed_global(std::string_view name) {
  const auto* found =
      std::lower_bound(std::begin(kAllowedGlobals), std::end(kAllowedGlobals), name);
  return found != std::end(kAllowedGlobals) && *found == name ? std::optional(*found)
                                                              : std::nullopt;
}

struct Opcode {
  enum : uint8_t {
    mark = '(',
    stop = '.',
    pop = '0',
    pop_mark = '1',
    dup = '2',
    binint = 'J',
    binint1 = 'K',
    binint2 = 'M',
    none = 'N',
    binpersid = 'Q',
    reduce = 'R',
    binstring = 'T',
    short_binstring = 'U',
    binunicode = 'X',
    append = 'a',
    build = 'b',
    global = 'c',
    dict = 'd',
    empty_dict = '}',
    appends = 'e',
    binget = 'h',
    long_binget = 'j',
    list = 'l',
    empty_list = ']',
    binput = 'q',
    long_binput = 'r',
    setitem = 's',
    tuple = 't',
    empty_tuple = ')',
    setitems = 'u',
    binfloat = 'G',
    proto = 0x80,
    newobj = 0x81,
    tuple1 = 0x85,
    tuple2 = 0x86,
    tuple3 = 0x87,
    newtrue = 0x88,
    newfalse = 0x89,
    long1 = 0x8a,
    long4 = 0x8b,
    binbytes = 'B',
    short_binbytes = 'C',
    short_binunicode = 0x8c,
    binunicode8 = 0x8d,
    binbytes8 = 0x8e,
    empty_set = 0x8f,
    additems = 0x90,
    frozenset = 0x91,
    stack_global = 0x93,
    memoize = 0x94,
    frame = 0x95,
    bytearray8 = 0x96,
  };
};

constexpr const char* kPickleHint =
    "the file is damaged, cut short, or holds Python objects other than tensors and plain values; "
    "nothing of it was run";

[[noreturn]] void refuse_pickle(const std::string& file, uint64_t at, const std::string& why) {
  throw Error(file + ": byte " + std::to_string(at) + ": " + why, kPickleHint, exit_code::data);
}

} // namespace

bool is_allowed_global(std::string_view name) {
  return allowed_global(name).has_value();
}

const PickleValue* PickleValue::get(std::string_view key) const {
  const PickleValue* in = kind == PickleKind::dict ? this : state;
  if (in == nullptr || in->kind != PickleKind::dict) {
    return nullptr;
  }
  const PickleValue* found = nullptr;
  for (size_t i = 0; i + 1 < in->items.size(); i += 2) { // the last one counts, as in Python
    if (in->items[i]->kind == PickleKind::text && in->items[i]->text == key) {
      found = in->items[i + 1];
    }
  }
  return found;
}

/// The stack machine that a pickle is written for.
class Pickle::Machine {
public:
  Machine(Pickle& pickle, const PickleLimits& limits)
      : pickle_(pickle)
      , rest_(pickle.bytes_)
      , limits_(limits) {}

  PickleValue* run() {
    if (rest_.size() > limits_.bytes) {
      refuse(
          std::to_string(rest_.size()) + " bytes, of which " + std::to_string(limits_.bytes) +
          " are read at most"
      );
    }
    if (rest_.empty() || static_cast<uint8_t>(rest_[0]) != Opcode::proto) {
      refuse("it does not begin as a pickle of protocol 2 to 5");
    }
    while (true) {
      at_ = here();
      const auto op = static_cast<uint8_t>(take(1)[0]);
      if (op == Opcode::stop) {
        PickleValue* value = pop();
        if (!stack_.empty() || !rest_.empty()) {
          refuse("it ends, but values or bytes are left over");
        }
        check_tree(value);
        return value;
      }
      step(op);
    }
  }

private:
  [[noreturn]] void refuse(const std::string& why) const { refuse_pickle(pickle_.file_, at_, why); }

  [[nodiscard]] uint64_t here() const { return pickle_.bytes_.size() - rest_.size(); }

  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      refuse(
          "it asks for " + std::to_string(count) + " bytes, but only " +
          std::to_string(rest_.size()) + " follow"
      );
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint64_t number(size_t bytes) {
    const std::string_view text = take(bytes);
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) {
      value = value << 8 | static_cast<uint8_t>(text[i]);
    }
    return value;
  }

  std::string_view line() {
    const size_t end = rest_.find('\n');
    if (end == std::string_view::npos) {
      refuse("a name without its end");
    }
    const std::string_view text = take(end);
    (void)take(1);
    return text;
  }

  PickleValue* make(PickleKind kind) {
    if (pickle_.values_.size() >= limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " values");
    }
    pickle_.values_.push_back({.kind = kind, .at = at_});
    return &pickle_.values_.back();
  }

  void push(PickleValue* value) {
    if (stack_.size() >= limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " values");
    }
    stack_.push_back(value);
  }

  PickleValue* push_new(PickleKind kind) {
    PickleValue* value = make(kind);
    push(value);
    return value;
  }

  void push_integer(int64_t integer, PickleKind kind = PickleKind::integer) {
    push_new(kind)->integer = integer;
  }

  void push_text(PickleKind kind, uint64_t length) {
    const std::string_view text = take(length);
    if (kind == PickleKind::text && valid_utf8(text) != text) {
      refuse("a text that is no UTF-8");
    }
    push_new(kind)->text = text;
  }

  /// An integer of any length, of which 8 bytes are read.
  void push_long(uint64_t length) {
    if (length > 8) {
      refuse("an integer of " + std::to_string(length) + " bytes, of which 8 are read at most");
    }
    uint64_t value = number(length);
    if (length > 0 && length < 8 && (value >> (8 * length - 1)) != 0) {
      value |= ~uint64_t{0} << (8 * length);
    }
    push_integer(static_cast<int64_t>(value));
  }

  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      refuse("it takes a value where there is none");
    }
    PickleValue* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  PickleValue* top() {
    PickleValue* value = pop();
    stack_.push_back(value);
    return value;
  }

  /// Takes the values above the last mark, and the mark.
  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) {
      refuse("it takes values from a mark, and there is none");
    }
    const auto begin = stack_.begin() + static_cast<int64_t>(marks_.back());
    std::vector<const PickleValue*> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_tuple(size_t count) {
    std::vector<const PickleValue*> items(count);
    while (count > 0) {
      items[--count] = pop();
    }
    push_new(PickleKind::tuple)->items = std::move(items);
  }

  void push_items(PickleKind kind) {
    std::vector<const PickleValue*> items = pop_to_mark();
    require_pairs(kind, items);
    push_new(kind)->items = std::move(items);
  }

  void require_pairs(PickleKind kind, const std::vector<const PickleValue*>& items) const {
    if (kind == PickleKind::dict && items.size() % 2 != 0) {
      refuse("a key of a dict without its value");
    }
  }

  void add(PickleKind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* to = top();
    if (to->kind != kind) {
      refuse("it adds items to what is no list or dict of its own");
    }
    require_pairs(kind, items);
    to->items.insert(to->items.end(), items.begin(), items.end());
    if ((added_ += items.size()) > limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " values");
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    std::string whole(module);
    whole.append(".").append(name);
    const auto known = allowed_global(whole);
    if (!known) {
      refuse("it names " + printable(whole) + ", which is not among the names that are read");
    }
    push_new(PickleKind::global)->text = *known;
  }

  /// A call, which is only noted down.
  void push_object() {
    PickleValue* arguments = pop();
    const PickleValue* callee = pop();
    if (callee->kind != PickleKind::global || arguments->kind != PickleKind::tuple) {
      refuse("it calls what is no name, or without a tuple of arguments");
    }
    if (callee->text == "collections.OrderedDict") {
      push_ordered(*arguments);
      return;
    }
    if (callee->text == "builtins.getattr" || callee->text == "__builtin__.getattr") {
      push_member(*arguments);
      return;
    }
    PickleValue* object = push_new(PickleKind::object);
    object->text = callee->text;
    object->items = arguments->items;
    if ((added_ += object->items.size()) > limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " values");
    }
  }

  /// getattr(Class, "NAME"), as Python 3.11.0 to 3.11.3 write a member of an enum, which others write
  /// as Class(value).
  void push_member(const PickleValue& arguments) {
    const auto& items = arguments.items;
    if (items.size() != 2 || items[0]->kind != PickleKind::global ||
        !items[1]->is(PickleKind::text)) {
      refuse("it takes an attribute of what is no class");
    }
    PickleValue* member = push_new(PickleKind::object);
    member->text = items[0]->text;
    member->items = {items[1]};
    ++added_;
  }

  /// Without arguments, or with a list of pairs.
  void push_ordered(const PickleValue& arguments) {
    PickleValue* dict = push_new(PickleKind::dict);
    if (arguments.items.empty()) {
      return;
    }
    if (arguments.items.size() > 1 || !arguments.items[0]->is(PickleKind::list)) {
      refuse("an OrderedDict of something else than a list of pairs");
    }
    for (const PickleValue* pair : arguments.items[0]->items) {
      if (pair->items.size() != 2) {
        refuse("an OrderedDict of something else than a list of pairs");
      }
      dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
    }
    if ((added_ += dict->items.size()) > limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " values");
    }
  }

  void build() {
    const PickleValue* state = pop();
    PickleValue* object = top();
    if ((object->kind != PickleKind::object && object->kind != PickleKind::dict) ||
        object->state != nullptr) {
      refuse("it gives attributes to what is no object, or has some already");
    }
    object->state = state;
  }

  void remember(uint64_t key) { memo_[key] = top(); }

  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) {
      refuse("it recalls the value " + std::to_string(key) + ", which it has not kept");
    }
    push(found->second);
  }

  void step(uint8_t op);
  void step_text(uint8_t op);

  /// How deep a value is and how many it is made of, each place counted: found without recursion.
  void check_tree(const PickleValue* root) const {
    struct Known {
      size_t depth = 0; // 0: being looked at
      size_t count = 1;
    };

    std::unordered_map<const PickleValue*, Known> known;

    struct Frame {
      const PickleValue* value;
      size_t next = 0;
    };

    const auto child = [](const PickleValue& value, size_t i) -> const PickleValue* {
      return i < value.items.size()    ? value.items[i]
             : i == value.items.size() ? value.state
                                       : nullptr;
    };
    std::vector<Frame> frames{{root}};
    known[root];
    while (!frames.empty()) {
      Frame& frame = frames.back();
      const PickleValue* next = child(*frame.value, frame.next);
      if (next == nullptr) {
        Known& mine = known[frame.value];
        mine.depth = std::max<size_t>(mine.depth, 1);
        for (size_t i = 0; const PickleValue* part = child(*frame.value, i); ++i) {
          const Known& its = known[part];
          mine.depth = std::max(mine.depth, its.depth + 1);
          mine.count += its.count;
          if (mine.count > limits_.values) {
            refuse_pickle(
                pickle_.file_,
                frame.value->at,
                "a value of more than " + std::to_string(limits_.values) + " others"
            );
          }
        }
        if (mine.depth > limits_.depth) {
          refuse_pickle(
              pickle_.file_,
              frame.value->at,
              "more than " + std::to_string(limits_.depth) + " values within each other"
          );
        }
        frames.pop_back();
        continue;
      }
      ++frame.next;
      const auto [at, is_new] = known.try_emplace(next);
      if (!is_new && at->second.depth == 0) {
        refuse_pickle(pickle_.file_, next->at, "a value that holds itself");
      }
      if (is_new) {
        frames.push_back({next});
      }
    }
  }

  Pickle& pickle_;
  std::string_view rest_;
  PickleLimits limits_;
  uint64_t at_ = 0; // byte of the operation
  size_t added_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleValue*> memo_;
};

void Pickle::Machine::step_text(uint8_t op) {
  switch (op) {
  case Opcode::short_binstring:
    return push_text(PickleKind::bytes, number(1)); // Python 2's str
  case Opcode::binstring:
    return push_text(PickleKind::bytes, number(4));
  case Opcode::short_binunicode:
    return push_text(PickleKind::text, number(1));
  case Opcode::binunicode:
    return push_text(PickleKind::text, number(4));
  case Opcode::binunicode8:
    return push_text(PickleKind::text, number(8));
  case Opcode::short_binbytes:
    return push_text(PickleKind::bytes, number(1));
  case Opcode::binbytes:
    return push_text(PickleKind::bytes, number(4));
  case Opcode::binbytes8:
  case Opcode::bytearray8:
    return push_text(PickleKind::bytes, number(8));
  default: {
    char code[8];
    std::snprintf(code, sizeof code, "0x%02x", op);
    refuse(std::string("the operation ") + code + ", which no pickle of tensors has");
  }
  }
}

void Pickle::Machine::step(uint8_t op) {
  switch (op) {
  case Opcode::proto:
    if (const uint64_t version = number(1); version < 2 || version > 5) {
      refuse("protocol " + std::to_string(version) + ", expected 2 to 5");
    }
    return;
  case Opcode::frame:
    if (const uint64_t length = number(8); length > rest_.size()) {
      refuse(
          "a frame of " + std::to_string(length) + " bytes, but only " +
          std::to_string(rest_.size()) + " follow"
      );
    }
    return;
  case Opcode::mark:
    if (marks_.size() >= limits_.values) {
      refuse("more than " + std::to_string(limits_.values) + " marks");
    }
    return marks_.push_back(stack_.size());
  case Opcode::pop:
    return (void)pop();
  case Opcode::pop_mark:
    return (void)pop_to_mark();
  case Opcode::dup:
    return push(top());
  case Opcode::none:
    return (void)push_new(PickleKind::none);
  case Opcode::newtrue:
    return push_integer(1, PickleKind::boolean);
  case Opcode::newfalse:
    return push_integer(0, PickleKind::boolean);
  case Opcode::binint:
    return push_integer(static_cast<int32_t>(number(4)));
  case Opcode::binint1:
    return push_integer(static_cast<int64_t>(number(1)));
  case Opcode::binint2:
    return push_integer(static_cast<int64_t>(number(2)));
  case Opcode::long1:
    return push_long(number(1));
  case Opcode::long4:
    return push_long(number(4));
  case Opcode::binfloat: {
    uint64_t bits = 0;
    for (const char byte : take(8)) { // big endian
      bits = bits << 8 | static_cast<uint8_t>(byte);
    }
    push_new(PickleKind::real)->real = std::bit_cast<double>(bits);
    return;
  }
  case Opcode::empty_list:
  case Opcode::empty_set:
    return (void)push_new(PickleKind::list);
  case Opcode::empty_tuple:
    return (void)push_new(PickleKind::tuple);
  case Opcode::empty_dict:
    return (void)push_new(PickleKind::dict);
  case Opcode::tuple1:
    return push_tuple(1);
  case Opcode::tuple2:
    return push_tuple(2);
  case Opcode::tuple3:
    return push_tuple(3);
  case Opcode::tuple:
    return push_items(PickleKind::tuple);
  case Opcode::list:
  case Opcode::frozenset:
    return push_items(PickleKind::list);
  case Opcode::dict:
    return push_items(PickleKind::dict);
  case Opcode::append: {
    const PickleValue* item = pop();
    return add(PickleKind::list, {item});
  }
  case Opcode::appends:
  case Opcode::additems: {
    const auto items = pop_to_mark();
    return add(PickleKind::list, items);
  }
  case Opcode::setitem: {
    const PickleValue* value = pop();
    const PickleValue* key = pop();
    return add(PickleKind::dict, {key, value});
  }
  case Opcode::setitems: {
    const auto items = pop_to_mark();
    return add(PickleKind::dict, items);
  }
  case Opcode::global: {
    const std::string_view module = line();
    return push_global(module, line());
  }
  case Opcode::stack_global: {
    const PickleValue* name = pop();
    const PickleValue* module = pop();
    if (!name->is(PickleKind::text) || !module->is(PickleKind::text)) {
      refuse("a name that is no text");
    }
    return push_global(module->text, name->text);
  }
  case Opcode::reduce:
  case Opcode::newobj:
    return push_object();
  case Opcode::build:
    return build();
  case Opcode::binpersid: {
    const PickleValue* id = pop();
    push_new(PickleKind::persistent)->items = {id};
    return;
  }
  case Opcode::binput:
    return remember(number(1));
  case Opcode::long_binput:
    return remember(number(4));
  case Opcode::memoize:
    return remember(memo_.size());
  case Opcode::binget:
    return recall(number(1));
  case Opcode::long_binget:
    return recall(number(4));
  default:
    return step_text(op);
  }
}

Pickle::Pickle(std::string bytes, std::string file, const PickleLimits& limits)
    : bytes_(std::move(bytes))
    , file_(std::move(file)) {
  root_ = Machine(*this, limits).run();
}

void Pickle::refuse(const PickleValue& value, const std::string& why) const {
  refuse_pickle(file_, value.at, why);
}

std::vector<int64_t> Pickle::integers(const PickleValue& value, const std::string& what) const {
  const PickleValue* list = &value;
  if (value.is_object("torch.Size")) {
    list = value.items.size() == 1 ? value.items[0] : nullptr;
  }
  if (list == nullptr || (!list->is(PickleKind::tuple) && !list->is(PickleKind::list)) ||
      list->items.size() > 64 ||
      std::any_of(list->items.begin(), list->items.end(), [](const PickleValue* item) {
        return !item->is(PickleKind::integer);
      })) {
    refuse(value, what + " is no short tuple of integers");
  }
  std::vector<int64_t> integers;
  for (const PickleValue* item : list->items) {
    integers.push_back(item->integer);
  }
  return integers;
}

} // namespace mh
