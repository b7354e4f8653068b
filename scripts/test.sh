#!/usr/bin/env bash
# Runs every test. Prints a line for each package, each failure in full, the ten slowest tests
# and a summary. Set-up goes first only as far as most tests need it: the other tools are
# installed meanwhile, and the packages that use them come last.
#
#   scripts/test.sh TOOLS
#
# TOOLS is the tools' directory; scripts/test-deps.sh fills it.
#
#   RACE=all      the race detector for all packages; else only for those whose goroutines share data
#   FAULTS=all    each fault and alteration of which else some are drawn
#   TESTARGS=…    arguments of go test
set -euo pipefail
cd "$(dirname "$0")/.."

# Elsewhere only CI looks for races.
concurrent='/internal/(agent|caches|delivery|listen|protocol|spool|queue|queue/(pgqueue|rpcqueue)|controlplane/(live|notify|web)|pvesim)$'

# The longest first, in this order: the last one to begin would run alone. The first two wait
# for compilers, and fill the caches that others link from.
longest='/(e2e/container|scripts)$ /e2e(/|$)|/sql$|/internal/executor$ /cmd/|/internal/(agent|conformance|providers|source|terraform|templatefile)$|/controlplane/(console|devstack)$'

# How many packages are tested and linked at a time. Tests of processes wait more than they
# compute: with one per processor two fifths of the machine stay idle, and what waits to be linked
# waits, too.
packages=$(($(nproc) * 2))

# longest_first sorts packages.
longest_first() {
  local left pattern
  left=$(cat)
  for pattern in $longest; do
    grep -E "$pattern" <<<"$left" || true
    left=$(grep -vE "$pattern" <<<"$left" || true)
  done
  grep . <<<"$left" || true
}

# late lists the packages whose tests may use more than Go, git and PostgreSQL.
late() {
  {
    grep -rlE --include='*_test.go' 'pgtest\.(Tool|Programs18)|LookPath|browsertest|providertest|pgbouncer|promtool|"(terraform|tofu|node|make|docker)"' charts docs internal scripts sql templates || true
    find cmd e2e -name '*_test.go'
    echo internal/testkit/browsertest/.
    # Their agents look for Terraform by themselves.
    printf '%s\n' internal/agentcmd/. internal/controlplane/devstack/.
  } | xargs -n1 dirname | sort -u | sed "s|^|$(go list -m)/|"
}

# tests ARGUMENTS… prints the events of packages as JSON. A hundred programs are linked, in half
# the time without symbols for debuggers; and make lint vets the code.
tests() {
  local cgo=0
  [ -z "${RACE:-}" ] || cgo=1
  # shellcheck disable=SC2086 # one word each
  CGO_ENABLED=$cgo go test -json -vet=off -ldflags='-s -w' ${RACE:+-race} -timeout "$limit" ${TESTARGS:-} "$@"
}

# events prints the events of all packages.
events() {
  local red=0 all begun=() left racy=() racing
  until [ -e "$TENDRIL_TEST_POSTGRES" ] || ! kill -0 "$POSTGRES" 2>/dev/null; do sleep 0.2; done
  limit=$(go run ./internal/testkit/patience/measure 60m)
  all=$(go list ./...)
  if [ -z "${RACE:-}" ]; then
    mapfile -t racy < <(grep -E "$concurrent" <<<"$all")
    all=$(grep -vE "$concurrent" <<<"$all")
  fi
  all=$(longest_first <<<"$all")
  # Where nothing is missing, the rest of the set-up takes seconds.
  for ((seconds = 0; seconds < 5; seconds++)); do
    kill -0 "$SETUP" 2>/dev/null || break
    sleep 1
  done
  if kill -0 "$SETUP" 2>/dev/null; then
    mapfile -t begun < <(grep -vxFf <(late) <<<"$all")
    tests -p "$packages" "${begun[@]}" || red=1
    while kill -0 "$SETUP" 2>/dev/null; do sleep 1; done
  fi
  # Beside the others. Its events come at the end: two processes would mix their lines.
  { [ ${#racy[@]} = 0 ] || RACE=some tests -p 1 "${racy[@]}"; } >"$WORK/racy" &
  racing=$!
  mapfile -t left < <(grep -vxFf <(printf '%s\n' "${begun[@]}") <<<"$all")
  tests -p "$packages" "${left[@]}" || red=1
  wait "$racing" || red=1
  cat "$WORK/racy"
  return "$red"
}

if [ "$1" = --events ]; then
  red=0
  events 3>&- | tee "$WORK/events" || red=1
  printf '\nThe slowest tests:\n' >&3
  gotestsum tool slowest --num 10 --jsonfile "$WORK/events" >&3
  exit "$red"
fi

tools=$1 red=0
scripts/test-deps.sh "$tools" first
export PATH=$tools:$PATH
scripts/test-deps.sh "$tools" rest &
SETUP=$!
# The same directory each time: go test remembers results for the same environment only.
WORK=$tools/runs/$(sha256sum <<<"$PWD" | cut -c1-12)
export SETUP WORK
mkdir -p "$WORK"
exec 8>"$WORK/lock"
flock -n 8 || { echo "another make test runs in this checkout; waiting for it" >&2; flock 8; }
rm -f "$WORK"/*[!k]
export TENDRIL_TEST_FAULTS=${FAULTS:-}
# One PostgreSQL for all packages; it ends with this script.
export TENDRIL_TEST_POSTGRES=$WORK/postgres
coproc SERVER { exec 8>&-; go run ./internal/testkit/pgtest/serve "$TENDRIL_TEST_POSTGRES"; }
POSTGRES=$SERVER_PID server_input=${SERVER[1]} # bash forgets both when it ends
export POSTGRES
trap 'kill "$SETUP" 2>/dev/null || true' EXIT
exec 3>&1
MAKEFLAGS='' gotestsum --format pkgname-and-test-fails --format-hide-empty-pkg --raw-command -- "$0" --events 8>&- || red=$?
exec {server_input}>&-
wait "$POSTGRES" || red=1
wait "$SETUP" || red=1
exit "$red"
