#include "config.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

namespace mh::indexed {
namespace {

/// "1.5B", and what follows it.
std::optional<std::pair<double, std::string_view>> scaled(std::string_view text) {
  double number = 0;
  const auto [end, failure] = std::from_chars(text.begin(), text.end(), number);
  if (failure != std::errc() || !(number >= 0) || !std::isfinite(number)) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.begin()));
  constexpr std::string_view kUnits = "KMBT";
  if (const size_t unit = text.empty() ? kUnits.npos : kUnits.find(text[0]); unit != kUnits.npos) {
    number *= std::pow(1000.0, static_cast<double>(unit + 1));
    text.remove_prefix(1);
  }
  return std::pair(number, text);
}

/// "data/web_text_document" -> "web".
std::string name_of_path(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  for (const char* ending : {".bin", ".idx", "_document", "_text"}) {
    if (name.ends_with(ending) && name.size() > std::string_view(ending).size()) {
      name.resize(name.size() - std::string_view(ending).size());
    }
  }
  return name;
}

std::string check_weights(const Config& config) {
  if (!config.weights.empty() && config.weights.size() != config.paths.size()) {
    return "there are " + std::to_string(config.weights.size()) + " weights for " +
           std::to_string(config.paths.size()) + " paths, expected one for each";
  }
  const auto bad =
      std::ranges::find_if(config.weights, [](double w) { return !(w > 0) || !std::isfinite(w); });
  return bad == config.weights.end() ? "" : "a weight is not above 0: leave its path out instead";
}

std::string check_sources(const Config& config) {
  if (config.sources.empty()) {
    return "";
  }
  if (!config.paths.empty()) {
    return "there are data.paths, too: name each corpus in one of them";
  }
  size_t weights = 0, epochs = 0, tokens = 0, splits = 0;
  for (const SourceConfig& source : config.sources) {
    weights += source.weight ? 1 : 0;
    epochs += source.epochs ? 1 : 0;
    tokens += source.tokens ? 1 : 0;
    splits += source.split ? 1 : 0;
    if (source.tokens && !tokens_of(*source.tokens)) {
      return "tokens \"" + *source.tokens + "\" of " + source.path +
             " is no amount, expected one as \"200B\"";
    }
  }
  const size_t all = config.sources.size();
  if (const size_t most = std::max({weights, epochs, tokens});
      most != weights + epochs + tokens || (most != 0 && most != all)) {
    return "all sources say their share in the same way, by weight, by epochs or by tokens, or none "
           "says it";
  }
  if (config.megatron() && splits != 0 && splits != all) {
    return "in Megatron's order all sources name their split, or none does";
  }
  return "";
}

std::string check_names(const Config& config) {
  const bool needed = config.validation_by_source || !config.changes.empty();
  std::set<std::string> train, valid;
  for (const SourceConfig& source : needed ? config.all_sources() : config.sources) {
    if (source.name.empty()) {
      continue; // its file's name, which others may have, too
    }
    const std::string split = source.split.value_or("");
    if ((split != "valid" && split != "test" && !train.insert(source.name).second) ||
        (split != "train" && split != "test" && !valid.insert(source.name).second)) {
      return "two sources have the name `" + source.name +
             "`: give each a name of its own in "
             "data.sources";
    }
  }
  return "";
}

std::string check_changes(const Config& config) {
  if (config.changes.empty()) {
    return "";
  }
  if (config.megatron()) {
    return "the shares of Megatron's order do not change during a run";
  }
  std::set<std::string> names;
  for (const SourceConfig& source : config.all_sources()) {
    if (source.split.value_or("train") == "train") {
      names.insert(source.name);
    }
  }
  double before = 0;
  for (const ChangeConfig& change : config.changes) {
    constexpr int64_t kAnySeq = 1; // amounts of tokens and of samples are compared apart
    const auto at = samples_of(change.at, kAnySeq);
    if (!at || *at == 0) {
      return "at \"" + change.at +
             "\" is no point of a run, expected one as \"200B tokens\" or \"5000 samples\"";
    }
    if (change.at.ends_with("tokens") == config.changes.front().at.ends_with("tokens")) {
      if (static_cast<double>(*at) <= before) {
        return "at \"" + change.at + "\" is not behind the change before it";
      }
      before = static_cast<double>(*at);
    } else {
      return "all changes say where they are in tokens, or all in samples";
    }
    double sum = 0;
    for (const auto& [name, weight] : change.weights) {
      if (!names.contains(name)) {
        return "at \"" + change.at + "\": there is no source `" + name + "`";
      }
      if (!(weight >= 0) || !std::isfinite(weight)) {
        return "at \"" + change.at + "\": the weight of `" + name + "` is not 0 or more";
      }
      sum += weight;
    }
    if (change.weights.size() != names.size()) {
      return "at \"" + change.at + "\": " + std::to_string(change.weights.size()) +
             " weights for " + std::to_string(names.size()) +
             " sources, expected one for each (0: no more of it)";
    }
    if (!(sum > 0)) {
      return "at \"" + change.at + "\": all weights are 0";
    }
  }
  return "";
}

