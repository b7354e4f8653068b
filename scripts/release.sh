#!/usr/bin/env bash
# Builds a release: static programs, what each consists of (SBOM), archives, charts,
# the licences of others and the checksums of all that, into dist/. The same commit,
# the same version and the same Go make the same bytes.
#
# VERSION    what the nearest tag says, if it is not given: see version.sh
# PLATFORMS  what to build for: linux/amd64 linux/arm64 darwin/amd64 darwin/arm64.
#            The agent needs Linux; trellis asks servers from anywhere.
# DIST       where to put it: dist
# DIRTY      1: build with files that are not committed
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/version.sh)
commit=$(git rev-parse HEAD)
made=$(git show --no-patch --format=%ct HEAD)
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}
dist=${DIST:-dist}

command -v helm >/dev/null ||
  { echo "helm is missing: run \"make deps\", and this by \"make release\" or with the directory of \"make tools-dir\" on PATH" >&2; exit 1; }
tar --version | grep -q GNU || { echo "GNU tar is needed: another one writes other bytes" >&2; exit 1; }

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
out=$stage/out
mkdir "$out"

# What the machine's own settings could change.
export CGO_ENABLED=0 GOFLAGS='-buildvcs=false -mod=readonly' GOEXPERIMENT='' GOAMD64=v1 GOARM64=v8.0
export LC_ALL=C TZ=UTC HELM_CACHE_HOME=$stage/helm HELM_CONFIG_HOME=$stage/helm HELM_DATA_HOME=$stage/helm
linked=github.com/tendril-run/tendril/internal/version

# pack DIRECTORY FILE writes an archive that has no time but the commit's and no
# user in it.
pack() {
  tar --sort=name --format=ustar --mtime="@$made" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    -cf - -C "$(dirname "$1")" "$(basename "$1")" | gzip -n >"$2"
}

# What is linked does not depend on what is built this time.
GOFLAGS=-mod=readonly go run -trimpath ./scripts/licenses -write "$out/THIRD-PARTY-LICENSES.txt"

built=()
for platform in $platforms; do
  for program in tendril tendril-dispatcher trellis; do
    case $program/$platform in tendril/linux/* | tendril-dispatcher/linux/* | trellis/*) ;; *) continue ;; esac
    name=${program}_${version}_${platform%/*}_${platform#*/}
    echo "building $name" >&2
    GOOS=${platform%/*} GOARCH=${platform#*/} go build -trimpath \
      -ldflags "-s -w -buildid= -X $linked.version=$version -X $linked.commit=$commit" -o "$out/$name" "./cmd/$program"
    mkdir "$stage/$name"
    cp "$out/$name" "$stage/$name/$program"
    cp LICENSE README.md CHANGELOG.md "$out/THIRD-PARTY-LICENSES.txt" "$stage/$name/"
    pack "$stage/$name" "$out/$name.tar.gz"
    built+=("$out/$name")
  done
done
GOFLAGS=-mod=readonly go run -trimpath ./scripts/licenses -sbom "$version" "${built[@]}"

for chart in charts/*/Chart.yaml; do
  name=$(basename "$(dirname "$chart")")
  helm package --version "$version" --app-version "$version" --destination "$stage" "charts/$name" >/dev/null
  # Helm writes the time of day into it.
  mkdir "$stage/chart"
  tar -xzmf "$stage/$name-$version.tgz" -C "$stage/chart"
  pack "$stage/chart/$name" "$out/$name-$version.tgz"
  rm -rf "$stage/chart"
done

(cd "$out" && sha256sum -- * >SHA256SUMS)

mkdir -p "$dist"
# Of an earlier release, and nothing else that lies there.
rm -f "$dist"/{tendril,tendril-dispatcher,trellis}[_-][0-9]* "$dist/THIRD-PARTY-LICENSES.txt" "$dist/SHA256SUMS"
mv "$out"/* "$dist/"
echo "$version is in $dist" >&2
