#include "core/conformance/instance.hpp"

#include "core/base/text.hpp"
#include "core/conformance/model.hpp"
#include "core/formats/crc32c.hpp"
#include "core/recipe/commands.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <type_traits>

namespace mh::check {

namespace {

class ByteIds : public Tokenizer {
public:
  [[nodiscard]] int64_t vocab() const override { return kVocab; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    return {
        reinterpret_cast<const unsigned char*>(text.data()),
        reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }
};

} // namespace

template <>
Architecture::Args arguments<Architecture>(uint64_t) {
  return {.vocab = kVocab, .seq_length = kSeq};
}

template <>
Strategy::Args arguments<Strategy>(uint64_t) {
  return {};
}

template <>
RecomputePolicy::Args arguments<RecomputePolicy>(uint64_t) {
  return {.layers = 4};
}

template <>
Optimizer::Args arguments<Optimizer>(uint64_t) {
  return {};
}

template <>
LrSchedule::Args arguments<LrSchedule>(uint64_t) {
  return {.lr = 0.01, .train_iters = kIters};
}

template <>
PipelineSchedule::Args arguments<PipelineSchedule>(uint64_t) {
  return {.stages = 2, .virtual_stages = 1, .microbatches = 4};
}

template <>
Corpus::Args arguments<Corpus>(uint64_t seed) {
  static const ByteIds bytes;
  return {
      .tokenizer = &bytes,
      .seq_length = kSeq,
      .vocab = kVocab,
      .split = {0.75, 0.25, 0},
      .seed = seed,
      .sequences = {{"encoder", kSeq - 4}, {"query", kSeq - 4}}};
}

template <>
Tokenizer::Args arguments<Tokenizer>(uint64_t) {
  return {};
}

template <>
Launcher::Args arguments<Launcher>(uint64_t) {
  return {};
}

template <>
Device::Args arguments<Device>(uint64_t) {
  return {};
}

template <>
CheckpointFormat::Args arguments<CheckpointFormat>(uint64_t) {
  return {.storage = local_storage()};
}

template <>
Storage::Args arguments<Storage>(uint64_t) {
  return {};
}

namespace {

Value invented(const Field& field) {
  const double least = field.min.value_or(1) + (field.above_min ? 1 : 0);
  Value value;
  if (!field.choices.empty()) {
    value = field.choices.front();
  } else if (field.type == FieldType::boolean) {
    value = false;
  } else if (field.type == FieldType::number) {
    value = least;
  } else if (field.type == FieldType::integer || field.type == FieldType::integer_or_string) {
    value = static_cast<int64_t>(std::ceil(least));
  } else if (field.type == FieldType::table) {
    value = Table();
  } else {
    value = "made-up";
  }
  return field.list ? Value(Value::Array{value}) : value;
}

const Value* given(const Case& c, const std::string& field) {
  return c.given.options.find_path(option_path(c.entry->kind) + "." + field);
}

/// Sizes of a model that a test trains in a moment, as --scale shrinks them.
void shrink(const Registry::Entry& architecture, Table& options) {
  const Schema& schema = architecture.schema;
  std::vector<Problem> problems;
  Value model = complete(schema, options, "model", problems);
  model.as_table().set("seq_length", kSeq);
  const ScaleLimits limits{.layers = 2, .hidden = 16, .heads = 4, .seq_length = kSeq};
  for (const auto& entry : scaled_model(model, &architecture, limits)) {
    const bool free = schema.find(entry.key) != nullptr && options.find(entry.key) == nullptr;
    if (free && !entry.value.is_null()) {
      Value size = entry.value;
      size.origin = {}; // what refuses it points to no line that the user wrote
      options.set(entry.key, std::move(size));
    }
  }
}

std::string number(double value) {
  return std::to_string(value) + "/" +
         crc_text(crc32c({reinterpret_cast<const std::byte*>(&value), sizeof(value)})) + " ";
}

std::string trace_of(Architecture& architecture, uint64_t seed) {
  SmallModel model(architecture, {.seed = seed});
  const double loss = model.train_once();
  std::vector<at::Tensor> gradients;
  for (const auto& owned : model.gradients->owned()) {
    gradients.push_back(owned.gradient);
  }
  return "loss " + number(loss) + "weights " + bits(model.values()) + " gradients " +
         bits(gradients);
}

std::string trace_of(Strategy& strategy, uint64_t) {
  Rules rules;
  strategy.rules(rules);
  std::string text;
  for (const auto* tier : {&rules.features, &rules.tokens, &rules.between}) {
    for (const Rule& rule : *tier) {
      text += std::string(rule.logical.name) + " -> " + std::string(to_string(rule.mesh)) + ", ";
    }
    text += "; ";
  }
  return text;
}

std::string trace_of(RecomputePolicy& policy, uint64_t) {
  std::string text;
  for (int64_t layer = 0; layer < arguments<RecomputePolicy>().layers; ++layer) {
    const Keep keep = policy.keep(layer);
    text += (keep.everything ? "all" : "input") + std::string(" without ") + join(keep.redo) + "; ";
  }
  return text;
}

std::string trace_of(Optimizer& optimizer, uint64_t) {
  std::vector<UpdateItem> items = small_items(optimizer, at::kCPU);
  for (int64_t step = 1; step <= 3; ++step) {
    for (UpdateItem& item : items) {
      item.gradient = item.weight.mul(0.5).add(0.1);
    }
    optimizer.update(items, {.step = step, .lr = 0.01});
  }
  std::string text;
  for (const UpdateItem& item : items) {
    text += bits({item.weight}) + " " + bits(item.state) + "; ";
  }
  return text;
}

std::string trace_of(LrSchedule& schedule, uint64_t) {
  std::string text;
  for (const int64_t n : {int64_t{0}, int64_t{7}, int64_t{1}, kIters / 2, kIters, kIters * 2}) {
    text += number(schedule.lr({.updates = n, .samples = 8 * n}));
  }
  return text;
}

std::string trace_of(PipelineSchedule& schedule, uint64_t) {
  std::string text;
  for (int64_t stage = 0; stage < arguments<PipelineSchedule>().stages; ++stage) {
    for (const auto& [op, chunk, microbatch] : schedule.instructions(stage)) {
      text += std::to_string(static_cast<int>(op)) + "/" + std::to_string(chunk) + "/" +
              std::to_string(microbatch) + " ";
    }
    text += "; ";
  }
  return text;
}

std::string text_of(const Sample& sample) {
  std::string text;
  for (const auto& [name, array] : sample) {
    text += name;
    std::visit(
        [&](const auto& values) {
          for (const auto value : values) {
            text += " " + std::to_string(value);
          }
        },
        array
    );
    text += "; ";
  }
  return text;
}

std::string trace_of(Corpus& corpus, uint64_t) {
  std::string text = corpus.summary() + "; ";
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    const int64_t size = corpus.size(split);
    text += std::to_string(size) + ": ";
    for (const int64_t index : {int64_t{3}, int64_t{0}, size, int64_t{1}}) {
      text += size > 0 ? text_of(corpus.sample(split, index)) : "";
    }
  }
  return text;
}

std::string trace_of(Tokenizer& tokenizer, uint64_t) {
  std::string text = std::to_string(tokenizer.vocab()) + " " +
                     std::to_string(tokenizer.end_of_document().value_or(-1)) + "; ";
  for (const char* words : {"two words", "1 2 3", ""}) {
    try {
      for (const int32_t id : tokenizer.encode(words)) {
        text += std::to_string(id) + " ";
      }
    } catch (const Error& error) { // a tokenizer may refuse a text
      text += error.what();
    }
    text += "; ";
  }
  return text;
}

std::string trace_of(Launcher& launcher, uint64_t) {
  const auto world = launcher.detect();
  return world ? std::to_string(world->rank) + " of " + std::to_string(world->size) + " at " +
                     world->master_address + ":" + std::to_string(world->master_port)
               : "none";
}

std::string trace_of(Device& device, uint64_t) {
  return device.device().str() + ": " + device.summary() + " " +
         number(device.peak_flops(at::kFloat)) + number(device.peak_flops(at::kBFloat16));
}

std::string trace_of(CheckpointFormat& format, uint64_t) {
  return format.about() + " (" + format.mark() + "), " +
         (format.detect("/nonexistent") ? "what is not there is one" : "what is not there is none");
}

/// Nothing that asks a server: a test of a plugin is not given any.
std::string trace_of(Storage&, uint64_t) {
  return "a storage";
}

} // namespace

bool made_up(const Case& c, const Field& field) {
  return field.required && given(c, field.name) == nullptr;
}

std::string option_path(Kind kind) {
  return kind == Kind::pipeline_schedule ? "parallel.schedule" : std::string(info(kind).section);
}

bool has_given_options(const Case& c) {
  const auto& fields = c.entry->schema.fields;
  return std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
    return given(c, field.name) != nullptr;
  });
}

