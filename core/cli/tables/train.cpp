/// Commands that train and use what was trained.

#include "core/cli/tables/tables.hpp"

namespace mh {

const Option kRecipeOfRun{
    "--recipe", "RECIPE", "recipe file, instead of the run folder's recipe.toml"};
const Option kStepOfRun{"--step", "N", "checkpoint of this step, instead of the newest"};

std::vector<Command> training_commands() {
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
              {"--resume",
               "",
               "goes on from the newest checkpoint of the run folder, which must be of the same "
               "model, tokenizer, optimizer and data; =auto begins a new run where there is none, "
               "for launchers that start a run again",
               false,
               {"auto"}},
              {"--allow-change",
               "KEY",
               "lets a run have another value than the checkpoint that it goes on from, or whose "
               "weights it starts from: model.window, or a section such as model",
               true},
              {"--weights",
               "DIR",
               "starts from the weights of a run folder, a Hugging Face folder or one of a plugin's "
               "format, not from random ones"},
              kWeightsFormat,
              {"--step", "N", "checkpoint of --weights: this step's, instead of the newest"},
              kScaleToRanks,
              {"--run-dir",
               "DIR",
               "run folder, instead of the recipe's run_dir, or checkpoint.dir if it has none"},
              {"--copy-to",
               "STORE",
               "when the run ends, its run folder is copied there, the newest checkpoint, too, unless "
               "checkpoint.dir is in a store: s3://bucket/runs/a"},
              {"--nproc",
               "N",
               "starts N processes on this machine, one per rank; torchrun --no-python, srun and "
               "mpirun work too. A rank that the others wait for is named after comm.hang_after "
               "seconds, and given up after comm.timeout"},
              {"--max-restarts",
               "N",
               "when a rank fails, starts this machine's ranks again from the newest checkpoint, at "
               "most N times; not after a mistake in the recipe, nor when three starts in a row fail "
               "after the same step"},
              {"--preflight",
               "",
               "first compares the ranks, as `megahost doctor --ranks` does, and refuses to train "
               "where one is slow or unlike the others"},
              kRank,
              kWorldSize,
              kMaster,
              kLocalRank,
              {"--log-format",
               "FORMAT",
               "form of the lines, instead of the recipe's log.format",
               false,
               {"line", "megatron", "json"}},
              {"--deterministic",
               "",
               "takes only operations that give the same bits each time, and refuses others"},
              {"--debug",
               "",
               "names the first operation, its block and its microbatch when NaN or Inf come up; "
               "several times slower"},
              {"--profile",
               "FIRST:LAST",
               "shows where the time of these steps goes, by operation and by part of the model, "
               "and writes a trace for ui.perfetto.dev or chrome://tracing"},
              {"--checking",
               "",
               "ranks compare at the boundaries of layers what they should agree on, and name the "
               "first tensor that differs; slow"},
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
          "sweep",
          "Train",
          "trains a recipe with many values of its keys",
          "Several values of --set are a grid, --zip walks keys together, --random draws; the "
          "recipe's `sweep` says the same, and `list` too: a table of grid, zip, list and random, "
          "of which each point is combined with each of the others. Each point is a recipe of its "
          "own, ID.toml in the sweep's folder, with a run folder ID. The same command goes on with "
          "a sweep that was stopped: what is done stays, runs that had begun resume. Failures stay "
          "with their reason. sweep.csv and sweep.html (curves, and the last loss over each key) "
          "are in the folder at the end. Status 1 if a point failed.",
          {kRecipe},
          {
              {"--set",
               "KEY=A,B,C",
               "values of a key, as in --set optimizer.lr=1e-4,3e-4; a single value is all points'",
               true},
              {"--zip", "KEY=A,B,C", "values that change together with those of other --zip", true},
              {"--random",
               "KEY=A..B",
               "draws from a range; log:A..B by its logarithm, A,B,C from a list",
               true},
              {"--count", "N", "points that --random draws (10)"},
              {"--jobs", "N", "runs at a time (1)"},
              {"--run-dir",
               "DIR",
               "the sweep's folder (runs/NAME-sweep), with a run folder for each point"},
              {"--list", "", "lists the points and what is known of them; starts nothing"},
              {"--plan", "", "plans each point instead of running it"},
              {"--on",
               "NAME",
               "machine that is planned for: h100, ..., or \"this\" for the CPU here; unless given "
               "what a point's notes say, else what the device names: that CPU, or an h100 for cuda"},
              {"--retry", "", "runs points that failed once more"},
              {"--yes", "", "starts more than 1,000 points without a question"},
              kScale,
              kPlugin,
              kJson,
          },
          {
              {"megahost sweep recipes/quickstart.lua --set optimizer.lr=3e-4,1e-3 --set "
               "train.iters=40",
               "two runs"},
              {"megahost sweep recipes/quickstart.lua --zip model.layers=2,4 --zip "
               "model.hidden=224,448 --set train.seed=1,2 --jobs 2",
               "two sizes, each with two seeds"},
              {"megahost sweep recipes/quickstart.lua --random optimizer.lr=log:1e-4..1e-2 --count "
               "20 --list",
               ""},
          },
      },
      {
          "eval",
          "Train",
          "loss and perplexity of trained weights",
          "The weights come from one of our run folders or from a Hugging Face folder (config.json "
          "and *.safetensors), whose config.json must describe the recipe's model. What is read is "
          "train.eval_iters global batches of the validation split, from its first sample on, or "
          "what --split, --all and --ids say. To evaluate a file, give it alone to the recipe's "
          "data with split = [0, 100, 0], and --all.",
          {kRecipe},
          {
              {"--weights", "DIR", "run folder, Hugging Face folder, or one of a plugin's format"},
              kWeightsFormat,
              kAllowChange,
              {"--step", "N", "checkpoint of this step of a run folder, instead of the newest"},
              {"--split",
               "SPLIT",
               "which share of the data is read (valid)",
               false,
               {"train", "valid", "test"}},
              {"--all",
               "",
               "reads the split exactly once, instead of train.eval_iters batches, whatever the weights "
               "and the order of training are; the last sample may be short"},
              {"--ids",
               "FILE.json",
               "what to evaluate instead of the recipe's data: token ids, [[...], ...], or a corpus's arrays "
               "by name, {\"tokens\": [[...], ...], ...}"},
              {"--logits",
               "OUT.safetensors",
               "writes the logits after each id of --ids: [rows, ids of a row, vocabulary]"},
              {"--gradients", "OUT.safetensors", "writes the gradients of the loss of --ids"},
              {"--nproc",
               "N",
               "evaluates on N processes of this machine under the recipe's layout; torchrun, srun "
               "and mpirun work too. A rank that the others wait for is named as in a run"},
              kRank,
              kWorldSize,
              kMaster,
              kLocalRank,
              kScaleToRanks,
              kSet,
              kPlugin,
          },
          {
              {"megahost eval recipes/quickstart.lua --weights runs/quickstart", ""},
              {"megahost eval recipes/quickstart.lua --weights runs/quickstart --all",
               "the whole validation split"},
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
          "fp32, whatever the run trained in; --set precision=bf16 halves the memory.",
          {{"RUN", "run folder or Hugging Face folder"}},
          {
              {"--prompt", "TEXT", "what the model continues"},
              {"--sequence",
               "NAME=TEXT",
               "what a model reads in addition: encoder=TEXT for an encoder-decoder",
               true},
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
              kRecipeOfRun,
              kStepOfRun,
              kWeightsFormat,
              kAllowChange,
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
          "fill-mask",
          "Train",
          "guesses hidden tokens of a text with a trained BERT",
          "RUN is one of our run folders, or a Hugging Face folder (config.json and *.safetensors) "
          "with --recipe. Prints the text with the likeliest token at each [MASK], then the "
          "likeliest tokens of each with their probabilities. Several are guessed at once, each "
          "without knowing the others.",
          {{"RUN", "run folder or Hugging Face folder"}},
          {
              {"--text", "TEXT", "a text in which [MASK] hides tokens"},
              {"--top", "K", "so many guesses for each (5)"},
              kRecipeOfRun,
              kStepOfRun,
              kWeightsFormat,
              kAllowChange,
              {"--json", "", "one JSON object"},
              kSet,
              kPlugin,
          },
          {
              {"megahost fill-mask runs/bert_tiny --text 'int m[MASK]in() { retu[MASK]n 0; }'", ""},
              {"megahost fill-mask bert/ --recipe bert.toml --text 'Paris is the [MASK] of France.'",
               "a model from Hugging Face"},
          },
      },
      {
          "embed",
          "Train",
          "embeds blocks with a trained retriever, and searches among them",
          "RUN is a run folder of a retriever (model.use = \"retriever\"), or a Hugging Face folder "
          "with --recipe. Embeds each block of a split of the recipe's data once, or each line of a "
          "--file, and says how many queries of the split find their own block among the first "
          "k: recall@k, all blocks compared. -o keeps the index: embeddings.npy and blocks.jsonl. "
          "--query finds the blocks that go with a text, among these or in an --index.",
          {{"RUN", "run folder or Hugging Face folder"}},
          {
              {"--split",
               "SPLIT",
               "which share of the data is embedded (valid)",
               false,
               {"train", "valid", "test"}},
              {"--samples", "N", "embeds the blocks of so many samples only"},
              {"--file",
               "FILE",
               "blocks instead of the recipe's: lines of text, or of JSON with a text"},
              {"-o", "INDEX", "folder to write the index to"},
              {"--index", "INDEX", "searches in an index that was written"},
              {"--query", "TEXT", "finds the blocks that go with this text"},
              {"--top", "K", "so many blocks for the query (5)"},
              {"--nproc", "N", "embeds on N processes of this machine, which share the blocks"},
              kRecipeOfRun,
              kStepOfRun,
              kWeightsFormat,
              kAllowChange,
              {"--json", "", "one JSON object"},
              kSet,
              kPlugin,
          },
          {
              {"megahost embed runs/ict_tiny", "recall@k over the validation split"},
              {"megahost embed runs/ict_tiny --query 'returns the number of dimensions'", ""},
              {"megahost embed runs/dpr --file passages.jsonl -o index", "an index of a file"},
              {"megahost embed runs/dpr --index index --query 'who wrote it'", ""},
          },
      },
  };
}

} // namespace mh
