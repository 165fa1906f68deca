#!/bin/sh
# sanitize.sh SOURCE BUILD: suites unit and recipe under the address and undefined behaviour sanitizers.
set -eu

source=$1
build=$2/sanitize

[ -e "$build/build.ninja" ] || meson setup "$build" "$source" -Dtorch_prefix="$3" \
  -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export LSAN_OPTIONS=suppressions=$source/tests/slow/leaks.txt:print_suppressions=0
meson test -C "$build" --suite unit --suite recipe --print-errorlogs --timeout-multiplier 10
