#!/bin/sh
# The reference pages that are checked in are those that the program writes.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export XDG_DATA_HOME="$work/none"

"$MEGAHOST" docs -o "$work/pages" > /dev/null
if ! diff -r "$MEGAHOST_SOURCE/docs/reference" "$work/pages"; then
  echo "docs/reference is stale: ./megahost docs -o docs/reference writes it anew"
  exit 1
fi

# A second time nothing changes; a page that nothing belongs to goes, a file of another program stays.
cp "$work/pages/recipe.md" "$work/pages/plugins/gone.md"
echo mine > "$work/pages/notes.md"
"$MEGAHOST" docs -o "$work/pages" > /dev/null
[ ! -e "$work/pages/plugins/gone.md" ] || { echo "gone.md stayed"; exit 1; }
[ "$(cat "$work/pages/notes.md")" = mine ] || { echo "notes.md was touched"; exit 1; }
