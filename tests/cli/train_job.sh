#!/bin/sh
# train_job.sh SCRIPT: runs the script with a certificate for localhost, made for it.
set -eu
command -v openssl > /dev/null || {
  echo 'skipped: openssl is missing, which makes the certificate of the server'
  exit 77
}
keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
  -keyout "$keys/key.pem" -out "$keys/cert.pem" 2> /dev/null
python3 "$1" "$keys"
