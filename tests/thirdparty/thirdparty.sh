#!/bin/sh
# An author's way: install megahost, build a plugin against it through pkg-config, train with it.
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"

cp -r "$MEGAHOST_SOURCE/tests/thirdparty/mixer" .
build mixer
cd mixer

fail() {
  echo "$1"
  cat "$work/out"
  exit 1
}
run() {
  megahost "$@" > "$work/out" 2>&1 || fail "megahost $* ended with status $?"
}

run plugins
grep -q 'models-llama.so' "$work/out" || fail "the installed plugins are not found"
! grep -q skipped "$work/out" || fail "installed plugins are skipped"
run recipe check quickstart
run recipe schema
cmp "$work/out" "$(find "$prefix" -name recipe.schema.json)" || fail "the installed schema is stale"
megahost recipe stubs -o "$work/stubs" 2> /dev/null
cmp "$work/stubs/megahost.gen.lua" "$(find "$prefix" -name megahost.gen.lua)" || fail "the installed stubs are stale"
[ -n "$(find "$prefix" -path '*/share/man/man1/megahost.1')" ] || fail "there is no manual page"
run run mixer.lua --plugin build/mixer.so --set precision=fp32 --run-dir "$work/first"
grep -q 'step *5/5' "$work/out" || fail "there is no fifth step"
run eval mixer.lua --plugin build/mixer.so --set precision=fp32 --set data.split=[90,10,0] --weights "$work/first"
grep -q 'lm loss [0-9]' "$work/out" || fail "eval prints no loss"

# By file in the recipe, and by name in the user's folder.
sed 's|name = "mixer",|name = "mixer", plugins = { "build/mixer.so" },|' mixer.lua > named.lua
run run named.lua --run-dir "$work/second"
folder="$work/data/megahost/plugins-$(pkg-config --variable=plugin_api megahost)"
mkdir -p "$folder"
cp build/mixer.so "$folder/models-mixer.so"
run run mixer.lua --run-dir "$work/third"
grep -q 'org.example.mixer 0.1.0' "$work/out" || fail "the start of a run does not name the plugin"
