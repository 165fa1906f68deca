#!/bin/sh
# Pages for authors of plugins, each from top to bottom, against an installed megahost.
# usage: author_pages.sh PAGE...
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
MEGAHOST=$(command -v megahost)
CXXFLAGS=-g0 # debug information takes a third of a compiler's time
export MEGAHOST CXXFLAGS
failed=0
for page; do
  python3 "$MEGAHOST_SOURCE/tests/cli/transcript.py" "$MEGAHOST_SOURCE/docs/$page" || failed=1
done
exit $failed
