#!/bin/sh
# A training loop of one's own against an installed megahost, as examples/ shows it.
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
cp -r "$MEGAHOST_SOURCE/examples" .
build examples

examples/build/own_loop run > first || { cat first; exit 1; }
cat first
test "$(grep -c '^step ' first)" = 5
grep -q '^loaded step 5 ' first
examples/build/own_loop again > second
cmp first second
test "$(wc -l < examples/own_loop.cpp)" -le 80
# A program that is linked without meson, which would add paths, finds the libraries, too.
echo 'int main() {}' > main.cpp
c++ main.cpp -o alone -Wl,--no-as-needed $(pkg-config --libs megahost)
env -u LD_LIBRARY_PATH ./alone
