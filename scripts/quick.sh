#!/usr/bin/env bash
# Runs, without the race detector, the tests of the packages that changed since BASE and of
# those that import them: no browser, no container, no whole system. BASE is the commit that
# the branch left its upstream at; without an upstream it is HEAD, or HEAD~1 where nothing is
# uncommitted. --list prints the packages and runs nothing.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
list=
[ "${1:-}" != --list ] || { list=1; shift; }
if [ -n "${1:-}" ]; then
  base=$1
elif base=$(git merge-base HEAD '@{upstream}' 2>/dev/null); then
  :
elif [ -n "$(git status --porcelain)" ]; then
  base=HEAD
else
  base=HEAD~1
fi

# The folder of each changed file, or the nearest one above it with a package.
changed=$({ git diff --name-only "$base" --; git ls-files --others --exclude-standard; } | while read -r file; do
  dir=$(dirname "$file")
  while [ "$dir" != . ] && ! compgen -G "$dir/*.go" >/dev/null; do dir=$(dirname "$dir"); done
  [ "$dir" = . ] || echo "$dir"
done | sort -u)
[ -n "$changed" ] || { echo "nothing of a package changed since $base" >&2; exit 0; }

module=$(go list -m)
packages=$(go list -f '{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... |
  awk -v module="$module/" -v changed="$changed" '
    BEGIN { n = split(changed, dirs, "\n"); for (i = 1; i <= n; i++) want[module dirs[i]] = 1 }
    $1 ~ "^" module "(e2e|charts|docs)(/|$)" { next } # whole systems
    { for (i = 1; i <= NF; i++) if ($i in want) { print $1; next } }')
[ -n "$packages" ] || { echo "no tests of packages: $changed" >&2; exit 0; }
[ -z "$list" ] || { echo "$packages"; exit 0; }
echo "since $base: $(wc -l <<<"$packages") packages" >&2
# shellcheck disable=SC2086 # one word each
exec go test -short ${TESTARGS:-} $packages
