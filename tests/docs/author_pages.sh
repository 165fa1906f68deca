#!/bin/sh
# Pages for authors of plugins, each from top to bottom, against an installed megahost.
# usage: author_pages.sh PAGE...
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
export CXXFLAGS=-g0 # debug information takes a third of a compiler's time
failed=0
for page; do
  python3 "$MEGAHOST_SOURCE/tests/cli/transcript.py" "$MEGAHOST_SOURCE/docs/$page" || failed=1
done
exit $failed
