#!/bin/sh
# A new plugin of a kind, as its author gets it: written, built against an installed megahost, tested by its own
# tests (a program, `plugins check`, two steps of its recipe), installed, and found by its name.
# usage: scaffold.sh KIND
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
name=my-$1

megahost plugins new "$work/$name" --kind "$1" > new.out
build "$name"
meson test -C "$name/build" --no-rebuild --print-errorlogs > test.out || { cat test.out; exit 1; }
tests=3
[ "$1" != architecture ] || tests=4 # layouts, too
grep -q "^Ok: *$tests" test.out || { echo "$tests tests were expected"; cat test.out; exit 1; }

folder="$XDG_DATA_HOME/megahost/plugins-$(pkg-config --variable=plugin_api megahost)"
mkdir -p "$folder"
cp "$name"/build/*.so "$folder"
megahost plugins show "$name" > show.out
grep -q "org.example.$name 0.1.0" show.out || { echo "it is not found by its name"; cat show.out; exit 1; }
