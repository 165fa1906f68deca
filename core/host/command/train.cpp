/// Commands that train and use what was trained.

#include "core/host/command/tables.hpp"

namespace mh {

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
              {"--resume", "", "goes on from the newest checkpoint of the run folder"},
              {"--weights",
               "DIR",
               "starts from the weights of a run folder or a Hugging Face folder, not from random "
               "ones"},
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
               "and "
               "writes a trace for ui.perfetto.dev or chrome://tracing"},
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
  };
}

} // namespace mh
