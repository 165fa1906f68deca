#include "core/host/command.hpp"

#include "core/recipe/text.hpp"
#include "megahost/kind.hpp"

#include <algorithm>

namespace mh {

namespace {

const Argument kRecipe{"RECIPE", "recipe file: .lua, .toml or .json"};
const Option kSet{"--set", "KEY=VALUE", "overrides one value, as in --set optimizer.lr=1e-4", true};
const Option kPlugin{"--plugin", "FILE", "opens a plugin before those that the recipe names", true};
const Option kJson{"--json", "", "as JSON, for programs"};
const Option kScale{"--scale", "", "the same structure shrunk to this machine, as one rank"};

const Option kTokenizer{"--tokenizer", "NAME", "tokenizer, such as byte or gpt2"};
const Option kTokenizerOf{"--recipe", "RECIPE", "takes the tokenizer of a recipe"};
const Option kTokenizerSet{
    "--set",
    "tokenizer.KEY=VALUE",
    "an option of the tokenizer; `megahost plugins show` lists them",
    true};

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KindInfo& kind : kKinds) {
    names.emplace_back(kind.name);
  }
  return names;
}

std::vector<Command> make_commands() {
  return {
      {
          "run",
          "Train",
          "trains what a recipe describes",
          "Progress, metrics (metrics.jsonl), the resolved recipe and checkpoints go to a run "
          "folder. SIGTERM "
          "and SIGINT save a checkpoint before the run ends, a second one ends it at once. The "
          "command that resumes is printed at the end. In a line, (+0.4z) says how unusual the "
          "last step's loss or gradient norm is: robust standard deviations from the median of the "
          "128 steps before.",
          {kRecipe},
          {
              kSet,
              kPlugin,
              {"--resume", "", "goes on from the newest checkpoint of the run folder"},
              kScale,
              {"--run-dir", "DIR", "run folder, instead of the recipe's checkpoint.dir"},
              {"--nproc",
               "N",
               "starts N processes on this machine, one per rank; torchrun --no-python, srun and "
               "mpirun "
               "work too"},
              {"--log-format",
               "FORMAT",
               "form of the lines, instead of the recipe's log.format",
               false,
               {"line", "megatron", "json"}},
              {"--profile",
               "FIRST:LAST",
               "shows where the time of these steps goes, by operation and by part of the model, "
               "and "
               "writes a trace for ui.perfetto.dev or chrome://tracing"},
          },
          {
              {"megahost run recipes/quickstart.lua",
               "a small Llama learns real text, three minutes"},
              {"megahost run recipes/gpt2_124m.toml --set train.iters=20 --set precision=bf16", ""},
              {"megahost run recipes/quickstart.lua --resume", "goes on where it was stopped"},
              {"megahost run recipes/quickstart.lua --nproc 2 --set parallel.tensor=2",
               "two processes share each matrix"},
              {"megahost run recipes/quickstart.lua --profile 10:20", "where the time goes"},
              {"megahost run recipes/llama70b.lua --scale",
               "a 70B layout's structure on this machine"},
          },
      },
      {
          "eval",
          "Train",
          "loss and perplexity of trained weights",
          "The weights come from one of our run folders or from a Hugging Face folder (config.json "
          "and "
          "*.safetensors).",
          {kRecipe},
          {
              {"--weights", "DIR", "run folder or Hugging Face folder"},
              {"--ids",
               "FILE.json",
               "token ids to evaluate, [[...], ...], instead of the validation split"},
              {"--logits", "OUT.safetensors", "writes the logits of --ids"},
              {"--gradients", "OUT.safetensors", "writes the gradients of the loss of --ids"},
              kScale,
              kSet,
              kPlugin,
          },
          {
              {"megahost eval recipes/quickstart.lua --weights runs/quickstart", ""},
              {"megahost eval recipes/gpt2_124m.toml --weights gpt2/ --ids ids.json --logits "
               "out.safetensors",
               "a model from Hugging Face"},
          },
      },
      {
          "generate",
          "Train",
          "continues a prompt with a trained model",
          "RUN is one of our run folders, or a Hugging Face folder (config.json and *.safetensors) "
          "with --recipe. The prompt and what the model writes go to standard output as they come, "
          "the speed goes to standard error. The model looks back on at most model.seq_length "
          "tokens; when there are more, it goes on from the last half of them. It computes in "
          "fp32, "
          "whatever the run trained in; --set precision=bf16 halves the memory.",
          {{"RUN", "run folder or Hugging Face folder"}},
          {
              {"--prompt", "TEXT", "what the model continues"},
              {"--tokens",
               "N",
               "at most so many tokens (256); fewer if the model ends the document"},
              {"--temperature",
               "T",
               "0 takes the most likely token, 1 the model's own shares (0.8)"},
              {"--top-k", "K", "draws from the K most likely tokens"},
              {"--top-p", "P", "draws from the most likely tokens that have the share P together"},
              {"--seed", "N", "another seed gives another text (1234)"},
              {"--no-cache", "", "reads everything again for each token: the same tokens, slowly"},
              {"--recipe", "RECIPE", "recipe file, instead of the run folder's recipe.toml"},
              {"--step", "N", "checkpoint of this step, instead of the newest"},
              {"--json", "", "one JSON object at the end instead of text as it comes"},
              kSet,
              kPlugin,
          },
          {
              {"megahost generate runs/quickstart --prompt 'int main('", ""},
              {"megahost generate runs/quickstart --prompt '#include' --temperature 0 --tokens 50",
               "the most likely text"},
              {"megahost generate gpt2/ --recipe recipes/gpt2_124m.toml --prompt 'Once upon'",
               "a model from Hugging Face"},
          },
      },
      {
          "plot",
          "Runs",
          "draws what runs measured: loss, learning rate, gradient norm, speed",
          "Reads the metrics of run folders, of runs that are still going too. Several runs are "
          "drawn over each other. Validation losses are single points.",
          {{"RUN...", "run folder; several are drawn together"}},
          {
              {"--metric",
               "NAME",
               "what to draw: loss, lr, gradient_norm, tokens_per_second, seconds, memory or a "
               "loss by its name, such as 'lm loss'",
               true},
              {"--smooth", "STEPS", "draws the mean of this many steps around each"},
              {"--svg", "FILE", "writes a picture, readable on light and dark pages, instead"},
          },
          {
              {"megahost plot runs/quickstart", ""},
              {"megahost plot runs/quickstart runs/quickstart-2 --metric loss --smooth 20",
               "two runs, one chart"},
              {"megahost plot runs/quickstart --svg curves.svg", ""},
          },
      },
      {
          "compare",
          "Runs",
          "the differences of two runs: recipe, loss, speed, memory",
          "Losses are compared at equal steps, and at equal tokens where a step of one run has "
          "more "
          "of them; each is the mean of the steps since the row above.",
          {{"RUN", "run folder"}, {"OTHER-RUN", "run folder"}},
          {kJson},
          {{"megahost compare runs/quickstart runs/quickstart-2", ""}},
      },
      {
          "recipe check",
          "Recipes",
          "checks a recipe and shows every problem at its line",
          "",
          {kRecipe},
          {kSet, kPlugin},
          {{"megahost recipe check recipes/quickstart.lua", ""}},
      },
      {
          "recipe show",
          "Recipes",
          "prints a recipe with every default filled in",
          "What it prints is a recipe that resolves to the same.",
          {kRecipe},
          {
              {"--format",
               "FORMAT",
               "language of the output (toml)",
               false,
               {"toml", "lua", "json"}},
              {"--origins", "", "a comment at each value: where it comes from"},
              kScale,
              kSet,
              kPlugin,
          },
          {
              {"megahost recipe show recipes/quickstart.lua --origins", ""},
              {"megahost recipe show recipes/gpt2_124m.lua --format toml > mine.toml",
               "Lua to TOML"},
          },
      },
      {
          "recipe explain",
          "Recipes",
          "says what a value means and where it comes from",
          "Every layer that sets the value, the weakest first, with file, line and column; an "
          "arrow "
          "marks the one that counts.",
          {kRecipe, {"KEY...", "dotted key, such as optimizer.lr, or a section"}},
          {kSet, kPlugin},
          {{"megahost recipe explain recipes/llama70b.lua model.hidden", ""},
           {"megahost recipe explain recipes/gpt2_124m.toml batch optimizer.lr --set batch.micro=8",
            ""}},
      },
      {
          "recipe diff",
          "Recipes",
          "the values in which two resolved recipes differ",
          "",
          {{"RECIPE", "recipe file"}, {"OTHER", "recipe file"}},
          {kPlugin},
          {{"megahost recipe diff recipes/gpt2_124m.lua recipes/gpt2_124m.toml", ""}},
      },
      {
          "recipe schema",
          "Recipes",
          "a JSON Schema of recipes, for editors",
          "Made from the schemas that check a recipe, of the core and of every plugin found: an "
          "editor "
          "with Taplo (VS Code: Even Better TOML) completes and checks keys, words and ranges. The "
          "first line of a recipe names the schema, as in \"#:schema recipe.schema.json\".",
          {},
          {{"-o", "FILE", "writes it there instead of to standard output"}, kPlugin},
          {{"megahost recipe schema -o recipe.schema.json", ""}},
      },
      {
          "recipe stubs",
          "Recipes",
          "annotations of recipes in Lua, for editors",
          "Writes DIR/megahost.gen.lua, for the core and every plugin found, and the settings "
          "DIR/.luarc.json unless there are some. The Lua language server then completes and "
          "checks a table that is written as \"local recipe = {...}\" below the line \"---@type "
          "megahost.Recipe\".",
          {},
          {{"-o", "DIR", "folder of the recipes, instead of the current one"}, kPlugin},
          {{"megahost recipe stubs -o my-recipes", ""}},
      },
      {
          "data prepare",
          "Data",
          "tokenises documents into a corpus for `data.use = \"indexed\"`",
          "JSON lines (.jsonl, .ndjson, .json or -, the standard input) hold a document in each "
          "line; "
          "any other file is one document; of a folder, every file in it is taken. The result is a "
          "pair PREFIX_KEY_document.bin and .idx for each key, in Megatron's format, the same "
          "bytes "
          "for any number of workers. It gets its name when it is complete.",
          {{"INPUT...", "files and folders"}},
          {
              {"--output", "PREFIX", "where the corpus goes, such as data/corpus"},
              kTokenizer,
              kTokenizerOf,
              {"--json-key", "KEY", "member of each JSON object that holds text (text)", true},
              {"--format",
               "FORMAT",
               "what all inputs are, whatever their names",
               false,
               {"jsonl", "text"}},
              {"--append-eod", "", "ends each document with the tokenizer's end of document"},
              {"--skip-bad", "", "leaves out documents that cannot be read, and counts them"},
              {"--workers", "N", "threads that tokenise (one for each core)"},
              {"--force", "", "replaces a corpus that is there"},
              kTokenizerSet,
              kPlugin,
          },
          {
              {"megahost data prepare corpus.jsonl --output data/corpus --tokenizer gpt2 --set "
               "tokenizer.vocab=vocab.json --set tokenizer.merges=merges.txt --append-eod",
               ""},
              {"megahost data prepare book.txt articles/ --output data/mine --recipe my.toml",
               "with the recipe's tokenizer"},
              {"zcat corpus.jsonl.gz | megahost data prepare - --output data/corpus --tokenizer "
               "byte",
               ""},
          },
      },
      {
          "data inspect",
          "Data",
          "what a tokenised corpus holds: documents, tokens, lengths",
          "With a tokenizer, tokens are shown as text too.",
          {{"PREFIX", "a pair PREFIX.bin and PREFIX.idx, without the ending"}},
          {
              {"--document", "N", "the tokens of one document, counted from 0"},
              {"--tokens", "N", "how many tokens of the first document are shown (64)"},
              kTokenizer,
              kTokenizerOf,
              kTokenizerSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost data inspect data/corpus_text_document", ""},
              {"megahost data inspect data/corpus_text_document --document 7 --recipe my.toml", ""},
          },
      },
      {
          "plugins",
          "Plugins",
          "lists the plugins found: kind, name, version, where from",
          "Each file is opened in a process of its own; what cannot be opened is listed with the "
          "reason.",
          {},
          {kPlugin, kJson},
          {{"megahost plugins", ""}},
      },
      {
          "plugins show",
          "Plugins",
          "every field that a plugin accepts: type, default, range, unit",
          "",
          {{"NAME", "name, such as adamw or org.megahost.adamw/adamw"}},
          {kPlugin, kJson},
          {{"megahost plugins show llama", ""}},
      },
      {
          "plugins check",
          "Plugins",
          "tests a plugin: about thirty named tests, each in a process of its own",
          "For authors, before anybody else trains with it. Tests that do not suit what it offers "
          "are left out. Exit status: 0 all passed, 1 some failed, 2 there was nothing to test.",
          {{"FILE", "the .so file that the plugin's build made"}},
          {
              {"--include", "NAME", "runs this test only", true},
              {"--set",
               "KEY=VALUE",
               "an option that the plugin requires, as in --set data.paths='[\"book.txt\"]'",
               true},
              {"--in-process", "", "no processes of their own, for debuggers"},
              kPlugin,
              kJson,
          },
          {{"megahost plugins check build/optimizers-lion.so", ""},
           {"gdb --args megahost plugins check build/optimizers-lion.so --in-process --include "
            "options-fuzz",
            ""}},
      },
      {
          "plugins new",
          "Plugins",
          "writes a new plugin of your own: sources, test, recipe, build file",
          "A meson project that builds outside of megahost's tree, through pkg-config, and works "
          "as "
          "it is: change it from there. docs/your_model.md goes through it with a model.",
          {{"DIR", "folder of the project; made if it is not there, else empty"}},
          {
              {"--kind", "KIND", "what the plugin offers", false, kind_names()},
              {"--name", "NAME", "as recipes will say it; the folder's name if absent"},
          },
          {{"megahost plugins new lion --kind optimizer", ""},
           {"megahost plugins new src/mixer --kind architecture --name mixer", ""}},
      },
      {
          "help",
          "Help",
          "says more about a command, a plugin, a recipe's key or a concept",
          "Concepts: recipes, layouts, precision, checkpoints, plugins, exit codes, environment "
          "variables.",
          {{"TOPIC...", "such as run, adamw, optimizer.lr, batch or \"exit codes\""}},
          {},
          {{"megahost help optimizer.lr", ""}, {"megahost help layouts", ""}},
      },
      {
          "doctor",
          "Help",
          "what this machine and installation can do, and what to mend",
          "Processor, memory, disk, GPUs, LibTorch, CUDA libraries and plugins, and the measured "
          "speed "
          "of matrix products and copies. A sentence says what to do about whatever is missing or "
          "slow.",
          {},
          {kJson, kPlugin},
          {{"megahost doctor", ""}},
      },
      {
          "docs",
          "Help",
          "writes reference pages in Markdown",
          "A page per command, plugin, concept and SDK header, and one for all keys of a recipe. "
          "Pages "
          "that it wrote before and that nothing belongs to any more are removed.",
          {},
          {{"-o", "DIR", "folder of the pages, instead of docs/reference"},
           {"--man", "", "prints the manual page megahost(1) instead"},
           kPlugin},
          {{"megahost docs -o docs/reference", ""}, {"megahost docs --man | man -l -", ""}},
      },
  };
}

} // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> all = make_commands();
  return all;
}

const Command* find_command(std::string_view name) {
  const auto found =
      std::find_if(commands().begin(), commands().end(), [&](const Command& command) {
        return command.name == name;
      });
  return found == commands().end() ? nullptr : &*found;
}

std::string usage(const Command& command) {
  std::string text = "megahost " + command.name;
  for (const Argument& argument : command.arguments) {
    text += " " + argument.name;
  }
  return text + (command.options.empty() ? "" : " [OPTION...]");
}

std::vector<std::pair<std::string, std::string>> words_of(const Command& command) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Argument& argument : command.arguments) {
    rows.emplace_back(argument.name, argument.doc);
  }
  for (const Option& option : command.options) {
    rows.emplace_back(
        option.name + (option.value.empty() ? "" : " " + option.value),
        option.doc + (option.choices.empty() ? "" : ": " + join(option.choices)) +
            (option.repeatable ? "; may be repeated" : "")
    );
  }
  return rows;
}

} // namespace mh