Table given_options(const Case& c) {
  Table options;
  for (const Field& field : c.entry->schema.fields) {
    if (const Value* value = given(c, field.name)) {
      options.set(field.name, *value);
    } else if (field.required) {
      options.set(field.name, invented(field));
    }
  }
  return options;
}

Table options_of(const Case& c) {
  Table options = given_options(c);
  if (c.entry->kind == Kind::architecture) {
    shrink(*c.entry, options);
  }
  return options;
}

void make_once(const Registry::Entry& entry, const Table& options) {
  with_interface(entry.kind, [&]<class Base>(Base*) {
    const auto args = arguments<Base>();
    const std::unique_ptr<Base> made(
        static_cast<Base*>(entry.make(Registry::checked(entry, options), &args))
    );
  });
}

std::string sizes_of(const Case& c) {
  std::vector<std::string> sizes;
  for (const auto& entry : options_of(c)) {
    sizes.push_back(entry.key + " " + to_text(entry.value));
  }
  return join(sizes);
}

namespace {

template <class Args>
bool takes(const Registry::Entry& entry, const Table& options, const Args& args) {
  try {
    with_interface(entry.kind, [&]<class Base>(Base*) {
      const std::unique_ptr<Base> made(
          static_cast<Base*>(entry.make(Registry::checked(entry, options), &args))
      );
    });
    return true;
  } catch (const Error&) {
    return false;
  }
}

} // namespace

