#!/bin/sh
# image.sh BUILD PYTHON FILE.tar: an image of a container for machines with CPUs, as an OCI archive that podman, docker and skopeo
# read. It is made of Debian's packages without a registry, and holds neither a compiler nor Python: Debian, LibTorch out of the
# folder PYTHON, and a bundle of BUILD. Run by "./megahost image FILE.tar".
#
# Each of the three is a layer; the first two stay the same from build to build, so that pushing a new one sends the third.
set -eu
build=$1 python=$2 file=$3
here=$(dirname "$(readlink -f "$0")")
release=bookworm  # glibc, which LibTorch and the program are built for

give_up() {
  echo "megahost: $*" >&2
  exit 1
}

case $file in
  *.tar) ;;
  *) give_up "$file is no name of an image: end it in .tar, such as megahost-image.tar" ;;
esac
[ -d "$(dirname "$file")" ] || give_up "there is no folder $(dirname "$file")"
command -v mmdebstrap > /dev/null || give_up 'mmdebstrap is missing: have "apt-get install mmdebstrap" run'
[ ! -e "$python/torch/lib/libtorch_cuda.so" ] || give_up \
  'the image for CPUs is made where no GPU is, and this clone has the LibTorch of one: docs/clusters/Containerfile is for GPUs'

work=$(mktemp -d)
trap 'rm -rf "$work" "$file.part"' EXIT
trap 'exit 1' INT TERM
image=$work/image blobs=$work/image/blobs/sha256
mkdir -p "$blobs"

# blob FILE: becomes the blob of its hash; prints "sha256:HASH" and its size, for a descriptor.
blob() {
  hash=$(sha256sum "$1" | cut -d ' ' -f 1)
  size=$(stat -c %s "$1")
  mv "$1" "$blobs/$hash"
  printf '"digest": "sha256:%s", "size": %s' "$hash" "$size"
}

# layer TAR: adds it, compressed, to the lists of the manifest and of the configuration.
layers= contents=
layer() {
  contents="$contents${contents:+, }\"sha256:$(sha256sum "$1" | cut -d ' ' -f 1)\""
  gzip -n -6 "$1"
  layers="$layers${layers:+, }{\"mediaType\": \"application/vnd.oci.image.layer.v1.tar+gzip\", $(blob "$1.gz")}"
}

# packed TAR FOLDER: the same bytes for the same files.
packed() {
  tar -C "$2" --owner=0 --group=0 --numeric-owner --sort=name --mtime='2000-01-01' -cf "$1" .
}

# The archive, and the proxy to it, that apt of this machine uses; another distribution takes Debian's own.
archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" 'Component: main' 2> /dev/null |
  head -n 1)
proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy 2> /dev/null)"

echo 'megahost: Debian' >&2
SOURCE_DATE_EPOCH=946684800 mmdebstrap --quiet --variant=minbase --include=ca-certificates,libcurl4 \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  ${proxy:+--aptopt="Acquire::http::Proxy \"$proxy\""} "$release" "$work/debian.tar" $archive || give_up 'mmdebstrap made no Debian (above): look that this machine reaches its package archive'
layer "$work/debian.tar"

# The files that bundle_start.sh looks at and that the program loads; libraries of CUPTI and CUDA are needed by LibTorch's CPU half, too.
echo 'megahost: LibTorch' >&2
opt=$work/torch/opt
mkdir -p "$opt/torch/include/torch/headeronly" "$opt/torch/lib"
cp -al "$python/torch/lib/." "$opt/torch/lib" 2> /dev/null || cp -a "$python/torch/lib/." "$opt/torch/lib"  # another file system
cp "$python/torch/include/torch/headeronly/version.h" "$opt/torch/include/torch/headeronly"
(cd "$python" && find nvidia -name '*.so*' -path '*/lib/*' ! -name 'libnvperf*' ! -name 'libpcsampling*' ! -name 'libcheckpoint*' | tar cf - -T -) |
  tar xf - -C "$opt"
packed "$work/torch.tar" "$work/torch"
layer "$work/torch.tar"

echo 'megahost: program' >&2
"$here/bundle.sh" "$build" "$python/torch" "$work/megahost.tar.gz" 2> "$work/log" || { cat "$work/log" >&2; exit 1; }
mkdir -p "$work/program/opt" "$work/program/usr/local/bin"
tar xf "$work/megahost.tar.gz" -C "$work/program/opt"
name=$(basename "$work"/program/opt/megahost-*)
ln -s "/opt/$name/megahost" "$work/program/usr/local/bin/megahost"
packed "$work/program.tar" "$work/program"
layer "$work/program.tar"

cat > "$work/config" <<END
{"architecture": "amd64", "os": "linux", "created": "2000-01-01T00:00:00Z",
 "config": {"Entrypoint": ["/usr/local/bin/megahost"], "Cmd": ["--help"], "WorkingDir": "/root",
  "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
  "Labels": {"org.opencontainers.image.title": "megahost", "org.opencontainers.image.version": "${name#megahost-}",
   "org.opencontainers.image.licenses": "Apache-2.0"}},
 "rootfs": {"type": "layers", "diff_ids": [$contents]}}
END
config=$(blob "$work/config")
cat > "$work/manifest" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
 "config": {"mediaType": "application/vnd.oci.image.config.v1+json", $config}, "layers": [$layers]}
END
manifest=$(blob "$work/manifest")
cat > "$image/index.json" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [
 {"mediaType": "application/vnd.oci.image.manifest.v1+json", $manifest,
  "annotations": {"org.opencontainers.image.ref.name": "megahost:${name#megahost-}"}}]}
END
echo '{"imageLayoutVersion": "1.0.0"}' > "$image/oci-layout"
tar -C "$image" --owner=0 --group=0 --sort=name --mtime='2000-01-01' -cf "$file.part" blobs index.json oci-layout
mv "$file.part" "$file"
echo "$file: $(du -m "$file" | cut -f 1) MB; podman load -i $file, or skopeo copy oci-archive:$file docker://REGISTRY/megahost:${name#megahost-}" >&2
