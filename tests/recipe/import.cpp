#include "core/import/import.hpp"

#include "core/base/text.hpp"
#include "core/import/manifest.hpp"
#include "core/import/shell_value.hpp"
#include "core/megatron/arguments.hpp"
#include "core/recipe/commands.hpp"
#include "core/schema/sections.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

namespace import_tests {

namespace {

using Words = std::vector<std::string>;

std::optional<std::string> environment(const std::string& name) {
  return name == "OUTSIDE" ? std::optional<std::string>("from outside")
         : name == "HOME"  ? std::optional<std::string>("/home/me")
                           : std::nullopt;
}

mh::ShellCommand command_of(const std::string& script) {
  return mh::find_training_command(script, "train.sh", environment);
}

/// The arguments that a script gives to pretrain_gpt.py.
Words arguments(const std::string& script) {
  return command_of(script).arguments;
}

std::string refusal_of(const std::string& script) {
  return mh::test::refusal([&] { static_cast<void>(command_of(script)); });
}

const std::string kModel =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
    "--micro-batch-size 2 --train-iters 5 --vocab-size 100 ";

mh::ImportedRecipe imported(const std::string& more, bool whole = true) {
  return mh::import_arguments(command_of("pretrain_gpt.py " + (whole ? kModel : "") + more));
}

std::string value(const mh::ImportedRecipe& recipe, const char* key) {
  const mh::Value* found = recipe.tree.find_path(key);
  return found == nullptr ? "absent" : mh::to_text(*found);
}

std::string why(const std::string& more, bool whole = true) {
  return mh::test::refusal([&] { static_cast<void>(imported(more, whole)); });
}

} // namespace

TEST_CASE("words of a shell script") {
  CHECK(arguments("python pretrain_gpt.py --a 1 --b=2") == Words{"--a", "1", "--b=2"});
  CHECK(arguments("--a 1") == Words{"--a", "1"});
  CHECK(arguments("pretrain_gpt.py --a \\\n  1 # a comment\necho --b") == Words{"--a", "1"});
  CHECK(
      arguments("pretrain_gpt.py '--a b' \"--c \\\"d\\\"\" e\\ f") ==
      Words{"--a b", "--c \"d\"", "e f"}
  );
  CHECK(
      arguments("X=3\nY=\"a b\"\npretrain_gpt.py $X ${X} $Y \"$Y\" '$X'") ==
      Words{"3", "3", "a", "b", "a b", "$X"}
  );
  CHECK(
      arguments("A=(--x 1\n  # none\n  --y \"2 3\")\nA+=(--z)\npretrain_gpt.py \"${A[@]}\" ${A[@]}"
      ) == Words{"--x", "1", "--y", "2 3", "--z", "--x", "1", "--y", "2", "3", "--z"}
  );
  CHECK(
      arguments("declare -a A=(--x $OUTSIDE)\nexport B=4\npretrain_gpt.py ${A[@]} $B") ==
      Words{"--x", "from", "outside", "4"}
  );
  CHECK(arguments("G=8; N=2\nW=$(($G*N + 1))\npretrain_gpt.py $W $((W % 5))") == Words{"17", "2"});
  CHECK(arguments(": \"${X:=7}\"\npretrain_gpt.py $X ${Y:-8} ${Y:-${X}}") == Words{"7", "8", "7"});
  CHECK(arguments("X=a; X+=b; pretrain_gpt.py $X |& tee log 2>&1") == Words{"ab"});
  CHECK(arguments("pretrain_gpt.py $@ --a 1 > out.txt 2>&1 &") == Words{"--a", "1"});
  CHECK(arguments("cat <<EOF\nit's $NOT read\nEOF\npretrain_gpt.py --a") == Words{"--a"});
  CHECK(
      arguments("O=\"--a 1\"\nR=\"python -u /m/pretrain_gpt.py $@ ${O}\"\nsrun sh -c \"${R}\"") ==
      Words{"--a", "1"}
  );
  CHECK(arguments("[ -f x ] || { echo no; exit 1; }\nX=1 pretrain_gpt.py $X") == Words{"1"});
  CHECK(
      arguments("pretrain_gpt.py ~/x a~b '~/x' ~") == Words{"/home/me/x", "a~b", "~/x", "/home/me"}
  );
  const mh::ShellCommand launched =
      command_of("torchrun --nproc_per_node 8 /m/pretrain_gpt.py --a");
  CHECK(launched.launcher == Words{"torchrun", "--nproc_per_node", "8"});
  CHECK(launched.program == "/m/pretrain_gpt.py");
}

TEST_CASE("branches that compare texts are followed") {
  const std::string chain =
      "if [ ${S} == \"a\" ]; then\n T=1\nelif [ ${S} == \"b\" ]; then\n T=2\nelse\n "
      "T=3\nfi\npretrain_gpt.py $T";
  CHECK(arguments("S=a\n" + chain) == Words{"1"});
  CHECK(arguments("S=b\n" + chain) == Words{"2"});
  CHECK(arguments("S=c\n" + chain) == Words{"3"});
  CHECK(
      arguments("T=1\nif [[ \"${X:-}\" == \"1\" ]]; then\n T=2\nfi\npretrain_gpt.py $T") ==
      Words{"1"}
  );
  CHECK(
      arguments("X=\n[ -z \"$X\" ] && X=5\n[ $X -gt 4 ] || X=6\npretrain_gpt.py $X") == Words{"5"}
  );
  CHECK(
      arguments("if [ 1 == 2 ]; then pretrain_gpt.py --no; fi\npretrain_gpt.py --yes") ==
      Words{"--yes"}
  );
}

TEST_CASE("words of the script's own command line, cases and loops") {
  const auto with = [](const std::string& script, const Words& words) {
    return mh::find_training_command(script, "train.sh", environment, words).arguments;
  };
  CHECK(
      with("pretrain_gpt.py $1 \"$2\" $# ${3:-c} ${1}", {"a", "b b"}) ==
      Words{"a", "b b", "2", "c", "a"}
  );
  CHECK(with("pretrain_gpt.py \"$@\" $*", {"a", "b b"}) == Words{"a", "b b", "a", "b", "b"});
  CHECK(with("shift\npretrain_gpt.py $1 $#", {"a", "b"}) == Words{"b", "1"});
  CHECK(arguments("pretrain_gpt.py a \"$@\" ${1:-b}") == Words{"a", "b"});
  const std::string cases = "case \"$1\" in\n small) X=1 ;;\n large | \"huge\")\n  X=2\n  ;;\n "
                            "v?) X=3 ;;\n *) X=4\nesac\npretrain_gpt.py $X";
  for (const auto& [word, number] :
       {std::pair("small", "1"), {"huge", "2"}, {"v7", "3"}, {"else", "4"}}) {
    CHECK(with(cases, {word}) == Words{number});
  }
  CHECK(with("case $1 in (a) X=1;; esac\npretrain_gpt.py ${X:-2}", {"b"}) == Words{"2"});
  CHECK(with("case $(hostname) in *) X=1;; esac\npretrain_gpt.py $X", {}) == Words{"1"});
  CHECK(refusal_of("case $(hostname) in a) X=1;; *) X=2;; esac\npretrain_gpt.py $X")
            .starts_with("train.sh:1: X is set in a branch"));
  CHECK(refusal_of("case a in\n b") == "train.sh:2: `case` without its `esac`");
  CHECK(refusal_of("case a\n") == "train.sh:1: `case` without its `in`");
  CHECK(
      with("X=1\nwhile [[ $# -gt 0 ]]; do X=2; shift; done\npretrain_gpt.py $X", {}) == Words{"1"}
  );
  CHECK(with("X=1\nuntil [ 1 == 1 ]; do X=2; done\npretrain_gpt.py $X", {}) == Words{"1"});
  // A batch script that a scheduler reads.
  CHECK(
      with(
          "X=\"a b\"\nsbatch -N 1 <<EOF\n#SBATCH -t 1\nsrun bash -c \"python pretrain_gpt.py ${X}\" | tee \\$J\nEOF\necho",
          {}
      ) == Words{"a", "b"}
  );
  CHECK(
      with("cat <<EOF > f\npretrain_gpt.py --no\nEOF\npretrain_gpt.py --yes", {}) == Words{"--yes"}
  );
  // A test of a file names the program, and is not its command. A variable that is set nowhere is empty.
  CHECK(
      with("P=pretrain_gpt.py\nif [ ! -f \"$P\" ]; then echo no; fi\n$P --a", {}) == Words{"--a"}
  );
  CHECK(with("X=1\nif [ -n \"${NO}\" ]; then X=2; fi\npretrain_gpt.py $X", {}) == Words{"1"});
}

TEST_CASE("what is not read is said, where an argument depends on it") {
  CHECK(arguments("D=$(pwd)\nA=`date`\npython pretrain_gpt.py --a") == Words{"--a"});
  CHECK(
      refusal_of("D=$(pwd)\npretrain_gpt.py --data $D") ==
      "train.sh:1: the output of $(pwd) is not known"
  );
  CHECK(refusal_of("pretrain_gpt.py $1").starts_with("train.sh:1: $1 is a word of the script's own")
  );
  CHECK(refusal_of("\npretrain_gpt.py --a $NO")
            .starts_with("train.sh:2: the variable NO is set nowhere"));
  CHECK(
      refusal_of("for X in 1 2; do\n Y=$X\ndone\npretrain_gpt.py $Y") ==
      "train.sh:2: Y is set in a branch or loop that is not followed: write its value there"
  );
  CHECK(refusal_of("if [ -d /x ]; then Y=1; else Y=2; fi\npretrain_gpt.py $Y")
            .starts_with("train.sh:1: Y is set in a branch"));
  CHECK(refusal_of("pretrain_gpt.py ${X//a/b}").starts_with("train.sh:1: ${X//a/b} is not read"));
}

TEST_CASE("malformed scripts") {
  CHECK(refusal_of("") == "train.sh has no command that runs a pretrain_gpt.py");
  CHECK(refusal_of("python train.py --a") == "train.sh has no command that runs a pretrain_gpt.py");
  CHECK(refusal_of("\npretrain_gpt.py 'a") == "train.sh:2: a quote ' without its end");
  CHECK(refusal_of("pretrain_gpt.py \"a") == "train.sh:1: a quote \" without its end");
  CHECK(
      refusal_of("A=(1 2\npretrain_gpt.py").find("an array without its closing parenthesis") !=
      std::string::npos
  );
  CHECK(refusal_of("fi\npretrain_gpt.py") == "train.sh:1: `fi` without its beginning");
  CHECK(refusal_of("pretrain_gpt.py ${A").find("without its closing `}`") != std::string::npos);
  std::string deep = "pretrain_gpt.py ";
  for (int i = 0; i < 100; ++i) {
    deep += "${A:-";
  }
  CHECK(refusal_of(deep + std::string(100, '}')).find("more than 32 deep") != std::string::npos);
  std::string growing = "A=aaaaaaaaaa\n";
  for (int i = 0; i < 30; ++i) {
    growing += "A=$A$A\n";
  }
  CHECK(
      refusal_of(growing + "pretrain_gpt.py $A").find("more than a million characters") !=
      std::string::npos
  );
}

TEST_CASE("a spoiled script is read or refused with a sentence, never anything else") {
  const std::string script = "#!/bin/bash\n: \"${T:=4}\"\nif [ \"$T\" == 4 ]; then\n  "
                             "P=2\nfi\nA=(--x $T\n --y \"${P}\")\nN=$((T * "
                             "P))\n[[ -f x ]] || { echo no; }\ntorchrun --n $N pretrain_gpt.py "
                             "\"${A[@]}\" --z '1' |& tee log\n";
  const std::vector<std::string> pieces{"$",  "\"", "'",  "(",   ")",  "{",    "}",
                                        "`",  "\\", "\n", "$((", "${", "if ",  "fi\n",
                                        "<<", "&&", "||", "=",   "+=", "\xff", "done"};
  std::mt19937 random(7);
  int read = 0, refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = script;
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text.insert(at, pieces[random() % pieces.size()]);
      } else {
        text.erase(at, random() % 8);
      }
    }
    try {
      static_cast<void>(mh::import_arguments(command_of(text)));
      ++read;
    } catch (const mh::Error& error) {
      ++refused;
      CHECK_FALSE(std::string(error.what()).empty());
    }
  }
  CHECK(read + refused == 5000);
}

