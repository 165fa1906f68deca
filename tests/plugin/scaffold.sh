#!/bin/sh
# A new plugin of a kind, as its author gets it: written, built against an installed megahost, tested by its own
# tests (a program, `plugins check`, two steps of its recipe), installed, and found by its name.
# usage: scaffold.sh KIND
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
export CXXFLAGS=-g0 # debug information takes a third of a compiler's time
name=my-$1

megahost plugins new "$work/$name" --kind "$1" > new.out
build "$name"
meson test -C "$name/build" --no-rebuild --print-errorlogs > test.out || { cat test.out; exit 1; }
tests=3
case "$1" in architecture | strategy) tests=4 ;; esac # layouts, too
grep -q "^Ok: *$tests" test.out || { echo "$tests tests were expected"; cat test.out; exit 1; }

folder="$XDG_DATA_HOME/megahost/plugins-$(pkg-config --variable=plugin_api megahost)"
mkdir -p "$folder"
cp "$name"/build/*.so "$folder"
megahost plugins show "$name" > show.out
grep -q "org.example.$name 0.1.0" show.out || { echo "it is not found by its name"; cat show.out; exit 1; }

# The start block lists plugins of all kinds.
case "$1" in device | launcher)
  megahost run "$name/$name.lua" --set train.iters=1 --run-dir one > one.out 2>&1
  grep -q "^  plugins .* org.example.$name 0.1.0" one.out || { echo "the start block lacks it"; cat one.out; exit 1; }
esac
if [ "$1" = device ]; then
  megahost run "$name/$name.lua" --set train.iters=1 --set device.peak=2e11 --run-dir two > two.out 2>&1
  grep -q "^  device .*peak 0.2 TFLOP/s (as its plugin says)" two.out || { echo "the peak is not its own"; cat two.out; exit 1; }
fi

# A checkpoint format is listed, saves and resumes a run on ranks of another number, and is known by its folder.
if [ "$1" = checkpoint_format ]; then
  recipe="$name/$name.lua"
  has() {
    grep -q -- "$2" "$1" || { echo "$1 lacks: $2"; cat "$1"; exit 1; }
  }
  megahost plugins > list.out
  has list.out "checkpoint_format *$name"
  megahost run "$recipe" --nproc 2 --set parallel.zero=1 --run-dir saved > run.out 2>&1
  test -f "saved/$name/20/index" || { echo "nothing was saved"; cat run.out; exit 1; }
  test ! -e saved/checkpoints || { echo "it was saved in another format, too"; exit 1; }
  megahost run "$recipe" --run-dir whole --set train.iters=30 > whole.out 2>&1
  megahost run "$recipe" --run-dir saved --resume --set train.iters=30 > resume.out 2>&1
  has resume.out "resumed at step 20"
  megahost eval "$recipe" --weights saved > eval.out 2>&1
  has eval.out "weights: saved, step 30"
  megahost eval "$recipe" --weights saved --weights-format "$name" > named.out 2>&1
  has named.out "weights: saved, step 30"
  head -n 1 eval.out > a; head -n 1 named.out > b; cmp a b
  if megahost eval "$recipe" --weights saved --weights-format huggingface > other.out 2>&1; then
    echo "another format took it"; exit 1
  fi
  has other.out "saved is not a Hugging Face folder (no model.safetensors)"
  mkdir empty
  if megahost eval "$recipe" --weights empty > empty.out 2>&1; then
    echo "an empty folder was taken"; exit 1
  fi
  has empty.out "empty is neither a run folder (no checkpoints/), a Hugging Face folder (no model.safetensors), a folder of torch.distributed.checkpoint (no .metadata), a folder with a file of torch.save (no pytorch_model.bin), a torch_dist checkpoint of Megatron-LM (no metadata.json), a Megatron-LM checkpoint of a file for each rank (no mp_rank_00/model_optim_rng.pt), a NeuronX Distributed checkpoint (no model/dp_rank_00_tp_rank_00_pp_rank_00.pt) nor a $name folder (no $name/)"
  megahost status saved > status.out
  has status.out "checkpoint *step 30"
  XDG_DATA_HOME="$work/none" megahost status saved > unread.out
  has unread.out "checkpoint *$name is a format that no plugin here reads"
  if megahost checkpoint gc saved > gc.out 2>&1; then
    echo "gc took it for one of its own"; exit 1
  fi
  has gc.out "saved holds checkpoints of the format $name, which gc does not know"
  megahost run "$recipe" --set checkpoint.use=native --run-dir both > both.out 2>&1
  cp -r "saved/$name" both/
  if megahost eval "$recipe" --weights both > ambiguous.out 2>&1; then
    echo "an ambiguous folder was taken"; exit 1
  fi
  has ambiguous.out "both could be read in several formats: native, $name"
  has ambiguous.out "--weights-format NAME says which"
  megahost eval "$recipe" --weights both --weights-format native > native.out 2>&1
  has native.out "weights: both, step 20"
fi

# A strategy is known to everything that reads recipes, and is missed where its rules are not in force.
if [ "$1" = strategy ]; then
  recipe="$name/$name.lua"
  has() {
    grep -q -- "$2" "$1" || { echo "$1 lacks: $2"; cat "$1"; exit 1; }
  }
  megahost recipe explain "$recipe" parallel.my_strategy > explain.out
  has explain.out "^parallel.my_strategy = 1"
  megahost recipe schema > schema.out
  has schema.out '"my_strategy_vocab"'
  megahost recipe stubs -o stubs 2> stubs.out
  has stubs/megahost.gen.lua "---@field my_strategy? integer"
  megahost mesh "$recipe" --set parallel.my_strategy=2 > mesh.out
  has mesh.out "^tp (my_strategy): 1 group of 2"
  megahost plan "$recipe" --on h100 --set parallel.my_strategy=2 > plan.out || cat plan.out
  has plan.out "my_strategy 2"
  megahost plan "$recipe" --on h100 --gpus 2 --search --json > search.out
  has search.out '"parallel.my_strategy='
  megahost run "$recipe" --nproc 2 --set train.iters=1 --set parallel.my_strategy=2 --run-dir two > run.out 2>&1
  has run.out "layout     2 ranks, my_strategy 2"
  megahost run "$recipe" --set 'parallel.strategies=["my-strategy"]' --set train.iters=1 --run-dir one > one.out 2>&1
  has one.out "org.example.my-strategy 0.1.0"
  if megahost run "$recipe" --nproc 2 --set parallel.my_strategy=2 --set parallel.tensor=2 > both.out 2>&1; then
    echo "two degrees of one axis were taken"; exit 1
  fi
  has both.out "are both above 1"
  if megahost recipe check "$recipe" --set model.ffn_hidden=33 --set parallel.my_strategy=2 > divides.out 2>&1; then
    echo "its condition was not asked"; exit 1
  fi
  has divides.out "model.ffn_hidden 33 is not divisible by parallel.my_strategy 2"

  echo broken > "$folder/parallel-broken.so"
  megahost recipe check "$recipe" > broken.out 2>&1
  has broken.out "parallel-broken.so is left out"
  has broken.out "is a valid recipe"

  rm "$folder"/*.so
  sed -i 's/rules.features.push_back.*/static_cast<void>(rules);/' "$name/$name.cpp"
  ninja -C "$name/build" > rebuild.out || { cat rebuild.out; exit 1; }
  if meson test -C "$name/build" --no-rebuild layouts > without.out; then
    echo "its test passes without its rules"; exit 1
  fi
fi