std::string check_order(const Config& config) {
  if (config.megatron()) {
    return config.shuffle ? "" : "Megatron's order is shuffled: leave data.shuffle out";
  }
  if (config.index_files) {
    return "index files are Megatron's: the order \"megahost\" needs none";
  }
  return config.dataloader == "single" && config.data_sharding && config.drop_last_partial &&
                 config.extra_token
             ? ""
             : "dataloader, data_sharding, drop_last_partial and extra_token are of the order "
               "\"megatron\"";
}

std::string check_packing(const Config& config) {
  return config.megatron() && config.whole_documents()
             ? "Megatron's order is a stream of documents: leave data.packing out"
             : "";
}

std::string check_fill_in(const Config& config) {
  const auto &prefix = config.fim_prefix, &middle = config.fim_middle, &suffix = config.fim_suffix;
  const bool given = prefix && middle && suffix;
  return config.fim_rate > 0 && !given
             ? "filling gaps needs the ids fim_prefix, fim_middle and fim_suffix"
         : config.fim_rate > 0 && (prefix == middle || middle == suffix || prefix == suffix)
             ? "fim_prefix, fim_middle and fim_suffix are three different ids"
             : "";
}

std::string check_validation(const Config& config) {
  const auto sources = config.all_sources();
  const bool weighted = std::ranges::any_of(sources, [](const SourceConfig& source) {
    return source.weight || source.epochs || source.tokens;
  });
  return config.megatron() && config.full_validation && weighted && !config.validation_by_source
             ? "a whole validation split has no weights, epochs or tokens in Megatron's order: leave them "
               "out, or set "
               "validation_by_source"
             : "";
}

} // namespace

std::optional<double> tokens_of(const std::string& amount) {
  const auto found = scaled(amount);
  return found && (found->second.empty() || found->second == " tokens")
             ? std::optional(found->first)
             : std::nullopt;
}

std::optional<uint64_t> samples_of(const std::string& amount, int64_t seq) {
  const auto found = scaled(amount);
  if (!found) {
    return std::nullopt;
  }
  const auto& [number, unit] = *found;
  const double each = unit == " tokens" ? static_cast<double>(seq) : unit == " samples" ? 1 : 0;
  return each > 0 && number < 1e18 ? std::optional(static_cast<uint64_t>(std::ceil(number / each)))
                                   : std::nullopt;
}

std::vector<SourceConfig> Config::all_sources() const {
  std::vector<SourceConfig> all = sources;
  for (size_t i = 0; i < paths.size(); ++i) {
    SourceConfig source;
    source.path = paths[i];
    if (i < weights.size()) {
      source.weight = weights[i];
    }
    all.push_back(std::move(source));
  }
  for (SourceConfig& source : all) {
    if (source.name.empty()) {
      source.name = name_of_path(source.path);
    }
  }
  return all;
}

void SourceConfig::fields(Fields<SourceConfig>& fields) {
  fields.add("path", &SourceConfig::path, "prefix of a .bin/.idx pair").path().required();
  fields.add("name", &SourceConfig::name, "what it is called; that of its file if empty");
  fields.add("weight", &SourceConfig::weight, "share of the samples, in any unit").above(0);
  fields.add("epochs", &SourceConfig::epochs, "how often it is read, compared with the others")
      .above(0);
  fields.add(
      "tokens",
      &SourceConfig::tokens,
      "tokens that are read of it, compared with the others: \"2B\""
  );
  fields
      .add(
          "split", &SourceConfig::split, "the split that gets all of it; absent: cut by data.split"
      )
      .one_of({"train", "valid", "test"});
}

void ChangeConfig::fields(Fields<ChangeConfig>& fields) {
  fields
      .add("at", &ChangeConfig::at, "from where on: \"200B tokens\" or \"5000 samples\" of the run")
      .required();
  fields.add(
      "weights", &ChangeConfig::weights, "share of each source by its name; 0: no more of it"
  );
}