TEST_CASE("the command of a Kubernetes manifest") {
  CHECK(mh::is_manifest("a/pytorchjob.yaml-template"));
  CHECK_FALSE(mh::is_manifest("train.sh"));
  const auto of = [](const std::string& manifest) {
    return command_of(mh::script_of_manifest(manifest));
  };
  const auto list = of(R"(apiVersion: "kubeflow.org/v1"
kind: PyTorchJob
metadata: { name: megatron }
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          containers:
            - name: pytorch
              image: ${REPO}  # not replaced: nothing asks for it
              env:
                - name: LAYERS
                  value: "36"
              command:
              - python3
              - -m
              - torch.distributed.run
              - --nproc_per_node=8
              - /workspace/Megatron-LM/pretrain_gpt.py
              # a comment
              - --num-layers
              - $LAYERS
              args:
                - "--lr"
                - 6.0e-5  # as in the paper
                - '--data-path'
                - $(OUTSIDE)/text document
                - "--fp16"
              volumeMounts: [{ name: shmem, mountPath: /dev/shm }]
)");
  CHECK(list.launcher.at(3) == "--nproc_per_node=8");
  const Words expected{
      "--num-layers",
      "36",
      "--lr",
      "6.0e-5",
      "--data-path",
      "from outside/text document",
      "--fp16"};
  CHECK(list.arguments == expected);
  const auto flow = of("command: [python, pretrain_gpt.py,\n  '--num-layers', \"2\"]\nargs: []\n");
  CHECK(flow.arguments == Words{"--num-layers", "2"});
  const auto script = of(R"(containers:
- command: ["/bin/bash"]
  args:
  - -c
  - |
    cd /workspace
    LR=1e-4

    torchrun pretrain_gpt.py --num-layers 2 \
      --lr $LR
  name: one
)");
  CHECK(script.arguments == Words{"--num-layers", "2", "--lr", "1e-4"});
  CHECK(mh::test::refusal([&] {
          of("kind: Job\ncommand: [sleep, infinity]\n");
        }) == "train.sh has no command that runs a pretrain_gpt.py");
}

