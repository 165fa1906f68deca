#!/bin/sh
# environment.sh FOLDER [--check]: XLA's CPU plugin (PJRT) as FOLDER/xla_cpu.so, which suite program runs programs on: a
# wheel of 63 MB that holds one library of 202 MB, pinned by its hash.
# --check only says by its exit code whether it is there. "pins" is written last, so that a start after a kill begins again.
set -eu

folder=$1
plugin='lammps-jax-pjrt-cpu==0.11.2'
hash='sha256:1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1'

[ "$(cat "$folder/pins" 2> /dev/null)" != "$plugin $hash" ] || exit 0
[ "${2-}" != --check ] || exit 1

rm -rf "$folder"
mkdir -p "$folder/tmp"
export TMPDIR="$folder/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1
echo "$plugin --hash=$hash" > "$folder/tmp/requirements"
python3 -m pip install --quiet --no-deps --no-cache-dir --no-compile --only-binary :all: --require-hashes \
  --target "$folder/tmp/wheel" -r "$folder/tmp/requirements"
mv "$folder/tmp/wheel/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so" "$folder/xla_cpu.so"
cp "$folder"/tmp/wheel/*.dist-info/licenses/* "$folder"
rm -rf "$folder/tmp"
printf '%s\n' "$plugin $hash" > "$folder/pins"
