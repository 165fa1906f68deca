#!/bin/sh
# An installation needs nothing of the clone that it came from: nothing in it names the clone, and a copy elsewhere runs,
# trains, finds its own files and builds plugins where the clone cannot be seen.
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
fail() {
  echo "$1"
  [ ! -e "$work/out" ] || cat "$work/out"
  exit 1
}

# LibTorch's files are links to those of .deps, or copies; as are those of the copy.
root=$(dirname "$(dirname "$(find "$prefix" -path '*/bin/megahost')")")
cp -RPl "$root" "$work/moved" 2> /dev/null || { rm -rf "$work/moved"; cp -RP "$root" "$work/moved"; }
moved=$work/moved
torch=$(find "$moved" -path '*/libtorch/torch' -type d)
[ -e "$torch/lib/libtorch_cpu.so" ] && [ -d "$torch/include/ATen" ] || fail "LibTorch is not in the installation"

for clone in "$MEGAHOST_SOURCE" "$(readlink -f "$MEGAHOST_SOURCE")" "$MEGAHOST_BUILD" "$(readlink -f "$MEGAHOST_SOURCE/.deps")"; do
  ! grep -rlF "$clone" "$moved" > "$work/out" || fail "the installation names $clone"
  ! find "$moved" -type l -lname "$clone*" | grep . > "$work/out" || fail "links of the installation lead to $clone"
done
rm "$work/out"
find "$moved" -type f \( -name '*.so' -o -path '*/bin/*' \) -not -path '*/libtorch/*' > "$work/objects"
[ "$(wc -l < "$work/objects")" -gt 20 ] || fail "only $(wc -l < "$work/objects") programs and libraries are installed"
while read -r object; do
  readelf -d "$object" > "$work/out"
  if grep -E 'R(UN)?PATH' "$work/out" | grep -vqE '\[(\$ORIGIN[^:]*:?)+\]'; then
    fail "the run path of $object leaves the installation"
  fi
done < "$work/objects"

# The clone is hidden from the rest if this machine allows it.
hide=
if unshare --user --map-root-user --mount true 2> /dev/null; then
  hide='unshare --user --map-root-user --mount'
fi
cat > hidden.sh <<'SH'
set -eu
if [ "$1" = hide ]; then
  mount -t tmpfs none "$2"
  mount -t tmpfs none "$MEGAHOST_SOURCE"
fi
cd "$3"
run() {
  megahost "$@" > out 2>&1 || { echo "megahost $* ended with status $?"; cat out; exit 1; }
}
has() {
  grep -q -- "$1" out || { echo "this is missing: $1"; cat out; exit 1; }
}
run --version
run plugins
has models-llama.so
! grep -q skipped out || { echo "installed plugins are skipped"; cat out; exit 1; }
run presets
has llama3-8b
run help plugins
has MEGAHOST_PLUGIN_PATH
run docs -o pages
grep -q MH_PLUGIN pages/sdk/plugin.md || { echo "the pages of the headers are missing"; exit 1; }
run recipe check quickstart
run run quickstart --set train.iters=2 --set model.layers=1 --run-dir runs/quickstart
has 'step *2/2'

# A plugin of one's own, built through pkg-config against it, and installed.
run plugins new tiger --kind optimizer
has "PKG_CONFIG_PATH=$3/moved/"
PKG_CONFIG_PATH=$(sed -n 's/^ *export PKG_CONFIG_PATH=//p' out)
export PKG_CONFIG_PATH
pkg-config --cflags --libs megahost > out
has "-I$3/moved/"
[ "$(pkg-config --variable=program megahost | xargs readlink -f)" = "$3/moved/bin/megahost" ] || { echo "another program"; exit 1; }
run plugins install tiger
run run tiger/tiger.lua --set 'plugins=[]' --set train.iters=1 --run-dir runs/tiger
has 'org.example.tiger 0.1.0'
SH
mkdir "$work/tmp"
env -u MEGAHOST_FIXTURES -u LD_LIBRARY_PATH TMPDIR="$work/tmp" PATH="$moved/bin:$PATH" PKG_CONFIG_PATH= \
  $hide sh hidden.sh "${hide:+hide}" "$(readlink -f "$MEGAHOST_SOURCE/.deps")" "$work" || exit 1

# A LibTorch that lies elsewhere, named when megahost is installed: linked to, if it is the right one.
mkdir right wrong
ln -s "$torch/include" "$torch/lib" right
install_with() {
  MEGAHOST_TORCH_PREFIX="$1" MESON_INSTALL_DESTDIR_PREFIX="$work/named" "$MEGAHOST_SOURCE/core/install_torch.sh" \
    "$MEGAHOST_SOURCE/.deps/python/torch" lib/megahost/libtorch copy > out 2>&1
}
install_with right || fail "a LibTorch that is named is not taken"
[ "$(readlink named/lib/megahost/libtorch/torch)" = "$work/right" ] || fail "it is not linked to"
! install_with wrong || fail "a folder without LibTorch was taken"
grep -q 'wrong is no folder of LibTorch: it has no include/torch/headeronly/version.h' out || fail "it is not said why"
mkdir -p wrong/include/torch/headeronly wrong/lib
sed 's/TORCH_VERSION_PATCH [0-9]*/TORCH_VERSION_PATCH 99/' right/include/torch/headeronly/version.h > wrong/include/torch/headeronly/version.h
touch wrong/lib/libtorch_cpu.so wrong/lib/libc10.so
! install_with wrong || fail "another version of LibTorch was taken"
grep -q 'wrong holds another version of LibTorch' out || fail "it is not said why"
cp right/include/torch/headeronly/version.h wrong/include/torch/headeronly/
! install_with wrong || fail "a LibTorch for other devices was taken"
grep -q 'wrong is a LibTorch for CPUs, and this megahost was built for one for CUDA' out || fail "it is not said why"
[ "$(readlink named/lib/megahost/libtorch/torch)" = "$work/right" ] || fail "a refusal has changed the installation"