TEST_CASE("sums of the shell") {
  CHECK(mh::shell::arithmetic("2 + 3 * (4 - 1)") == 11);
  CHECK(mh::shell::arithmetic("-7 / 2") == -3);
  CHECK_FALSE(mh::shell::arithmetic("1 / 0"));
  CHECK_FALSE(mh::shell::arithmetic("1 +"));
  CHECK_FALSE(mh::shell::arithmetic("99999999999999999999"));
  CHECK_FALSE(mh::shell::arithmetic("4000000000000 * 4000000000000"));
}

TEST_CASE("the table of arguments") {
  std::set<std::string_view> names;
  size_t values = 0;
  for (const mh::MegatronArgument& argument : mh::megatron_arguments()) {
    CAPTURE(argument.name);
    CHECK(names.insert(argument.name).second);
    const bool comment =
        argument.becomes == mh::Becomes::nothing || argument.becomes == mh::Becomes::changes;
    CHECK(comment <= !argument.note.empty());
    CHECK((argument.becomes == mh::Becomes::word) == !argument.words.empty());
    values += argument.key.empty() ? 0 : 1;
    if (!argument.key.empty()) {
      CHECK(mh::recipe_schema().find(argument.key.substr(0, argument.key.find('.'))) != nullptr);
    }
  }
  CHECK(names.size() >= 240);
  CHECK(values >= 70);
  for (const mh::MegatronConflict& pair : mh::megatron_conflicts()) {
    CHECK(names.contains(pair.one));
    CHECK(names.contains(pair.other));
  }
}