void config_fields(Fields<Config>& fields) {
  fields
      .add(
          "paths",
          &Config::paths,
          "prefixes of .bin/.idx pairs, as `megahost data prepare` or Megatron writes them"
      )
      .path();
  fields.add(
      "weights",
      &Config::weights,
      "share of each path among the samples, in any unit; {}: as many as each has"
  );
  fields.add(
      "sources",
      &Config::sources,
      "instead of paths: corpora with names, shares (weight, epochs or tokens) and splits"
  );
  fields.add(
      "changes",
      &Config::changes,
      "other weights from a point of the run on: { { at = \"200B tokens\", weights = { web = 1 } } }"
  );
  fields
      .add(
          "order",
          &Config::order,
          "order of documents and samples: megahost computes it, megatron is megatron-core 0.16's bit for "
          "bit"
      )
      .one_of({"megahost", "megatron"});
  fields
      .add(
          "index_files",
          &Config::index_files,
          "folder where Megatron's index files are kept: made once, mapped by all ranks; those that "
          "Megatron made are taken. Absent: each rank makes the order in memory"
      )
      .path();
  fields
      .add(
          "dataloader",
          &Config::dataloader,
          "Megatron's way of reading: single takes samples in their order, cyclic shuffles them anew each epoch"
      )
      .one_of({"single", "cyclic"});
  fields.add(
      "data_sharding",
      &Config::data_sharding,
      "Megatron's cyclic order: each data-parallel rank shuffles a part of its own"
  );
  fields.add(
      "drop_last_partial",
      &Config::drop_last_partial,
      "Megatron's validation leaves out its last sample if it is not full"
  );
  fields.add(
      "extra_token",
      &Config::extra_token,
      "Megatron's samples hold seq_length + 1 tokens; else the last one has no label"
  );
  fields
      .add(
          "packing",
          &Config::packing,
          "stream: documents one after the other, cut anywhere; pad: one document in a sample, the "
          "rest empty; first_fit: as many whole documents as fit, which do not see one another"
      )
      .one_of({"stream", "pad", "first_fit"});
  fields.add(
      "supervised",
      &Config::supervised,
      "loss where `data prepare --template` says so: on what assistants say"
  );
  fields.add(
      "mmap",
      &Config::mmap,
      "the files are mapped; false: the index is held in memory and tokens are read, for file "
      "systems where maps are slow"
  );
  fields.add("fim_rate", &Config::fim_rate, "share of documents whose middle is moved to their end")
      .range(0, 1);
  fields.add("fim_spm_rate", &Config::fim_spm_rate, "share of those with the suffix first")
      .range(0, 1);
  fields.add("fim_prefix", &Config::fim_prefix, "id before the prefix");
  fields.add("fim_middle", &Config::fim_middle, "id before the middle");
  fields.add("fim_suffix", &Config::fim_suffix, "id before the suffix");
  fields.add(
      "validation_by_source",
      &Config::validation_by_source,
      "each source's part of the validation split is evaluated under its name, too"
  );
  fields.add(
      "full_validation",
      &Config::full_validation,
      "an evaluation reads the whole validation split once, whatever train.eval_iters says"
  );
  fields.add(
      "reset_positions", &Config::reset_positions, "positions begin anew with each document"
  );
  fields.add(
      "reset_attention", &Config::reset_attention, "tokens attend to their own document only"
  );
  fields.add(
      "mask_eod_loss",
      &Config::mask_eod_loss,
      "no loss for what follows an end of document: the next document's first token"
  );
  fields.add(
      "shuffle",
      &Config::shuffle,
      "documents and samples of an epoch in random order; else in that of the file"
  );
  fields.add(
      "eod", &Config::eod, "id that ends a document; the tokenizer's end of document if absent"
  );
  fields.check("weights", check_weights);
  fields.check("sources", check_sources);
  fields.check("sources", check_names);
  fields.check("changes", check_changes);
  fields.check("order", check_order);
  fields.check("index_files", [](const Config& config) -> std::string {
    return config.index_files && config.index_files->find("://") != std::string::npos
               ? "expected a folder of this machine: index files are mapped, and written"
               : "";
  });
  fields.check("packing", check_packing);
  fields.check("fim_rate", check_fill_in);
  fields.check("full_validation", check_validation);
  fields.check("paths", [](const Config& config) {
    return std::string(
        config.paths.empty() && config.sources.empty() ? "it names no corpus, and data.sources none"
                                                       : ""
    );
  });
}

} // namespace mh::indexed
