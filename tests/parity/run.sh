#!/bin/sh
# run.sh SCRIPT ARGUMENTS...: runs a Python script in the environment that `./megahost test parity` makes; without
# it the test is skipped.
set -eu
python=$MEGAHOST_SOURCE/.deps/parity-env/bin/python
[ -x "$python" ] || {
  echo "no $python: run ./megahost test parity once"
  exit 77
}
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
exec "$python" "$@"
