#!/bin/sh
# environment.sh FOLDER [--check]: a Python environment with moto's server, the object store of suite s3, in FOLDER; --check
# only says by its exit code whether it is there. "pins" is written last, so that a start after a kill begins again.
set -eu

folder=$1
wheels='moto==5.2.1 boto3==1.44.8 botocore==1.44.8 s3transfer==0.19.3 flask==3.1.3 flask-cors==6.0.5 werkzeug==3.1.9
  py-partiql-parser==0.6.3 cryptography==50.0.2 requests==2.34.2 responses==0.26.3 xmltodict==1.0.4'

if [ "$(cat "$folder/pins" 2> /dev/null)" = "$wheels" ] && "$folder/bin/python" -c '' 2> /dev/null; then
  exit 0
fi
[ "${2-}" != --check ] || exit 1

rm -rf "$folder"
mkdir -p "$folder/tmp"
export TMPDIR="$folder/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1
# Debian's python3 makes environments only with python3-venv, but its pip installs into one made without pip.
python3 -m venv --without-pip "$folder"
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -m pip install --quiet --no-cache-dir --no-compile --only-binary :all: --target "$packages" $wheels
"$folder/bin/python" -c 'import moto.server'
rm -rf "$folder/tmp"
printf '%s\n' "$wheels" > "$folder/pins"