TEST_CASE("arguments become a recipe, Megatron-LM's defaults with them") {
  const auto plain = imported("--mock-data");
  CHECK(value(plain, "model.use") == "\"gpt\"");
  CHECK(value(plain, "model.dropout") == "0.1");
  CHECK(value(plain, "model.positions") == "\"learned\"");
  CHECK(value(plain, "model.activation") == "\"gelu_tanh\"");
  CHECK(value(plain, "optimizer.weight_decay") == "0.01");
  CHECK(value(plain, "optimizer.betas") == "[0.9, 0.999]");
  CHECK(value(plain, "lr_schedule.use") == "\"linear\"");
  CHECK(value(plain, "data.split") == "[969, 30, 1]");
  CHECK(value(plain, "data.use") == "\"mock\"");
  CHECK(value(plain, "precision") == "\"fp32\"");
  CHECK(value(plain, "train.eval_interval") == "1000");
  CHECK(plain.comments.empty());
  const auto llama = imported(
      "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
      "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --bf16 "
      "--tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --split "
      "100,0,0 "
      "--recompute-activations --no-rope-fusion --transformer-impl local --bogus 3"
  );
  CHECK(value(llama, "model.use") == "\"llama\"");
  CHECK(value(llama, "model.ffn_hidden") == "128"); // 8/3 of 64, down to a multiple of 64
  CHECK(value(llama, "model.kv_heads") == "2");
  CHECK(value(llama, "model.bias") == "false");
  CHECK(value(llama, "parallel.zero") == "1");
  CHECK(value(llama, "train.eval_interval") == "0");
  CHECK(value(llama, "recompute.parts") == "[\"core_attention\"]");
  CHECK(llama.comments.size() == 3);
  CHECK(llama.comments[2].starts_with("--bogus 3: not known here"));
  CHECK(
      llama.text("t", mh::RecipeFormat::toml)
          .find("tensor = 2  # --tensor-model-parallel-size 2\n") != std::string::npos
  );
  const std::string lua = llama.text("t", mh::RecipeFormat::lua);
  CHECK(lua.starts_with("-- t\n--\n-- --no-rope-fusion: no equivalent: "));
  CHECK(lua.find("    tensor = 2,  -- --tensor-model-parallel-size 2\n") != std::string::npos);
  CHECK(lua.ends_with("}\n"));
  const std::string json = llama.text("t", mh::RecipeFormat::json);
  CHECK(json.starts_with("{\n  \"precision\": \"bf16\",\n"));
  CHECK(json.find("--") == std::string::npos);
  CHECK(value(imported("--overlap-param-gather"), "parallel.overlap") == "true");
  CHECK(imported("--overlap-param-gather --overlap-grad-reduce").comments.empty());
  const auto sums = imported("--grad-reduce-in-bf16 --ddp-bucket-size 40000000");
  CHECK(value(sums, "parallel.reduce_dtype") == "\"bf16\"");
  CHECK(value(sums, "parallel.bucket_size") == "40000000");
  CHECK(sums.comments.empty());
  CHECK(
      value(
          imported("--pipeline-model-parallel-size 2 --num-layers 6 "
                   "--decoder-first-pipeline-num-layers 2"),
          "parallel.pipeline_layout"
      ) == "\"embed+2|4+head\""
  );
  CHECK(
      value(
          imported("--num-layers 8 --pipeline-model-parallel-size 2 "
                   "--num-layers-per-virtual-pipeline-stage 2"),
          "parallel.virtual_stages"
      ) == "2"
  );
  CHECK(value(imported("--window-size 1023,0"), "model.window") == "1024");
  CHECK(value(imported("--data-path 0.3 a 0.7 b"), "data.weights") == "[0.3, 0.7]");
  CHECK(value(imported("--data-path a b"), "data.paths") == "[\"a\", \"b\"]");
  CHECK(value(imported("--data-path a"), "data.order") == "\"megatron\"");
  CHECK(value(imported("--data-path a --split 9/1"), "data.split") == "[9, 1, 0]");
  CHECK(value(imported("--data-path a --data-cache-path c"), "data.index_files") == "\"c\"");
  CHECK(
      value(imported("--data-path s3://b/a --object-storage-cache-path /c"), "data.cache") ==
      "\"/c\""
  );
  const auto apart = imported(
      "--train-data-path 1 a 2 b --valid-data-path c d --dataloader-type cyclic --no-data-sharding "
      "--multiple-validation-sets"
  );
  CHECK(
      value(apart, "data.sources") ==
      "[{ path = \"a\", split = \"train\", weight = 1 }, { path = \"b\", split = \"train\", "
      "weight = 2 }, { path = \"c\", split = \"valid\" }, { path = \"d\", split = \"valid\" }]"
  );
  CHECK(value(apart, "data.dataloader") == "\"cyclic\"");
  CHECK(value(apart, "data.data_sharding") == "false");
  CHECK(value(apart, "data.validation_by_source") == "true");
  const auto mixture = imported(
      "--num-experts 8 --moe-router-topk 1 --moe-router-load-balancing-type aux_loss seq_aux_loss "
      "--moe-aux-loss-coeff 1e-2 --moe-router-enable-expert-bias --moe-layer-freq 2"
  );
  CHECK(value(mixture, "model.use") == "\"moe\"");
  CHECK(value(mixture, "model.experts") == "8");
  CHECK(value(mixture, "model.balance") == "[\"auxiliary\", \"sequence\", \"bias\"]");
  CHECK(value(mixture, "model.balance_weight") == "0.01");
  CHECK(value(mixture, "model.moe_every") == "2");
  const auto layers_of = [](const std::string& freq, const char* key) {
    return value(
        imported(
            "--num-layers 6 --num-experts 8 --tensor-model-parallel-size 2 --moe-layer-freq " + freq
        ),
        key
    );
  };
  CHECK(layers_of("'[0]*2+[1]*4'", "model.first_dense") == "2");
  CHECK(layers_of("'([1]*2+[0]*1)*2'", "model.moe_pattern").find("dense") != std::string::npos);
  CHECK(layers_of("1", "parallel.expert_tensor") == "2");
  // Experts that are cut like other layers take more ranks of a stage.
  CHECK(layers_of("1 --expert-model-parallel-size 4", "parallel.data") == "4");
  for (const char* wrong : {"'[0]*2+[1]*3'", "'[2]*6'", "'[1]*6)'", "'[1'"}) {
    CAPTURE(wrong);
    CHECK(
        why(std::string("--num-layers 6 --num-experts 8 --moe-layer-freq ") + wrong)
            .find("is no list of a 0 or 1 for each layer") != std::string::npos
    );
  }
  const mh::ImportedRecipe launched = mh::import_arguments(command_of(
      "torchrun --nproc-per-node=8 --nnodes 2 pretrain_gpt.py --tensor-model-parallel-size 4 " +
      kModel
  ));
  CHECK(value(launched, "parallel.data") == "4");
  const mh::ImportedRecipe unknown = mh::import_arguments(
      command_of("torchrun --nproc-per-node=8 --nnodes=$NODES pretrain_gpt.py " + kModel)
  );
  CHECK(value(unknown, "parallel.data") == "absent"); // as many as there will be
}

