#!/bin/sh
# `./megahost bundle FILE`: at most 8 MB (24 with libarrow), nothing in it names the clone, and it trains where the clone cannot be seen, with a
# LibTorch that it finds by itself; where that is missing or another, it says what to do.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
  echo "$1"
  [ ! -e out ] || cat out
  exit 1
}
make() {
  "$MEGAHOST_SOURCE/core/install/bundle.sh" "$MEGAHOST_BUILD" "$MEGAHOST_SOURCE/.deps/python/torch" "$@" > out 2>&1
}

! make bundle.zip || fail "a bundle was named .zip"
grep -q 'bundle.zip is no name of a bundle: end it in .tar.xz (smallest) or .tar.gz' out || fail "it is not said why"
mkdir few
for tool in realpath dirname readlink uname; do
  ln -s "$(command -v $tool)" few/
done
! PATH=$PWD/few /bin/sh "$MEGAHOST_SOURCE/core/install/bundle.sh" build torch bundle.tar.xz > out 2>&1 || fail "xz was not missed"
grep -q 'xz is missing: install it, or name a bundle that ends in .tar.gz' out || fail "it is not said what is missing"
! make no/folder.tar.xz || fail "a bundle was made in no folder"
grep -q 'there is no folder no' out || fail "it is not said why"
! /bin/sh "$MEGAHOST_SOURCE/core/install/image.sh" build python image.oci > out 2>&1 || fail "an image was named .oci"
grep -q 'image.oci is no name of an image: end it in .tar, such as megahost-image.tar' out || fail "it is not said how images are named"

make bundle.tar.xz || fail "no bundle"
most=8000000
[ ! -d "$MEGAHOST_SOURCE/.deps/arrow" ] || most=24000000  # with libarrow, where ./megahost arrow has fetched it
[ "$(stat -c %s bundle.tar.xz)" -le $most ] || fail "the bundle has $(stat -c %s bundle.tar.xz) bytes"
tar xf bundle.tar.xz
mv megahost-* other
for clone in "$MEGAHOST_SOURCE" "$(readlink -f "$MEGAHOST_SOURCE")" "$MEGAHOST_BUILD" "$(readlink -f "$MEGAHOST_SOURCE/.deps")"; do
  ! grep -rlF "$clone" other > out || fail "the bundle names $clone"
done

# LibTorch as pip would have installed it: links to files where the file system allows it.
packages=$work/venv/lib/python3.12/site-packages
mkdir -p "$packages" "$work/home"
cp -RPl "$(readlink -f "$MEGAHOST_SOURCE/.deps/python")/." "$packages" 2> /dev/null ||
  cp -RP "$(readlink -f "$MEGAHOST_SOURCE/.deps/python")/." "$packages"
start() {
  env -i HOME="$work/home" PATH="$PATH" TERM=dumb "$@" > out 2>&1
}
says() {
  grep -qF -- "$1" out || fail "this is missing: $1"
}

start VIRTUAL_ENV="$work/venv" other/megahost --version || fail "it does not start"
says 'LibTorch 2.11.0'
for names in glibcxx cxxabi; do # an old C++ library of the machine's, which has one of the two
  mkdir old-$names
  sed -n "s/^$names=//p" other/needs > old-$names/libstdc++.so.6
  start VIRTUAL_ENV="$work/venv" LD_LIBRARY_PATH="$work/old-$names" other/megahost --version ||
    fail "it takes a libstdc++ that has only the machine's $(cat old-$names/libstdc++.so.6)"
done
hide=
if unshare --user --map-root-user --mount true 2> /dev/null; then
  hide='unshare --user --map-root-user --mount'
fi
cat > hidden.sh <<'SH'
set -eu
if [ "$1" = hide ]; then
  mount -t tmpfs none "$2"
  mount -t tmpfs none "$3"
fi
cd "$4"
other/megahost run quickstart --set train.iters=2 --set model.layers=1 --run-dir runs/quickstart
other/megahost plugins
SH
start VIRTUAL_ENV="$work/venv" $hide sh hidden.sh "${hide:+hide}" "$(readlink -f "$MEGAHOST_SOURCE/.deps")" "$MEGAHOST_SOURCE" "$work" ||
  fail "it does not train"
says '2/2 | lm loss'
says 'data-hf.so'
! grep -q skipped out || fail "plugins of the bundle are skipped"

# A folder that is named, one that is none, one of another version.
start MEGAHOST_TORCH="$packages/torch" other/megahost --version || fail "a folder that is named is not taken"
mkdir empty
! start MEGAHOST_TORCH="$work/empty" other/megahost --version || fail "an empty folder was taken"
says "MEGAHOST_TORCH $work/empty holds no LibTorch 2.11.0"
rm "$packages/torch/include/torch/headeronly/version.h"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n' \
  > "$packages/torch/include/torch/headeronly/version.h"
! start VIRTUAL_ENV="$work/venv" other/megahost --version || fail "another version was taken"
says 'no LibTorch 2.11.0 on this machine'
says "2.9.1 in $packages/torch"
says 'pip install torch==2.11.0'

# A machine with an older C library.
sed -i 's/^libc=.*/libc=9.1/' other/needs
! start MEGAHOST_TORCH="$packages/torch" other/megahost --version || fail "an older C library was taken"
says 'and this program needs 9.1'
