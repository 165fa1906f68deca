#!/bin/sh
# bare.sh SOURCE: both commands of the README in a Debian 12 that holds nothing else: debootstrap's minbase with a copy of
# SOURCE. /sys is not mounted there. This machine's way to its package archives goes along: the
# configuration of apt and pip, certificates, and variables that name proxies. Takes an hour, 15 GB of disk, and root.
set -eu

skip() {
  echo "skipped: $*"
  exit 77
}

source=$(readlink -f "$1")
[ "$(id -u)" = 0 ] || skip 'only root may make a root folder with devices in it'
command -v debootstrap > /dev/null || skip 'debootstrap is missing: ./megahost test slow installs it'
unshare --mount --pid --fork true 2> /dev/null || skip 'this machine allows no namespaces (unshare)'
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' |
  head -n 1)
[ -n "$archive" ] || skip "apt of this machine knows no archive of Debian 12 (bookworm)"

root=$(mktemp -d -p "${TMPDIR:-/var/tmp}" megahost-bare.XXXXXX)
chmod 755 "$root"  # users of packages look through it
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 1' INT TERM
[ "$(df --output=avail -k "$root" | tail -n 1)" -gt 15000000 ] || skip "$root has less than 15 GB of disk"

# Copies files into the root, under their own names, where they are there.
take_along() {
  for file in "$@"; do
    [ ! -e "$file" ] || (cd / && cp -a --dereference --parents "$file" "$root")
  done
}

eval "$(apt-config shell proxy Acquire::http::Proxy)"
http_proxy=${http_proxy-${proxy-}} debootstrap --variant=minbase bookworm "$root" "$archive" > "$root.log" ||
  { tail -n 20 "$root.log"; exit 1; }
rm -f "$root.log" "$root/etc/apt/sources.list"
take_along /etc/apt /usr/share/keyrings /etc/resolv.conf /etc/hosts /etc/pip.conf /usr/local/share/ca-certificates \
  /etc/ssl/certs/ca-certificates.crt ${PIP_FIND_LINKS-}
for file in "${HOME:-/root}/.config/pip/pip.conf" "${HOME:-/root}/.pip/pip.conf"; do
  [ ! -e "$file" ] || cp "$file" "$root/etc/pip.conf"
done
mkdir -p "$root/root/megahost"
tar -C "$source" --exclude ./build --exclude ./.deps --exclude ./runs --exclude ./.git -c . | tar -C "$root/root/megahost" -x

# bare COMMAND: in the copy of the source, with nothing of this environment but the way to the archives.
bare() {
  env | grep -E '^(PIP_|SSL_CERT_|REQUESTS_CA_BUNDLE|[a-z]+_proxy|[A-Z]+_PROXY)[A-Z_]*=' > "$root/root/environment" || :
  set -- "$1" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
  while IFS= read -r variable; do
    set -- "$@" "$variable"
  done < "$root/root/environment"
  command=$1
  shift
  # The mounts end with the processes: they are in namespaces of their own.
  unshare --mount --pid --fork --kill-child --mount-proc="$root/proc" \
    sh -c 'mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts" && ln -sf pts/ptmx "$0/dev/ptmx" && exec chroot "$0" "$@"' \
    "$root" env -i "$@" sh -c "cd /root/megahost && exec $command"
}

commands=$(sed -n '/^```sh$/,/^```$/s/^\(\.\/megahost [^#]*[^# ]\) *\(#.*\)\{0,1\}$/\1/p' "$source/README.md" | head -n 2)
[ "$(echo "$commands" | wc -l)" = 2 ] || { echo "README.md does not show two commands: $commands"; exit 1; }
echo "$commands" | while IFS= read -r command; do
  began=$(date +%s)
  echo "\$ $command"
  bare "$command" < /dev/null
  echo "[$(($(date +%s) - began)) s]"
done