TEST_CASE("latent attention and the other arguments of DeepSeek-V3") {
  const std::string deepseek =
      "--multi-latent-attention --position-embedding-type rope --normalization RMSNorm --swiglu "
      "--disable-bias-linear --untie-embeddings-and-output-weights --q-lora-rank 24 "
      "--kv-lora-rank 16 --qk-head-dim 8 --qk-pos-emb-head-dim 4 --v-head-dim 8 --kv-channels 8 ";
  const auto latent = imported(
      deepseek + "--qk-layernorm --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 "
                 "--num-experts 8 --moe-token-dispatcher-type flex --moe-enable-deepep "
                 "--moe-expert-capacity-factor 1.5 --moe-router-score-function sigmoid "
                 "--expert-model-parallel-size 2"
  );
  CHECK(value(latent, "model.use") == "\"moe\"");
  for (const auto& [key, number] : std::initializer_list<std::pair<const char*, const char*>>{
           {"model.q_rank", "24"},
           {"model.kv_rank", "16"},
           {"model.head_dim", "8"},
           {"model.rope_head_dim", "4"},
           {"model.v_head_dim", "8"},
           {"model.qk_norm", "absent"},
           {"model.rope_scaling", "\"yarn\""},
           {"model.rope_factor", "40"},
           {"model.rope_original_length", "4096"},
           {"model.rope_mscale", "1"},
           {"model.rope_mscale_all_dim", "1"},
           {"model.capacity_factor", "1.5"},
           {"model.capacity_drop", "\"probability\""},
           {"parallel.expert_dispatch", "\"all_to_all\""}}) {
    CAPTURE(key);
    CHECK(value(latent, key) == number);
  }
  REQUIRE(latent.comments.size() == 1);
  CHECK(latent.comments[0].starts_with("--moe-enable-deepep"));

  const auto plain = imported(deepseek + "--rope-type rope");
  CHECK(value(plain, "model.use") == "\"llama\"");
  CHECK(value(plain, "model.rope_scaling") == "absent");
  REQUIRE(plain.comments.size() == 1);
  CHECK(plain.comments[0].find("latents always pass a norm") != std::string::npos);
  const auto stretched = imported(deepseek + "--rotary-scaling-factor 40 --mscale 0.5");
  CHECK(value(stretched, "model.rope_attention").starts_with("1.1844"));
  CHECK(value(stretched, "model.rope_mscale") == "absent");
  CHECK(value(imported("--qk-layernorm"), "model.qk_norm") == "true");
  CHECK(value(imported("--qk-layernorm"), "model.qk_norm_kind") == "\"layernorm\"");
  CHECK(
      value(imported("--qk-layernorm --normalization RMSNorm"), "model.qk_norm_kind") == "absent"
  );
  const std::string rope = "--position-embedding-type rope --no-rope-freq ";
  CHECK(value(imported(rope + "3"), "model.rope_pattern") == "[\"rope\", \"rope\", \"none\"]");
  CHECK(
      value(imported(rope + "'[1]+[0]*2'"), "model.rope_pattern") ==
      "[\"none\", \"rope\", \"rope\"]"
  );
  CHECK(why(rope + "1").find("leaves no layer that rotates") != std::string::npos);
  const auto predicting = imported("--mtp-num-layers 1 --mtp-loss-scaling-factor 0.3 ");
  CHECK(value(predicting, "model.mtp_layers") == "1");
  CHECK(value(predicting, "model.mtp_loss_weight") == "0.3");
  const std::string interleaved = "--position-embedding-type rope --rotary-interleaved ";
  CHECK(value(imported(interleaved), "model.rope_pairs") == "\"adjacent\"");
  CHECK(
      value(imported(deepseek + "--rotary-interleaved "), "model.rope_pairs") == "absent"
  ); // always so
  CHECK(
      why("--multi-latent-attention --position-embedding-type rope")
          .find("without --disable-bias-linear") != std::string::npos
  );
  CHECK(
      why("--multi-latent-attention --disable-bias-linear").find("rotates queries and keys") !=
      std::string::npos
  );
  CHECK(
      why("--num-experts 8 --moe-router-load-balancing-type aux_loss seq_aux_loss "
          "--moe-aux-loss-coeff 1e-2 1e-3")
          .find("model.balance_weight is of all") != std::string::npos
  );
}

TEST_CASE("embeddings with initial values of their own") {
  CHECK(value(imported("--embedding-init-method-std 0.5"), "model.embedding_std") == "0.5");
}

