#!/bin/sh
# abi.sh OUTPUT API STEM TORCH_VERSION TEMPLATE HEADER...: fills the template; the tag is STEM_<hash of the headers>.
set -eu
output=$1 api=$2 stem=$3 torch=$4 template=$5
shift 5
hash=$(cat "$@" | sha256sum | cut -c1-12)
IFS=.
set -- $torch
sed -e "s/@API@/$api/" -e "s/@TAG@/${stem}_$hash/" -e "s/@TORCH_MAJOR@/$1/" \
  -e "s/@TORCH_MINOR@/$2/" -e "s/@TORCH_PATCH@/$3/" "$template" > "$output"
