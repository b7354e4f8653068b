#!/usr/bin/env bash
# Prints the version of what is checked out here, for binaries, images and charts
# alike: VERSION, else what the nearest tag says; without a leading v. Files that
# are not as committed are refused, unless DIRTY=1 has them show in the version.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-}
if [ -z "$version" ]; then
  # "v1.2.3", or "v1.2.3-4-gabc1234" four commits later; a clone without tags has none.
  version=$(git describe --tags --match 'v[0-9]*' --abbrev=12 2>/dev/null) ||
    version=0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short=12 HEAD)
fi
version=${version#v}

changes=$(git status --porcelain)
if [ -n "$changes" ]; then
  if [ "${DIRTY:-}" != 1 ]; then
    { echo "these files are not as committed, so nobody could build this version again; commit them, or set DIRTY=1:"; echo "$changes"; } >&2
    exit 1
  fi
  version+=-dirty
fi

# Of SemVer what an image's tag can be as well: no "+".
if ! [[ $version =~ ^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$ ]]; then
  echo "VERSION is \"$version\": must be as 1.2.3 or 1.2.3-rc.1" >&2
  exit 1
fi
echo "$version"
