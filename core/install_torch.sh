#!/bin/sh
# install_torch.sh PREFIX FOLDER copy|link: LibTorch becomes FOLDER/torch of an installation, run by "meson install".
#
# The clone's own LibTorch is copied with what it came with; where file system and owner allow it, its files are linked,
# which takes no disk. Another LibTorch (-Dtorch_prefix, or MEGAHOST_TORCH_PREFIX now) is named by a symbolic link.
set -eu
prefix=$1 folder=$MESON_INSTALL_DESTDIR_PREFIX/$2 how=$3

give_up() {
  echo "megahost: $*" >&2
  exit 1
}

kind() {
  if [ -e "$1/lib/libc10_cuda.so" ]; then echo CUDA; else echo CPUs; fi
}

if [ -n "${MEGAHOST_TORCH_PREFIX-}" ]; then
  built_for=$prefix how=link
  prefix=$(realpath --no-symlinks "$MEGAHOST_TORCH_PREFIX")
  for file in include/torch/headeronly/version.h lib/libtorch_cpu.so lib/libc10.so; do
    [ -e "$prefix/$file" ] || give_up "MEGAHOST_TORCH_PREFIX $prefix is no folder of LibTorch: it has no $file"
  done
  version=include/torch/headeronly/version.h
  cmp -s "$built_for/$version" "$prefix/$version" ||
    give_up "$prefix holds another version of LibTorch than this megahost was built for: build it with -Dtorch_prefix=$prefix"
  [ "$(kind "$built_for")" = "$(kind "$prefix")" ] ||
    give_up "$prefix is a LibTorch for $(kind "$prefix"), and this megahost was built for one for $(kind "$built_for")"
fi

mkdir -p "$folder"
if [ "$how" = link ]; then
  rm -rf "$folder"
  mkdir "$folder"
  ln -s "$prefix" "$folder/torch"
  exit
fi

# The list of what was installed is copied last: where it is the same, so is all else.
source=$prefix/..
if [ -d "$folder/torch" ] && [ ! -L "$folder/torch" ] && cmp -s "$source/pins" "$folder/pins"; then
  exit
fi
new=$folder.new
rm -rf "$new"
mkdir "$new"
# Files that another user may change are no part of an installation.
linked=
[ ! -O "$source/pins" ] || linked=--link
for item in "$source"/*; do
  [ "${item##*/}" != pins ] || continue
  cp -R --preserve=mode,timestamps,links $linked "$item" "$new" 2> /dev/null ||
    { rm -rf "$new/${item##*/}"; cp -R --preserve=mode,timestamps,links "$item" "$new"; }
done
cp "$source/pins" "$new"
rm -rf "$folder"
mv "$new" "$folder"
