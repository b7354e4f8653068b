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
red=0 server=
# shellcheck disable=SC2086 # one word each
if go list -f '{{join .TestImports " "}} {{join .XTestImports " "}}' $packages | grep "$module/internal/testkit/pgtest" >/dev/null; then # not -q, which would end go list
  # As in test.sh: one PostgreSQL for all packages, at the same place each time, because go test
  # remembers results for the same environment only.
  work=${TMPDIR:-/tmp}/tendril-quick-$UID-$(sha256sum <<<"$PWD" | cut -c1-12)
  mkdir -p -m 700 "$work"
  [ -O "$work" ] || { echo "$work belongs to another user: remove it, or set TMPDIR" >&2; exit 1; }
  exec 8>"$work/lock"
  flock 8
  export TENDRIL_TEST_POSTGRES=$work/postgres
  rm -f "$TENDRIL_TEST_POSTGRES"
  coproc SERVER { exec 8>&-; go run ./internal/testkit/pgtest/serve "$TENDRIL_TEST_POSTGRES"; }
  server=$SERVER_PID server_input=${SERVER[1]} # bash forgets both when it ends
  until [ -e "$TENDRIL_TEST_POSTGRES" ] || ! kill -0 "$server" 2>/dev/null; do sleep 0.1; done
  [ -e "$TENDRIL_TEST_POSTGRES" ] || { echo "the tests' PostgreSQL did not start" >&2; exit 1; }
fi
# As in test.sh: linking takes half the time without symbols, make lint vets the code, and tests
# wait more than they compute.
# shellcheck disable=SC2086 # one word each
go test -short -vet=off -ldflags='-s -w' -p $(($(nproc) * 2)) ${TESTARGS:-} $packages 8>&- || red=1
if [ -n "$server" ]; then
  exec {server_input}>&-
  wait "$server" || red=1
fi
exit "$red"