TEST_CASE("every argument of Megatron-LM is known") {
  const std::string source = std::getenv("MEGAHOST_SOURCE");
  std::ifstream list(source + "/tests/recipe/megatron_arguments.txt");
  size_t count = 0;
  for (std::string name; std::getline(list, name);) {
    if (name.starts_with("#")) {
      continue;
    }
    CAPTURE(name);
    ++count;
    const auto arguments = mh::megatron_arguments();
    const bool known = std::any_of(arguments.begin(), arguments.end(), [&](const auto& argument) {
      std::string dashed(argument.name);
      std::replace(dashed.begin(), dashed.end(), '_', '-');
      return argument.name == name || dashed == name;
    });
    CHECK((known || mh::without_equivalent(name) != nullptr));
  }
  CHECK(count > 800);
  for (const mh::MegatronArguments& group : mh::megatron_arguments_without()) {
    CHECK_FALSE(group.reason.empty());
  }
  const auto comments = mh::join(imported("--mtp-hsm --otel-enabled --no-such").comments, "\n");
  CHECK(comments.find("--mtp-hsm: no equivalent, training differs") != std::string::npos);
  CHECK(comments.find("--otel-enabled: no equivalent: ") != std::string::npos);
  CHECK(comments.find("--no-such: not known here") != std::string::npos);
}

TEST_CASE("an example for more nodes than its launcher starts") {
  const auto of = [](const std::string& more) {
    return mh::import_arguments(
        command_of("torchrun --nproc_per_node 8 pretrain_gpt.py " + kModel + more)
    );
  };
  const auto few = of("--num-layers 16 --pipeline-model-parallel-size 16");
  CHECK(value(few, "parallel.data") == "absent");
  CHECK(
      mh::join(few.comments, " ").find("the launcher starts 8 ranks, too few for 16 of") !=
      std::string::npos
  );
  CHECK(value(of("--pipeline-model-parallel-size 2"), "parallel.data") == "4");
}

TEST_CASE("BERT and T5") {
  const std::string more_than_data =
      "--hidden-size 64 --num-attention-heads 4 --micro-batch-size 2 --train-iters 5 "
      "--vocab-file vocab.txt --tensor-model-parallel-size 2 ";
  const std::string shared = "--data-path corpus_sentence " + more_than_data;
  const auto of = [](const std::string& text) { return mh::import_arguments(command_of(text)); };
  const auto bert = of("pretrain_bert.py --num-layers 4 --seq-length 32 " + shared);
  CHECK(value(bert, "model.use") == "\"bert\"");
  CHECK(value(bert, "model.norm_placement") == "\"pre\"");
  CHECK(value(bert, "model.activation") == "\"gelu_tanh\"");
  CHECK(value(bert, "model.head_activation") == "\"gelu\"");
  CHECK(value(bert, "data.use") == "\"bert\"");
  CHECK(value(bert, "data.pair") == "\"order\"");
  CHECK(value(bert, "data.order") == "\"megatron\"");
  CHECK(value(bert, "data.mask_prob") == "0.15");
  CHECK(value(bert, "data.short_seq_prob") == "0.1");
  CHECK(value(bert, "data.whole_words") == "true");
  CHECK(value(bert, "data.max_ngram") == "3");
  CHECK(value(bert, "tokenizer.bos_eos") == "absent");
  CHECK(value(bert, "tokenizer.use") == "\"wordpiece\"");
  CHECK(value(bert, "tokenizer.lower_case") == "true");
  CHECK(value(bert, "parallel.tensor") == "2");
  CHECK(value(bert, "model.scaled_init") == "true");
  CHECK(value(bert, "model.token_types") == "absent");
  const auto alone =
      of("pretrain_bert.py --num-layers 4 --seq-length 32 --bert-no-binary-head " + shared);
  CHECK(value(alone, "data.pair") == "\"none\"");
  CHECK(value(alone, "model.pair_head") == "false");
  CHECK(value(alone, "model.token_types") == "0");
  const std::string lengths =
      "pretrain_t5.py --encoder-num-layers 3 --decoder-num-layers 2 --encoder-seq-length 32 ";
  const std::string words = "--vocab-extra-ids 100 --tokenizer-type BertWordPieceCase ";
  const auto t5 = of(lengths + "--decoder-seq-length 16 " + words + shared);
  CHECK(value(t5, "model.use") == "\"t5\"");
  CHECK(value(t5, "model.encoder_layers") == "3");
  CHECK(value(t5, "model.layers") == "2");
  CHECK(value(t5, "model.encoder_length") == "32");
  CHECK(value(t5, "model.seq_length") == "16");
  CHECK(value(t5, "model.positions") == "\"learned\"");
  CHECK(value(t5, "model.init_std") == "0.02");
  CHECK(value(t5, "model.scaled_init") == "true");
  CHECK(value(t5, "tokenizer.extra_ids") == "100");
  CHECK(value(t5, "tokenizer.lower_case") == "false");
  CHECK(value(t5, "data.order") == "\"megatron\"");
  CHECK(value(t5, "data.whole_words") == "true");
  CHECK(value(t5, "data.max_ngram") == "10");
  const auto blended =
      of(lengths +
         "--decoder-seq-length 16 --legacy-tokenizer --vocab-extra-ids 50 --mask-prob 0.2 " +
         "--short-seq-prob 0.05 --dataloader-type cyclic --no-data-sharding --data-path 3 a 1 b " +
         more_than_data);
  CHECK(value(blended, "data.weights") == "[3, 1]");
  CHECK(value(blended, "data.mask_prob") == "0.2");
  CHECK(value(blended, "data.short_seq_prob") == "0.05");
  CHECK(value(blended, "data.dataloader") == "\"cyclic\"");
  CHECK(value(blended, "data.data_sharding") == "false");
  CHECK(value(blended, "tokenizer.bos_eos") == "true");
  CHECK(value(blended, "tokenizer.extra_ids") == "50");
  const auto relative = of(
      lengths +
      "--decoder-seq-length 16 --position-embedding-type relative --relative-attention-num-buckets 16 " +
      words + shared
  );
  CHECK(value(relative, "model.positions") == "\"relative\"");
  CHECK(value(relative, "model.buckets") == "16");
  CHECK(value(relative, "model.init_std") == "0.02");
  CHECK(
      mh::join(relative.comments, " ").find("scores have no factor 1 / sqrt(head_dim)") !=
      std::string::npos
  );
  const auto rotary =
      of(lengths + "--decoder-seq-length 16 --position-embedding-type rope --rotary-base 500 " +
         words + shared);
  CHECK(value(rotary, "model.positions") == "\"rope\"");
  CHECK(value(rotary, "model.rope_base") == "absent");
  CHECK(
      mh::join(rotary.comments, " ").find("T5 of Megatron-LM rotates by base 10000") !=
      std::string::npos
  );
  const auto refused = [&](const std::string& text) {
    return mh::test::refusal([&] { static_cast<void>(of(text)); });
  };
  CHECK(refused(lengths + shared).starts_with("--decoder-seq-length is missing"));
  CHECK(refused("pretrain_vlm.py " + shared).starts_with("pretrain_vlm.py trains a model of images")
  );
  CHECK(refused(lengths + "--decoder-seq-length 16 --position-embedding-type yarn " + shared)
            .starts_with("--position-embedding-type yarn has no equivalent for T5"));
}

