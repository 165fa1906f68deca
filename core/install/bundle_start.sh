#!/bin/sh
# megahost, as "./megahost bundle" packed it: runs with the LibTorch or PyTorch that this machine has. It is looked for in
# MEGAHOST_TORCH, the active environment, the usual folders, and where python3 finds it.
set -eu
root=$(dirname "$(readlink -f "$0")")
. "$root/needs"  # torch=VERSION, libc=VERSION, glibcxx=NAME, cxxabi=NAME, cuda=MAJOR

give_up() {
  echo "megahost: $*" >&2
  exit 1
}

[ "$(uname -sm)" = 'Linux x86_64' ] || give_up "this program is for Linux on x86_64, and this machine is $(uname -sm)."
[ -e /lib64/ld-linux-x86-64.so.2 ] || give_up 'this machine has no glibc (Alpine?): take a container of Debian, Ubuntu or RHEL.'
libc_here=$(getconf GNU_LIBC_VERSION 2> /dev/null | sed 's/.* //')
[ -z "$libc_here" ] || [ "$(printf '%s\n' "$libc" "$libc_here" | sort -V | head -n 1)" = "$libc" ] ||
  give_up "glibc here is $libc_here, and this program needs $libc: take Debian 12, Ubuntu 22.04, RHEL 9 or newer."

# version FOLDER: of the LibTorch in it; nothing if there is none.
version() {
  [ -e "$1/lib/libtorch_cpu.so" ] || return 0
  sed -n 's/^#define TORCH_VERSION_[MP][A-Z]* //p' "$1/include/torch/headeronly/version.h" 2> /dev/null | paste -s -d .
}

found=
others=
# try FOLDER...: the first LibTorch of the right version becomes `found`.
try() {
  for folder in "$@"; do
    [ -z "$found" ] || return 0
    is=$(version "$folder")
    case $is in
      "$torch") found=$folder ;;
      '') ;;
      *) others="$others $is in $folder," ;;
    esac
  done
}

if [ -n "${MEGAHOST_TORCH-}" ]; then
  try "$MEGAHOST_TORCH" "$MEGAHOST_TORCH/torch"
  [ -n "$found" ] || give_up "MEGAHOST_TORCH $MEGAHOST_TORCH holds no LibTorch $torch:${others:- no LibTorch,} name the folder 'torch' \
of site-packages or an unpacked libtorch."
else
  try "$root"/../torch "$root"/../libtorch
  for prefix in ${VIRTUAL_ENV-} ${CONDA_PREFIX-} "${HOME-/root}/.local" /usr/local /usr /opt/conda /opt/venv; do
    try "$prefix"/lib/python3*/site-packages/torch "$prefix"/lib/python3*/dist-packages/torch "$prefix"/lib/python3/dist-packages/torch
  done
  try /opt/libtorch /usr/local/libtorch "${HOME-/root}/libtorch"
  [ -n "$found" ] || ! command -v python3 > /dev/null ||
    try "$(cd / && python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2> /dev/null || :)"
  [ -n "$found" ] ||
    give_up "no LibTorch $torch on this machine${others:+ (but$others which is another version)}. Have 'pip install torch==$torch' run, or \
name its folder: MEGAHOST_TORCH=/path/to/site-packages/torch."
fi

# Its kernels for GPUs are made for one major version of CUDA.
built=$(sed -n "s/^cuda.*'\([0-9]*\)\..*/\1/p" "$found/version.py" 2> /dev/null || :)
[ ! -e "$found/lib/libtorch_cuda.so" ] || [ "${built:-$cuda}" = "$cuda" ] ||
  echo "megahost: $found is for CUDA $built; kernels for GPUs of this bundle need CUDA $cuda, and slower ones take their place." >&2

# has LIBRARY [TEXT]: whether the loader finds it here, and it holds TEXT.
has() {
  for folder in $(echo "${LD_LIBRARY_PATH-}" | tr : ' ') /lib/x86_64-linux-gnu /usr/lib/x86_64-linux-gnu /lib64 /usr/lib64; do
    [ ! -e "$folder/$1" ] || { grep -qaF "${2-}" "$folder/$1" && return 0 || return 1; }
  done
  return 1
}

path=$root/small:$found/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
{ has libstdc++.so.6 "$glibcxx" && has libstdc++.so.6 "$cxxabi"; } || path=$root/compiler/libstdc++:$path
has libgcc_s.so.1 || path=$path:$root/compiler/libgcc_s
export LD_LIBRARY_PATH="$path" MEGAHOST_LAUNCHER="$0"
exec "$root/bin/megahost" "$@"
