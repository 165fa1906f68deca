// Ranks, stages, and what is recomputed.

#include "core/base/text.hpp"
#include "core/import/importer.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

namespace mh {

int64_t Importer::world() const {
  int64_t nodes = 1, per_node = 0;
  for (size_t i = 0; i < command_.launcher.size(); ++i) {
    std::string name = command_.launcher[i];
    std::replace(name.begin(), name.end(), '_', '-');
    const size_t equals = name.find('=');
    const bool own = equals != std::string::npos;
    const std::string value = own                                ? name.substr(equals + 1)
                              : i + 1 < command_.launcher.size() ? command_.launcher[i + 1]
                                                                 : "";
    const bool number = !value.empty() && value.size() < 8 &&
                        value.find_first_not_of("0123456789") == std::string::npos;
    name = name.substr(0, equals);
    if (name == "--nnodes") {
      nodes = number ? std::stoll(value) : 0;
    } else if (name == "--nproc-per-node") {
      per_node = number ? std::stoll(value) : 0;
    }
  }
  return nodes * per_node;
}

void Importer::layout() {
  const int64_t tensor = integer("parallel.tensor", 1);
  const int64_t one = tensor * integer("parallel.pipeline", 1) * integer("parallel.context", 1);
  const int64_t heads = integer("model.heads", 0);
  if (tensor > 0 && heads % tensor != 0) {
    refuse(
        "--num-attention-heads " + std::to_string(heads) +
        " is not divisible by --tensor-model-parallel-size " + std::to_string(tensor)
    );
  }
  if (given_.has("num-experts") && tensor > 1 && !is_set("parallel.expert_tensor")) {
    set("parallel.expert_tensor", tensor, "experts are cut like other layers unless told otherwise"
    );
  }
  if (const int64_t ranks = world(); ranks > 0 && one > 0) {
    const int64_t experts = integer("parallel.expert", 1) * integer("parallel.expert_tensor", 1);
    const int64_t of_stage = ranks / std::max<int64_t>(1, integer("parallel.pipeline", 1));
    if (ranks % one != 0 || of_stage % experts != 0) { // the example is made for more nodes
      comment(
          "the launcher starts " + std::to_string(ranks) + " ranks, too few for " +
          std::to_string(one) + " of tensor x pipeline x context" +
          (experts > 1 ? " and " + std::to_string(experts) + " of experts in a stage" : "") +
          ": as many as a run has say what is left for data"
      );
    } else {
      set("parallel.data", ranks / one, std::to_string(ranks) + " ranks of the launcher");
    }
  }
  fewest_data_ranks();
  if (given_.has("sequence-parallel")) {
    if (tensor > 1) {
      set("parallel.sequence", true, "--sequence-parallel");
    } else {
      comment("--sequence-parallel: without tensor-parallel ranks it says nothing");
    }
  }
  zero();
  if (given_.has("use-tp-pp-dp-mapping")) {
    set("parallel.order", "tp-cp-ep-pp-dp", "--use-tp-pp-dp-mapping");
  }
  if (given_.has("grad-reduce-in-bf16")) {
    set("parallel.reduce_dtype", "bf16", "--grad-reduce-in-bf16");
  }
  if (given_.has("distributed-timeout-minutes")) {
    set_from(
        "comm.timeout",
        number_value(60 * given_.number("distributed-timeout-minutes", 10)),
        "distributed-timeout-minutes"
    );
  }
}

void Importer::zero() {
  if (given_.has("use-distributed-optimizer")) {
    set("parallel.zero", 1, "--use-distributed-optimizer");
  }
  const std::string split = given_.text("data-parallel-sharding-strategy");
  if (!given_.has("use-megatron-fsdp") || split.empty()) {
    return;
  }
  const std::pair<const char*, int64_t> levels[] = {
      {"no_shard", 0}, {"optim", 1}, {"optim_grads", 2}, {"optim_grads_params", 3}};
  for (const auto& [word, level] : levels) {
    if (split == word) {
      set_from("parallel.zero", level, "data-parallel-sharding-strategy");
      return;
    }
  }
  refuse("--data-parallel-sharding-strategy " + split + " is no strategy of Megatron-LM");
}

void Importer::pipeline() {
  const int64_t stages = integer("parallel.pipeline", 1);
  const int64_t layers = integer("model.layers", 0) + integer("model.encoder_layers", 0);
  if (const GivenArgument* given = given_.find("pipeline-model-parallel-layout")) {
    written_layout(stages, *given);
    return;
  }
  const int64_t virtual_stages = chunks(stages, layers);
  if (virtual_stages > 1) {
    set_from(
        "parallel.virtual_stages",
        virtual_stages,
        given_.has("num-virtual-stages-per-pipeline-rank") ? "num-virtual-stages-per-pipeline-rank"
                                                           : "num-layers-per-virtual-pipeline-stage"
    );
  }
  if (stages <= 1) {
    return;
  }
  const bool uneven = given_.has("decoder-first-pipeline-num-layers") ||
                      given_.has("decoder-last-pipeline-num-layers");
  const bool balanced = given_.has("account-for-embedding-in-pipeline-split") ||
                        given_.has("account-for-loss-in-pipeline-split");
  if (uneven) {
    uneven_layout(stages, layers, virtual_stages);
  } else if (balanced) {
    set("parallel.pipeline_layout", "balanced", "--account-for-...-in-pipeline-split");
  } else {
    if (layers % (stages * virtual_stages) != 0) {
      refuse(
          "--num-layers " + std::to_string(layers) +
              " is not divisible by --pipeline-model-parallel-size " + std::to_string(stages),
          "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers say where "
          "there are fewer"
      );
    }
    set("parallel.pipeline_layout", "even", kMegatronDefault);
  }
}

int64_t Importer::chunks(int64_t stages, int64_t layers) const {
  const char* by_layers = "num-layers-per-virtual-pipeline-stage";
  const char* by_stages = "num-virtual-stages-per-pipeline-rank";
  const bool either = given_.has(by_layers) || given_.has(by_stages);
  if (either && stages <= 1) {
    refuse(
        std::string("--") + (given_.has(by_layers) ? by_layers : by_stages) +
        " needs --pipeline-model-parallel-size above 1"
    );
  }
  if (!given_.has(by_layers)) {
    return given_.integer(by_stages, 1);
  }
  const int64_t each = given_.integer(by_layers, 1);
  if (each <= 0 || layers % (stages * each) != 0) {
    refuse(
        "--num-layers " + std::to_string(layers) + " is not divisible by " +
        std::to_string(stages) + " stages of --" + by_layers + " " + std::to_string(each)
    );
  }
  return layers / stages / each;
}

void Importer::fewest_data_ranks() {
  const int64_t experts = integer("parallel.expert", 1) * integer("parallel.expert_tensor", 1);
  const int64_t one = integer("parallel.tensor", 1) * integer("parallel.context", 1);
  if (!is_set("parallel.data") && one > 0 && experts > one && experts % one == 0) {
    set("parallel.data", experts / one, "as few as the experts of a stage take");
  }
}

namespace {

/// Megatron-LM's layout of a pipeline with its repetitions written out: "Et*2|(t|)*2L" to
/// "Ett|t|t|L". E: embedding, t: a layer, m: a layer of multi-token prediction, L: loss.
class LayoutReader {
public:
  explicit LayoutReader(std::string_view text)
      : text_(text) {}