TEST_CASE("a hybrid") {
  const std::string shared =
      "pretrain_mamba.py --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size "
      "2 --train-iters 5 --vocab-size 100 --position-embedding-type none --normalization RMSNorm "
      "--disable-bias-linear --squared-relu ";
  const auto of = [&](const std::string& text) {
    return mh::import_arguments(command_of(shared + text));
  };
  const auto refused = [&](const std::string& text) {
    return mh::test::refusal([&] { static_cast<void>(of(text)); });
  };
  const auto dense = of("--hybrid-override-pattern M-M*- --num-layers 5 --is-hybrid-model --spec "
                        "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec");
  CHECK(value(dense, "model.use") == "\"hybrid\"");
  CHECK(value(dense, "model.pattern") == "\"M-M*-\"");
  CHECK(value(dense, "model.layers") == "5");
  CHECK(value(dense, "model.mamba_groups") == "8");
  REQUIRE(dense.comments.size() == 1);
  CHECK(dense.comments.front().ends_with("those of Megatron-LM's hybrids by sqrt(layers)"));
  const auto mixed =
      of("--hybrid-layer-pattern 'ME|M*E' --mamba-num-heads 8 --mamba-head-dim 16 "
         "--mamba-state-dim 32 --mamba-num-groups 2 --num-experts 4 --moe-latent-size 16 "
         "--moe-router-score-function sigmoid --moe-layer-freq 1 "
         "--moe-shared-expert-intermediate-size 48");
  CHECK(value(mixed, "model.use") == "\"hybrid\"");
  CHECK(value(mixed, "model.pattern") == "\"MEM*E\"");
  CHECK(value(mixed, "model.layers") == "5");
  CHECK(value(mixed, "model.mamba_heads") == "8");
  CHECK(value(mixed, "model.mamba_state") == "32");
  CHECK(value(mixed, "model.mamba_groups") == "2");
  CHECK(value(mixed, "model.expert_latent") == "16");
  CHECK(value(mixed, "model.moe_every") == "absent");
  CHECK(mixed.comments.size() == 2);
  CHECK(refused("").starts_with("--hybrid-layer-pattern is missing"));
  CHECK(refused("--hybrid-layer-pattern MEX").find("has a layer X") != std::string::npos);
  CHECK(refused("--hybrid-layer-pattern ''").find("has no layer") != std::string::npos);
  CHECK(refused("--hybrid-layer-pattern ME/*E").find("multi-token") != std::string::npos);
  CHECK(
      refused("--hybrid-layer-pattern M- --num-layers 3").find("2 layers, but --num-layers is 3") !=
      std::string::npos
  );
}

TEST_CASE("a retriever") {
  const std::string shared =
      "pretrain_ict.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
      "--micro-batch-size 2 --train-iters 5 --data-path corpus_sentence --vocab-file vocab.txt ";
  const auto of = [&](const std::string& text) {
    return mh::import_arguments(command_of(shared + text));
  };
  const auto plain = of("");
  CHECK(value(plain, "model.use") == "\"retriever\"");
  CHECK(value(plain, "model.norm_placement") == "\"pre\"");
  CHECK(value(plain, "model.shared_towers") == "false");
  CHECK(value(plain, "model.projection_dim") == "0");
  CHECK(value(plain, "data.use") == "\"ict\"");
  CHECK(value(plain, "data.query_in_block") == "0.1");
  CHECK(value(plain, "tokenizer.use") == "\"wordpiece\"");
  const auto rich = of("--biencoder-projection-dim 16 --biencoder-shared-query-context-model "
                       "--titles-data-path titles --query-in-block-prob 0.2 --use-one-sent-docs "
                       "--retriever-score-scaling --retriever-report-topk-accuracies 1 5 20 "
                       "--bert-load bert --indexer-batch-size 8");
  CHECK(value(rich, "model.projection_dim") == "16");
  CHECK(value(rich, "model.shared_towers") == "true");
  CHECK(value(rich, "model.score_scaling") == "true");
  CHECK(value(rich, "model.report_top") == "[1, 5, 20]");
  CHECK(value(rich, "data.titles") == "[\"titles\"]");
  CHECK(value(rich, "data.query_in_block") == "0.2");
  CHECK(value(rich, "data.one_sentence") == "true");
  const std::string said = mh::join(rich.comments, " ");
  CHECK(
      said.find("--bert-load bert: no equivalent, training differs: a retriever") !=
      std::string::npos
  );
  CHECK(said.find("--indexer-batch-size 8: no equivalent") != std::string::npos);
  CHECK(value(of("--ict-head-size 24"), "model.projection_dim") == "24");
}

