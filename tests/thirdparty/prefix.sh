# Read by tests that take an author's way: installs megahost into a folder of the build tree that they share, and
# moves to a folder of its own, $work.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset MEGAHOST_PLUGIN_PATH MEGAHOST_RECIPE_PATH
export CCACHE_DIR="${CCACHE_DIR:-${HOME:-$work}/.cache/ccache}"
export HOME="$work" XDG_DATA_HOME="$work/data"

prefix="$MEGAHOST_BUILD/tests/prefix"
install_whole() {
  flock "$MEGAHOST_BUILD/tests" meson install -C "$MEGAHOST_BUILD" --no-rebuild --only-changed --quiet --destdir "$prefix"
}
install_whole
if [ "$(find "$prefix" -path '*/bin/megahost' | wc -l)" != 1 ]; then  # meson was told another prefix meanwhile
  flock "$MEGAHOST_BUILD/tests" sh -c 'rm -rf "$0"' "$prefix"
  install_whole
fi
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name megahost.pc)")
PATH=$(dirname "$(find "$prefix" -path '*/bin/megahost')"):$PATH
export PKG_CONFIG_PATH PATH

# Builds the meson project in a folder, -Wall -Wextra without a warning.
build() {
  meson setup --werror "$1/build" "$1" > "$work/setup.log" || { cat "$work/setup.log"; exit 1; }
  ninja -C "$1/build" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
}
cd "$work"
