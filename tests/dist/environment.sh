#!/bin/sh
# environment.sh FOLDER PARITY [--check]: a Python environment with HyperPod's agent (hyperpodrun) and AWS's model of its jobs in
# FOLDER, with the torch and pydantic of suite parity's environment PARITY; --check only says by its exit code whether it is
# there. "pins" is written last, so that a start after a kill begins again.
set -eu

folder=$1 parity=$2
wheels='hyperpod-elastic-agent==1.1.3 sagemaker-hyperpod==3.12.0 fastapi==0.121.0 starlette==0.49.3 uvicorn==0.38.0 h11==0.16.0
  click==8.5.1 annotated-doc==0.0.7'

if [ "$(cat "$folder/pins" 2> /dev/null)" = "$parity $wheels" ] && "$folder/bin/python" -c '' 2> /dev/null; then
  exit 0
fi
[ "${3-}" != --check ] || exit 1

rm -rf "$folder"
mkdir -p "$folder/tmp"
export TMPDIR="$folder/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m venv --without-pip "$folder"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m pip install --quiet --no-cache-dir --no-compile --only-binary :all: --no-binary hyperpod-elastic-agent --no-deps --target "$packages" $wheels
"$parity/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/parity.pth"
# pip wrote the program for the Python that it runs in itself.
printf '#!%s/bin/python\nfrom hyperpod_elastic_agent.run import main\nmain()\n' "$folder" > "$folder/bin/hyperpodrun"
chmod +x "$folder/bin/hyperpodrun"
"$folder/bin/python" -c 'import hyperpod_elastic_agent.run, yaml'
rm -rf "$folder/tmp"
printf '%s\n' "$parity $wheels" > "$folder/pins"
