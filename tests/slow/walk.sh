#!/bin/sh
# walk.sh SOURCE: recipes/data with the vocabulary of a real model, 65,000 ids, from texts to the loss of each source.
set -eu
root=$1
tokenizer=$root/.deps/vocabularies/anthropic/tokenizer.json
[ -e "$tokenizer" ] || { echo "no $tokenizer: tests/slow/vocabularies.sh fetches it"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cp "$root/recipes/data/walk.lua" .
set -- --set tokenizer.use=hf --set "tokenizer.path=$tokenizer"
for part in code prose; do
  python3 "$root/recipes/data/texts.py" $part | zstd -q > $part.jsonl.zst
  "$MEGAHOST" data prepare $part.jsonl.zst --output corpora/$part --recipe walk.lua "$@"
done
"$MEGAHOST" run walk.lua "$@" > said
"$MEGAHOST" eval walk.lua --weights runs/walk "$@" | tee measured
# A model that has learned nothing has a loss of about ln 65000 = 11.1.
awk '/^lm loss\/(code|prose) / { sources += $3 > 1 && $3 < 8 } END { exit sources != 2 }' measured