template <class Base>
std::unique_ptr<Base> make(const Case& c, const typename Base::Args& args) {
  try {
    const Value options = Registry::checked(*c.entry, options_of(c));
    return std::unique_ptr<Base>(static_cast<Base*>(c.entry->make(options, &args)));
  } catch (const Error& error) {
    const std::string section = option_path(c.entry->kind);
    std::string lacking;
    for (const Field& field : c.entry->schema.fields) {
      if (made_up(c, field)) {
        lacking += (lacking.empty() ? "--set " : " --set ") + section + "." + field.name + "=VALUE";
      }
    }
    if (!lacking.empty()) {
      not_applicable("needs " + lacking + ": " + error.what(), lacking);
    }
    if (c.entry->kind == Kind::device) {
      not_applicable(std::string("this machine lacks it: ") + error.what());
    }
    if (c.entry->kind == Kind::corpus) {
      not_applicable(
          std::string("finds no data, --set data.FIELD=VALUE may give it: ") + error.what(),
          "--set data.FIELD=VALUE"
      );
    }
    if (c.entry->kind == Kind::architecture && takes(*c.entry, given_options(c), args)) {
      not_applicable(
          "it refuses the sizes of these tests (" + sizes_of(c) + "): " + error.what() +
          "; --set model.FIELD=VALUE gives others"
      );
    }
    const std::string from =
        has_given_options(c) ? "with the options of --set" : "from its defaults";
    fail("it cannot be made " + from + ": " + std::string(error.what()), error.hint());
  }
}

template std::unique_ptr<Architecture> make<Architecture>(const Case&, const Architecture::Args&);
template std::unique_ptr<Strategy> make<Strategy>(const Case&, const Strategy::Args&);
template std::unique_ptr<RecomputePolicy>
make<RecomputePolicy>(const Case&, const RecomputePolicy::Args&);
template std::unique_ptr<Optimizer> make<Optimizer>(const Case&, const Optimizer::Args&);
template std::unique_ptr<LrSchedule> make<LrSchedule>(const Case&, const LrSchedule::Args&);
template std::unique_ptr<PipelineSchedule>
make<PipelineSchedule>(const Case&, const PipelineSchedule::Args&);
template std::unique_ptr<Corpus> make<Corpus>(const Case&, const Corpus::Args&);
template std::unique_ptr<Tokenizer> make<Tokenizer>(const Case&, const Tokenizer::Args&);
template std::unique_ptr<Launcher> make<Launcher>(const Case&, const Launcher::Args&);
template std::unique_ptr<Device> make<Device>(const Case&, const Device::Args&);
template std::unique_ptr<CheckpointFormat>
make<CheckpointFormat>(const Case&, const CheckpointFormat::Args&);
template std::unique_ptr<Storage> make<Storage>(const Case&, const Storage::Args&);

std::function<std::string()> tracer(const Case& c, uint64_t seed) {
  return with_interface(c.entry->kind, [&]<class Base>(Base*) -> std::function<std::string()> {
    auto args = arguments<Base>(seed);
    if constexpr (std::is_same_v<Base, PipelineSchedule>) {
      if (!takes(*c.entry, options_of(c), args)) {
        args.virtual_stages = 2; // some schedules are for two chunks a stage
      }
    }
    const std::shared_ptr<Base> made = make<Base>(c, args);
    return [made, seed] { return trace_of(*made, seed); };
  });
}

} // namespace mh::check
