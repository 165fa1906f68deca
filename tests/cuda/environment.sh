#!/bin/sh
# environment.sh FOLDER [--check]: LibTorch with its CUDA half in FOLDER/torch/lib, without NVIDIA's libraries: suite cuda
# runs on stand-ins for them. The libraries that the program was built with are linked to; the CUDA
# half, which ./megahost deletes where
# there is no GPU, comes from the Python environment of suite parity, or else from the package index (530 MB). Headers of
# CUDA that the program does not need are in FOLDER/nvidia/cu13/include.
# --check only says by its exit code whether all is there. "pins" is written last, so that a start after a kill begins again.
set -eu

folder=$1
torch='torch==2.11.0'
crt='nvidia-cuda-crt==13.0.88'  # headers that those of the CUDA runtime include
half='libtorch_cuda.so libtorch_cuda_linalg.so libtorch_nvshmem.so'
own=$(dirname "$folder")/python/torch/lib
parity=$(dirname "$folder")/parity-env

[ "$(cat "$folder/pins" 2> /dev/null)" != "$torch $crt" ] || exit 0
[ "${2-}" != --check ] || exit 1

rm -rf "$folder"
mkdir -p "$folder/torch/lib" "$folder/tmp"
export TMPDIR="$folder/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1
python3 -m pip install --quiet --no-deps --no-cache-dir --only-binary :all: --target "$folder" "$crt"
for library in "$own"/*.so*; do
  ln -s "$(readlink -f "$library")" "$folder/torch/lib/"
done
found=$(find "$parity" -path '*/torch/lib/libtorch_cuda.so' 2> /dev/null || :)
if [ -e "$folder/torch/lib/libtorch_cuda.so" ]; then
  exit_note='the CUDA half is the program'"'"'s own'
elif [ -n "$found" ] && grep -q "$torch" "$parity/pins" 2> /dev/null; then
  for library in $half; do
    ln "$(dirname "$found")/$library" "$folder/torch/lib/" 2> /dev/null || cp "$(dirname "$found")/$library" "$folder/torch/lib/"
  done
  exit_note='the CUDA half is that of suite parity'
else
  python3 -m pip download --no-deps --no-cache-dir --only-binary :all: -d "$folder/tmp" "$torch"
  python3 - "$folder" $half << 'END'
import pathlib, shutil, sys, zipfile
folder = pathlib.Path(sys.argv[1])
wheel = zipfile.ZipFile(next((folder / "tmp").glob("torch-*.whl")))
for name in sys.argv[2:]:
    with wheel.open(f"torch/lib/{name}") as packed, open(folder / "torch/lib" / name, "wb") as plain:
        shutil.copyfileobj(packed, plain)
END
  exit_note='the CUDA half was downloaded'
fi
rm -rf "$folder/tmp"
echo "$exit_note"
printf '%s\n' "$torch $crt" > "$folder/pins"
