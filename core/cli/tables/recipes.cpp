/// Commands on recipes.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> recipe_commands() {
  return {
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
          "arrow marks the one that counts.",
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
          "recipe import-args",
          "Recipes",
          "makes a recipe of another trainer's command or settings",
          "Takes the arguments of pretrain_gpt.py, pretrain_mamba.py, pretrain_bert.py, pretrain_t5.py or pretrain_ict.py, in quotes, "
          "or a shell script that runs one, with the script's own words behind its name: its "
          "variables, arrays, cases and tests of texts are read, nothing is run. Of a file that ends with "
          ".yaml, a PyTorchJob, a TrainJob or another manifest, the containers' commands are taken. With --run bash "
          "runs it, in this folder, and only python, torchrun, srun, mpirun, docker and their like "
          "are replaced by programs that note what they were given. Of settings files, torchtitan's "
          "(.toml, .json), Megatron-Bridge's (run_config.yaml, .json) and NeMo's (.yaml), the keys are "
          "read. Each value names the "
          "argument or key that it comes from; the program's defaults are written out where ours "
          "differ; what has no equivalent is a comment at the top. Contradictions are refused by "
          "name.",
          {{"COMMAND...",
            "'pretrain_gpt.py --num-layers 2 ...', a shell script's file and its words, a manifest's, or "
            "a settings file"}},
          {{"--run", "", "lets bash run the script, with launchers that start nothing"},
           {"-o",
            "FILE",
            "writes the recipe there instead of to standard output: TOML, Lua or JSON, as the "
            "file's name ends"},
           {"--force", "", "replaces a file that is there"},
           kPlugin},
          {{"megahost recipe import-args train.sh -o mine.lua", ""},
           {"megahost recipe import-args 'pretrain_gpt.py --num-layers 2 --hidden-size 64 "
            "--num-attention-heads 4 --seq-length 64 --micro-batch-size 2 --train-iters 5 "
            "--mock-data --vocab-size 100'",
            ""},
           {"megahost recipe import-args train_gpt3_175b.sh checkpoints logs vocab.json merges.txt "
            "data/text_document",
            "the script's $1, $2, ..."},
           {"megahost recipe import-args --run -o mine.lua train.sh -- --data /data",
            "its words may begin with dashes behind --"},
           {"DATA_PATH=/data megahost recipe import-args train.sbatch",
            "a variable that the script does not set"},
           {"megahost recipe import-args llama3_8b.toml -o mine.toml", "torchtitan's settings"},
           {"megahost recipe import-args checkpoints/iter_0001000/run_config.yaml",
            "those of Megatron-Bridge"}},
      },
      {
          "recipe from-hf",
          "Recipes",
          "makes a recipe of a Hugging Face folder",
          "Takes the model from the folder's config.json, each value with the key that it comes "
          "from; what transformers takes for absent keys is written out. eval takes the recipe as "
          "it is, run takes it with --weights DIR. A key that megahost does not know is named. In "
          "a recipe of your own, model = { from = \"DIR\" } does the same.",
          {{"DIR", "Hugging Face folder (config.json; *.safetensors are not read)"}},
          {{"--training",
            "FILE",
            "takes batch, optimizer, learning rates and length of the run from transformers' "
            "TrainingArguments, in JSON (to_json_string) or YAML"},
           {"-o",
            "FILE",
            "writes the recipe there instead of to standard output: TOML, Lua or JSON, as the "
            "file's name ends"},
           {"--force", "", "replaces a file that is there"},
           kPlugin},
          {{"megahost recipe from-hf gpt2/ -o gpt2.lua", ""},
           {"megahost recipe from-hf gpt2/ --training training_args.json", ""}},
      },
      {
          "presets",
          "Recipes",
          "lists the models and layouts that a recipe can start from",
          "A recipe names them as preset = \"70b-32\", or preset = [\"llama3-70b\", \"70b-32\"]: "
          "a layout brings the model that it was made for, unless the recipe names one. What the "
          "recipe itself says wins. They are rows of presets/models.toml and presets/layouts.toml "
          "in the recipe folders.",
          {},
          {kJson},
          {{"megahost presets", ""},
           {"megahost recipe show recipes/quickstart.lua --set preset=7b-8",
            "a recipe under another layout"}},
      },
      {
          "presets show",
          "Recipes",
          "one preset: its values, where they come from, and what a layout needs to fit",
          "",
          {{"NAME", "a model, such as llama2-70b, or a layout, such as 70b-32"}},
          {kJson},
          {{"megahost presets show 70b-32", ""}},
      },
      {
          "recipe schema",
          "Recipes",
          "a JSON Schema of recipes, for editors",
          "Made from the schemas that check a recipe, of the core and of every plugin found: an "
          "editor with Taplo (VS Code: Even Better TOML) completes and checks keys, words and "
          "ranges. The first line of a recipe names the schema, as in \"#:schema "
          "recipe.schema.json\".",
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
  };
}

} // namespace mh