  /// Nothing if the text is something else, or longer than a thousand layers.
  [[nodiscard]] std::optional<std::string> read() {
    std::string all = sequence(0);
    return sound_ && at_ == text_.size() ? std::optional(std::move(all)) : std::nullopt;
  }

private:
  static constexpr size_t kMost = 10'000;
  static constexpr int kDeepest = 20;

  std::string sequence(int depth) {
    std::string all;
    while (sound_ && at_ < text_.size() && text_[at_] != ')') {
      const char letter = text_[at_++];
      std::string one;
      if (letter == '(') {
        one = depth < kDeepest ? sequence(depth + 1) : "";
        sound_ = sound_ && depth < kDeepest && at_ < text_.size() && text_[at_++] == ')';
      } else if (std::string_view("EtmL|").find(letter) != std::string_view::npos) {
        one = letter;
      } else {
        sound_ = letter == ',' || letter == ' ';
      }
      for (int64_t times = repetitions(); sound_ && times > 0; --times) {
        all += one;
        sound_ = all.size() <= kMost;
      }
    }
    return all;
  }

  int64_t repetitions() {
    if (at_ >= text_.size() || text_[at_] != '*') {
      return 1;
    }
    const size_t begin = ++at_;
    int64_t number = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && at_ - begin < 5) {
      number = 10 * number + (text_[at_++] - '0');
    }
    sound_ = sound_ && at_ > begin;
    return number;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool sound_ = true;
};

} // namespace

void Importer::written_layout(int64_t stages, const GivenArgument& given) {
  const auto all = LayoutReader(given.values.front()).read();
  if (!all) {
    refuse(
        given.text() + " is no layout of Megatron-LM",
        "E for the embedding, t for a layer, L for the loss, | between stages: Et*3|t*4|t*3L"
    );
  }
  std::string text;
  int64_t chunks = 0;
  for (const std::string& chunk : parts_of(*all + " ", '|')) {
    const auto layers = std::count(chunk.begin(), chunk.end(), 't');
    std::string terms = chunk.find('E') != std::string::npos ? "embed" : "";
    for (const std::string& term :
         {layers > 0 ? std::to_string(layers) : "",
          std::string(chunk.find('L') != std::string::npos ? "head" : "")}) {
      terms += (terms.empty() || term.empty() ? "" : "+") + term;
    }
    text += (chunks++ > 0 ? "|" : "") + terms;
  }
  if (std::count(all->begin(), all->end(), '|') + 1 != chunks || stages < 1 ||
      chunks % stages != 0) {
    refuse(
        given.text() + " has a stage that holds nothing, or not as many as " +
            std::to_string(stages) + " ranks of a pipeline take",
        "each stage holds a layer, the embedding or the loss"
    );
  }
  if (all->find('m') != std::string::npos) {
    comment(given.text() + ": m, multi-token prediction, is a part of the head");
  }
  if (chunks > stages) {
    set("parallel.virtual_stages", chunks / stages, given.text());
  }
  set("parallel.pipeline_layout", text, given.text());
}

void Importer::uneven_layout(int64_t stages, int64_t layers, int64_t virtual_stages) {
  const int64_t first = given_.integer("decoder-first-pipeline-num-layers", 0);
  const int64_t last = given_.integer("decoder-last-pipeline-num-layers", 0);
  const int64_t others = stages - (first > 0 ? 1 : 0) - (last > 0 ? 1 : 0);
  const int64_t rest = layers - first - last;
  if (virtual_stages > 1 || rest < 0 || (others == 0 ? rest != 0 : rest % others != 0)) {
    refuse(
        "--num-layers " + std::to_string(layers) + " less the first stage's " +
        std::to_string(first) + " and the last one's " + std::to_string(last) +
        " cannot be split over " + std::to_string(others) + " other stages" +
        (virtual_stages > 1 ? " of virtual stages" : "")
    );
  }
  std::string text = "embed";
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t own = stage == 0 && first > 0           ? first
                        : stage + 1 == stages && last > 0 ? last
                                                          : rest / std::max<int64_t>(1, others);
    text += (stage == 0 ? "+" : "|") + std::to_string(own);
  }
  set("parallel.pipeline_layout", text + "+head", "--decoder-first/last-pipeline-num-layers");
}