TEST_CASE("tokenizers that are read from a file") {
  const auto hf = imported("--tokenizer-type HuggingFaceTokenizer --tokenizer-model models/a");
  CHECK(value(hf, "tokenizer.use") == "\"hf\"");
  CHECK(value(hf, "tokenizer.path") == "\"models/a\"");
  CHECK(
      mh::join(hf.comments, " ").find("--vocab-size 100: the vocabulary is the tokenizer's") !=
      std::string::npos
  );
  const auto pieces =
      imported("--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model");
  CHECK(value(pieces, "tokenizer.use") == "\"sentencepiece\"");
  CHECK(
      value(imported("--tokenizer-type TikTokenizer --tokenizer-model a.json"), "tokenizer.use") ==
      "\"null\""
  );
}

TEST_CASE("a pipeline's layout in letters") {
  const std::string four =
      "--num-layers 10 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout ";
  CHECK(
      value(imported(four + "'Et*3|(tt|)*2,ttL'"), "parallel.pipeline_layout") ==
      "\"embed+3|2|2|2+head\""
  );
  const auto eight = imported(four + "'E|tt|t|t|tt|t|ttt|mL'");
  CHECK(value(eight, "parallel.pipeline_layout") == "\"embed|2|1|1|2|1|3|head\"");
  CHECK(value(eight, "parallel.virtual_stages") == "2");
  CHECK(
      mh::join(eight.comments, " ").find("m, multi-token prediction, is a part of the head") !=
      std::string::npos
  );
  CHECK(why(four + "'Et|x|t|L'").find("is no layout of Megatron-LM") != std::string::npos);
  CHECK(why(four + "'Et||t|L'").find("has a stage that holds nothing") != std::string::npos);
  CHECK(why(four + "'Et|t|L'").find("not as many as 4 ranks") != std::string::npos);
  for (const char* text : {"(", ")", "t*", "(t*99999)*99999", "((((((((((((((((((((((((t"}) {
    CHECK(why(four + "'" + text + "'").find("is no layout of Megatron-LM") != std::string::npos);
  }
}

TEST_CASE("arguments that contradict each other are refused by name") {
  CHECK(why("--fp16 --bf16") == "--fp16 and --bf16 are both given: a run has one precision");
  CHECK(why("--train-samples 10").starts_with("--train-iters and --train-samples are both given"));
  CHECK(why("--lr-decay-samples 10").starts_with("--train-iters and --lr-decay-samples"));
  CHECK(why("--mock-data --data-path x").starts_with("--mock-data and --data-path"));
  CHECK(why("--hidden-size 65") == "--hidden-size 65 is not divisible by --num-attention-heads 4");
  CHECK(
      why("--tensor-model-parallel-size 3") ==
      "--num-attention-heads 4 is not divisible by --tensor-model-parallel-size 3"
  );
  CHECK(
      why("--pipeline-model-parallel-size 3") ==
      "--num-layers 2 is not divisible by --pipeline-model-parallel-size 3"
  );
  CHECK(
      why("--max-position-embeddings 16") == "--max-position-embeddings 16 is below --seq-length 32"
  );
  CHECK(
      why("--num-virtual-stages-per-pipeline-rank 2") ==
      "--num-virtual-stages-per-pipeline-rank needs --pipeline-model-parallel-size above 1"
  );
  CHECK(why("--recompute-granularity full").starts_with("--recompute-granularity full needs"));
  CHECK(why("--lr 1e-5 --min-lr 1e-4") == "--min-lr 1e-4 is above --lr 1e-5");
  CHECK(
      why("--lr-warmup-iters 5 --lr-decay-iters 5") ==
      "--lr-warmup-iters 5 is not below --lr-decay-iters 5"
  );
  CHECK(why("--save x").starts_with("--save needs --save-interval"));
  CHECK(
      why("--optimizer soap") ==
      "--optimizer soap has no equivalent, expected adam or sgd or muon or dist_muon or lion"
  );
  CHECK(why("--tokenizer-type GPT2BPETokenizer")
            .starts_with("--tokenizer-type GPT2BPETokenizer needs --vocab-file"));
  CHECK(why("--hidden-size 64", false).starts_with("--num-layers is missing"));
  CHECK(why("--lr fast") == "--lr is \"fast\", expected a number");
  CHECK(why("--lr") == "--lr has no value behind it");
  CHECK(why("--fp16=1") == "--fp16 takes no value, found \"1\"");
  CHECK(why("--fp16 1").starts_with("\"1\" belongs to no argument: --fp16 stands before it"));
  const auto launched = [](const std::string& more) {
    return mh::test::refusal([&] {
      static_cast<void>(mh::import_arguments(
          command_of("torchrun --nproc_per_node 8 pretrain_gpt.py " + kModel + more)
      ));
    });
  };
  CHECK(launched("--global-batch-size 12")
            .starts_with("--global-batch-size 12 is not divisible by --micro-batch-size 2 times 8")
  );
}

} // namespace import_tests
