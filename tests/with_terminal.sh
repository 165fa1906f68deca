#!/bin/sh
# with_terminal.sh COMMAND...: runs a test that opens a terminal; where none can be had the test is skipped.
[ -e /dev/pts/ptmx ] || {
  echo '/dev/pts is not mounted, so that there are no terminals: mount -t devpts devpts /dev/pts'
  exit 77
}
exec "$@"
