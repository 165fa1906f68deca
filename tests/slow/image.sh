#!/bin/sh
# image.sh SOURCE BUILD: the image of `./megahost image` is one to the tools that others have (skopeo, umoci), is the same when it
# is made again, holds no compiler and no Python, and trains without a network. Takes five minutes, 4 GB of disk, and root.
set -eu

skip() {
  echo "skipped: $*"
  exit 77
}

source=$(readlink -f "$1") build=$2
[ "$(id -u)" = 0 ] || skip 'only root may start it without a container engine'
for tool in mmdebstrap skopeo umoci; do
  command -v $tool > /dev/null || skip "$tool is missing: ./megahost test slow installs it"
done
unshare --mount --pid --net --fork true 2> /dev/null || skip 'this machine allows no namespaces (unshare)'
[ ! -e "$source/.deps/python/torch/lib/libtorch_cuda.so" ] || skip 'this clone has the LibTorch of a GPU'

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}" megahost-image.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"
"$source/core/install/image.sh" "$build" "$source/.deps/python" image.tar
hash=$(sha256sum < image.tar)
"$source/core/install/image.sh" "$build" "$source/.deps/python" image.tar
[ "$hash" = "$(sha256sum < image.tar)" ] || { echo 'a second image differs'; exit 1; }

skopeo inspect oci-archive:image.tar
[ "$(skopeo inspect --format '{{len .Layers}} {{.Os}} {{.Architecture}}' oci-archive:image.tar)" = '3 linux amd64' ]
skopeo copy --quiet oci-archive:image.tar oci:layout:megahost  # compares every hash
umoci unpack --image layout:megahost bundle
root=$work/bundle/rootfs
for tool in gcc cc c++ python3 perl5; do
  [ ! -e "$root/usr/bin/$tool" ] || { echo "the image has $tool"; exit 1; }
done
there() {
  unshare --mount --pid --net --fork --kill-child --mount-proc="$root/proc" \
    chroot "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root sh -euc "cd /root; $1"
}
there 'megahost run quickstart --set train.iters=3 --set model.layers=1'
there 'megahost doctor' > doctor.txt || { cat doctor.txt; exit 1; }
cat doctor.txt
! grep -q 'skipped' doctor.txt || { echo 'the image lacks what a plugin needs'; exit 1; }
