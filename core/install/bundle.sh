#!/bin/sh
# bundle.sh BUILD TORCH FILE: packs what BUILD holds as an archive (.tar.xz or .tar.gz) for machines without a network that have
# LibTorch or PyTorch of the same version: the program, its plugins, recipes, and the small libraries that both need. The
# program in it is started by bundle_start.sh. Run by "./megahost bundle FILE".
set -eu
build=$1 torch=$(realpath --no-symlinks "$2") file=$3
here=$(dirname "$(readlink -f "$0")")

give_up() {
  echo "megahost: $*" >&2
  exit 1
}

case $(uname -m) in
  x86_64) filter=--x86 ;;  # jumps are packed by where they go: a tenth less
  *) filter= ;;
esac
case $file in
  *.tar.xz) pack="xz $filter --lzma2=preset=9" ;;
  *.tar.gz | *.tgz) pack='gzip -9' ;;
  *) give_up "$file is no name of a bundle: end it in .tar.xz (smallest) or .tar.gz" ;;
esac
command -v "${pack%% *}" > /dev/null || give_up "${pack%% *} is missing: install it, or name a bundle that ends in .tar.gz"
[ -d "$(dirname "$file")" ] || give_up "there is no folder $(dirname "$file")"

work=$(mktemp -d)
trap 'rm -rf "$work" "$file.part"' EXIT
trap 'exit 1' INT TERM
MEGAHOST_TORCH_PREFIX=$torch meson install -C "$build" --no-rebuild --quiet --destdir "$work/installed" > "$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
program=$(find "$work/installed" -path '*/bin/megahost')
about=$("$program" --version | head -n 1)  # megahost 0.1.0 (plugin SDK 1, LibTorch 2.11.0 cu130)
version=$(echo "$about" | sed 's/^megahost \([^ ]*\).*/\1/')
name=megahost-$version
mv "$(dirname "$(dirname "$program")")" "$work/$name"
root=$work/$name

# Tools that build plugins stay behind, and LibTorch is that of the other machine.
lib=$(dirname "$(find "$root" -name libmegahost.so)")
rm -rf "$lib/megahost/libtorch" "$lib/megahost/megahost-unpack" "$lib/pkgconfig" "$root/include"

# objects COMMAND...: runs it for all programs and libraries of ours.
objects() {
  find "$root/bin" "$lib" -type f \( -name '*.so' -o -name megahost \) -exec "$@" {} +
}
objects strip --strip-unneeded
# Storages take what they need of the machine that they run on: libraries of TLS are mended there.
find "$root/bin" "$lib" -type f \( -name '*.so' ! -name 'storage-*' -o -name megahost \) -exec \
  env LD_LIBRARY_PATH="$lib:$torch/lib" ldd {} + | sed -n 's/^\t\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p' | sort -u > "$work/needed"

# Each library that they need, but for LibTorch's and the C library's; those of the compiler lie in folders of their own, for
# machines whose own are older or absent.
mkdir "$root/small"
while read -r library path; do
  case $path in "$root"/* | "$torch"/*) continue ;; esac
  case $library in
    libc.so.* | libm.so.* | libutil.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux*) continue ;;
    libcudart.so.* | libcuda.so.* | libgomp.so.*) continue ;;  # LibTorch opens, or brings, them
    libstdc++.so.* | libgcc_s.so.*) folder=$root/compiler/${library%%.so*} ;;
    *) folder=$root/small ;;
  esac
  mkdir -p "$folder"
  cp --dereference "$path" "$folder/$library"
  strip --strip-unneeded "$folder/$library"
done < "$work/needed"
[ -e "$root/compiler/libstdc++" ] || give_up "ldd finds no libstdc++ of the program: $(cat "$work/needed")"

# bundle_start.sh compares these lines with the machine that it runs on.
{
  echo "torch=$(sed -n 's/^#define TORCH_VERSION_[MP][A-Z]* //p' "$torch/include/torch/headeronly/version.h" | paste -s -d .)"
  echo "libc=$(objects objdump -T | sed -n 's/.*(\{0,1\}GLIBC_\([0-9.]*\).*/\1/p' | sort -uV | tail -n 1)"
  for names in GLIBCXX CXXABI; do
    echo "$(echo $names | tr A-Z a-z)=$(objects objdump -T | sed -n "s/.*\(${names}_[0-9.]*\).*/\1/p" | sort -uV | tail -n 1)"
  done
  echo "cuda=$(echo "$about" | sed -n 's/.* cu\([0-9]*\)[0-9])$/\1/p')"
} > "$root/needs"
cp "$here/bundle_start.sh" "$root/megahost"
chmod 755 "$root/megahost"

tar -C "$work" --owner=0 --group=0 --sort=name --mtime='2000-01-01' -cf "$work/$name.tar" "$name"
$pack -c "$work/$name.tar" > "$file.part"
mv "$file.part" "$file"
echo "$file: $(du -k "$file" | cut -f 1) kB; on the other machine: tar xf $(basename "$file") && $name/megahost doctor" >&2
