# Read by tests that take an author's way: installs megahost into a folder of the build tree that they share, and
# moves to a folder of its own, $work. Where $WARM names the server and the client of tests/warm, the script begins again
# with starts of the installed program that find LibTorch loaded.
set -eu
unset MEGAHOST_PLUGIN_PATH MEGAHOST_RECIPE_PATH
prefix="$MEGAHOST_BUILD/tests/prefix"
install_whole() {
  flock "$MEGAHOST_BUILD/tests" meson install -C "$MEGAHOST_BUILD" --no-rebuild --only-changed --quiet --destdir "$prefix"
}
if [ -z "${MEGAHOST_WARM:-}" ]; then
  install_whole
  if [ "$(find "$prefix" -path '*/bin/megahost' | wc -l)" != 1 ]; then  # meson was told another prefix meanwhile
    flock "$MEGAHOST_BUILD/tests" sh -c 'rm -rf "$0"' "$prefix"
    install_whole
  fi
  MEGAHOST=$(find "$prefix" -path '*/bin/megahost')
  PATH=$(dirname "$MEGAHOST"):$PATH
  PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name megahost.pc)")
  export MEGAHOST PATH PKG_CONFIG_PATH
  if [ -n "${WARM:-}" ]; then
    # shellcheck disable=SC2086
    exec python3 "$MEGAHOST_SOURCE/tests/warm/warm.py" $WARM sh "$0" "$@"
  fi
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DIR="${CCACHE_DIR:-${HOME:-$work}/.cache/ccache}"
export HOME="$work" XDG_DATA_HOME="$work/data"

# Builds the meson project in a folder, -Wall -Wextra without a warning.
build() {
  meson setup --werror "$1/build" "$1" > "$work/setup.log" || { cat "$work/setup.log"; exit 1; }
  ninja -C "$1/build" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
}
cd "$work"
