#!/bin/sh
# fuzz.sh SOURCE BUILD [SECONDS [PARSER...]]: looks for files that break a parser: libFuzzer with the address and undefined
# behaviour sanitizers, SECONDS (600) for each parser of tests/fuzz/parsers.cpp, and of tests/fuzz/columns.cpp where
# `./megahost arrow` has fetched libarrow (which has no sanitizers), or for those named. It begins from the files that earlier
# searches found (BUILD/fuzz/found); a file that breaks a parser is kept as BUILD/fuzz/PARSER-*.
set -eu

source=$1
generated=$2
build=$2/fuzz
arrow=$source/.deps/arrow
seconds=${3:-600}
[ $# -lt 3 ] || shift
shift 2
command -v clang++ > /dev/null || { echo 'skipped: clang++ is missing: ./megahost test slow installs it'; exit 77; }

mkdir -p "$build/objects" "$build/found"
# toml++ 3.3 says of U+FED4 to U+FEFE in a key that they cannot be there; its two answers are both harmless.
flags="-std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
  -fno-sanitize=unreachable -DNDEBUG
  -I$source -I$source/core/include -I$generated -I$generated/core/include $(pkg-config --cflags lua5.4-c++ libpcre2-8)"
for room in base formats text language megatron storage recipe; do
  find "$source/core/$room" -name '*.cpp'
done > "$build/sources"
for plugin in hf sentencepiece tiktoken wordpiece; do
  find "$source/plugins/data/$plugin" -name '*.cpp' ! -name plugin.cpp
done >> "$build/sources"
echo "$source/tests/fuzz/parsers.cpp" >> "$build/sources"
{
  echo "flags = $(echo $flags)"
  printf 'rule compile\n command = clang++ $flags -MMD -MF $out.d -c $in -o $out\n depfile = $out.d\n deps = gcc\n'
  printf 'rule link\n command = clang++ $flags $in %s -o $out\n' "$(pkg-config --libs lua5.4-c++ libpcre2-8)"
  sed "s|^$source/\(.*\)\.cpp$|build objects/\1.o: compile &|" "$build/sources"
  echo "build parsers: link $(sed "s|^$source/\(.*\)\.cpp$|objects/\1.o|" "$build/sources" | paste -s -d ' ')"
  if [ -f "$arrow/pins" ]; then
    echo "build columns.o: compile $source/tests/fuzz/columns.cpp"
    echo "  flags = $(echo $flags) -isystem $arrow/include"
    echo "build install_columns.o: compile $source/core/install/columns.cpp"
    echo "  flags = $(echo $flags) -isystem $arrow/include"
    echo "build columns: link columns.o install_columns.o $arrow/lib/libarrow.so.2600 $arrow/lib/libparquet.so.2600"
    echo "  flags = $(echo $flags) -Wl,-rpath,$arrow/lib"
  fi
} > "$build/build.ninja"
[ -f "$arrow/pins" ] && columns=columns || columns=
ninja -C "$build" -k 0 parsers $columns > "$build/log" 2>&1 || { grep -E 'error|undefined' "$build/log" | tail -n 30; exit 1; }

cd "$build"
python3 "$source/tests/fuzz/seeds.py" found
[ $# -gt 0 ] || set -- $(ls found | if [ "$columns" ]; then cat; else grep -vx -e arrow -e parquet; fi)
export seconds
code=0
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 sh -c 'case $0 in arrow | parquet) program=columns ;; *) program=parsers ;; esac
  FUZZ_PARSER=$0 ./$program "found/$0" -max_total_time="$seconds" \
  -timeout=10 -rss_limit_mb=2048 -max_len=20000 -artifact_prefix="$0-" -print_final_stats=1 > "$0.log" 2>&1' || code=1
for parser in "$@"; do
  if grep -q 'SUMMARY: ' "$parser.log"; then
    echo "$parser: broken by a file"
    grep -A 12 -E '^==|ERROR: |runtime error: |Test unit written to' "$parser.log" | head -n 40
  else
    echo "$parser: $(awk '/number_of_executed_units/ { print $2 }' "$parser.log") files"
  fi
done
rm -rf /dev/shm/megahost-fuzz-*
exit $code
