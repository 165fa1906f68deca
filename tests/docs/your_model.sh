#!/bin/sh
# The guide for authors, from top to bottom, against an installed megahost.
. "$MEGAHOST_SOURCE/tests/thirdparty/prefix.sh"
MEGAHOST=$(command -v megahost)
export MEGAHOST
python3 "$MEGAHOST_SOURCE/tests/cli/transcript.py" "$MEGAHOST_SOURCE/docs/your_model.md"
