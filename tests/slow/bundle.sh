#!/bin/sh
# bundle.sh SOURCE BUILD: a bundle in another distribution, debootstrap's minbase of Debian 13, in which nothing was installed but
# LibTorch's wheel: it trains, and says what is missing where that is gone. Takes five minutes, 4 GB of disk, and root.
set -eu

skip() {
  echo "skipped: $*"
  exit 77
}

source=$(readlink -f "$1") build=$2
[ "$(id -u)" = 0 ] || skip 'only root may make a root folder with devices in it'
command -v debootstrap > /dev/null || skip 'debootstrap is missing: ./megahost test slow installs it'
unshare --mount --pid --fork true 2> /dev/null || skip 'this machine allows no namespaces (unshare)'
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' |
  head -n 1)
[ -n "$archive" ] || skip "apt of this machine knows no archive of Debian"

root=$(mktemp -d -p "${TMPDIR:-/var/tmp}" megahost-bundle.XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 1' INT TERM
eval "$(apt-config shell proxy Acquire::http::Proxy)"
http_proxy=${http_proxy-${proxy-}} debootstrap --variant=minbase --include=xz-utils trixie "$root" "$archive" > "$root.log" ||
  { tail -n 20 "$root.log"; exit 1; }
rm -f "$root.log"
packages=usr/local/lib/python3.13/dist-packages
mkdir -p "$root/$packages"
cp -al "$(readlink -f "$source/.deps/python")/." "$root/$packages" 2> /dev/null ||
  cp -a "$(readlink -f "$source/.deps/python")/." "$root/$packages"
"$source/core/install/bundle.sh" "$build" "$source/.deps/python/torch" "$root/root/megahost.tar.xz"
there() {
  unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
    chroot "$root" env -i PATH=/usr/bin:/bin HOME=/root sh -euc "cd /root; $1"
}
there 'tar xf megahost.tar.xz; megahost-*/megahost run quickstart --set train.iters=3 --set model.layers=1'
there 'megahost-*/megahost doctor'
rm -rf "$root/$packages"
if said=$(there 'megahost-*/megahost --version' 2>&1); then
  echo "it starts without LibTorch: $said"
  exit 1
fi
echo "$said" | grep -q "no LibTorch 2.11.0 on this machine. Have 'pip install torch==2.11.0' run" || { echo "$said"; exit 1; }