void Importer::recompute() {
  const std::string granularity = given_.text(
      "recompute-granularity",
      given_.has("recompute-activations")    ? "selective"
      : given_.has("checkpoint-activations") ? "full"
      : given_.has("recompute-method")       ? "full"
                                             : ""
  );
  const char* by = given_.has("recompute-granularity")    ? "recompute-granularity"
                   : given_.has("recompute-activations")  ? "recompute-activations"
                   : given_.has("checkpoint-activations") ? "checkpoint-activations"
                                                          : "recompute-method";
  if (granularity == "full") {
    full_recompute(by);
  } else if (granularity == "selective") {
    selective_recompute(by);
  } else if (!granularity.empty()) {
    refuse("--recompute-granularity " + granularity + " is neither full nor selective");
  }
}

void Importer::full_recompute(const char* by) {
  const std::string method = given_.text("recompute-method", "uniform");
  if (std::string(by) == "recompute-granularity" && !given_.has("recompute-method")) {
    refuse("--recompute-granularity full needs --recompute-method uniform or block");
  }
  if (method != "uniform" && method != "block") {
    refuse("--recompute-method " + method + " is neither uniform nor block");
  }
  set_from("recompute.use", "full", by);
  set_from("recompute.method", method, "recompute-method");
  set_from("recompute.layers", given_.integer("recompute-num-layers", 1), "recompute-num-layers");
}

void Importer::selective_recompute(const char* by) {
  const std::pair<const char*, const char*> known[] = {
      {"core_attn", "core_attention"},
      {"layernorm", "norms"},
      {"moe_act", "activations"},
      {"mlp", "mlp"}};
  const GivenArgument* modules = given_.find("recompute-modules");
  Value::Array parts;
  for (const std::string& module :
       modules != nullptr ? modules->values : std::vector<std::string>{"core_attn"}) {
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const auto& pair) {
      return module == pair.first;
    });
    if (found == std::end(known)) {
      comment("--recompute-modules " + module + ": no equivalent: it is kept");
    } else {
      parts.emplace_back(found->second);
    }
  }
  if (!parts.empty()) {
    set_from("recompute.use", "selective", by);
    set_from("recompute.parts", std::move(parts), modules != nullptr ? "recompute-modules" : by);
  }
}

} // namespace mh
