#!/usr/bin/env bash
# Runs tests again and again, and reports how often they are green.
#
#   scripts/repeat.sh [--busy N] [--race] [--timeout D] [--keep DIR] TIMES PACKAGE [PATTERN]
#
#   scripts/repeat.sh 20 ./e2e/chaos '^TestPostgresStopped$'
#   scripts/repeat.sh --busy 4 20 ./cmd/trellis TestNothingRuns
#
#   --busy N     keep N busy loops a core running meanwhile (0)
#   --race       with the race detector
#   --timeout D  of each run (20m)
#   --keep DIR   where the output of red runs is kept (a new temporary directory)
#
# The package is compiled once. The exit status is 1 if any run was red.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }

busy=0 race=() timeout=20m keep=
while [ $# -gt 0 ]; do
  case $1 in
    --busy) busy=${2:?}; shift 2 ;;
    --race) race=(-race); shift ;;
    --timeout) timeout=${2:?}; shift 2 ;;
    --keep) keep=${2:?}; shift 2 ;;
    -*) usage ;;
    *) break ;;
  esac
done
[ $# = 2 ] || [ $# = 3 ] || usage
times=$1 package=$2 pattern=${3:-.}
[[ $times =~ ^[1-9][0-9]*$ && $busy =~ ^[0-9]+$ ]] || usage

PATH=$(make --silent tools-dir):$PATH
keep=${keep:-$(mktemp -d)}
mkdir -p "$keep"
program=$(mktemp -d)
loops=() running=
cleanup() {
  [ -z "$running" ] || kill "$running" 2>/dev/null || true
  [ ${#loops[@]} = 0 ] || kill "${loops[@]}" 2>/dev/null || true
  rm -rf "$program"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

go test -c "${race[@]}" -o "$program/tests" "$package"
dir=$(go list -f '{{.Dir}}' "$package")
for ((i = 0; i < busy * $(nproc); i++)); do
  while :; do :; done &
  loops+=($!)
done

green=0 red=0
for ((n = 1; n <= times; n++)); do
  began=$SECONDS
  output=$keep/run-$n.txt
  # In the background: a signal is then heeded at once, not at the end of the run.
  (cd "$dir" && exec "$program/tests" -test.count=1 -test.timeout="$timeout" -test.run="$pattern" -test.v) >"$output" 2>&1 &
  running=$!
  if wait "$running"; then
    running=
    # A pattern that matches nothing would be green for ever.
    grep -q '^=== RUN' "$output" || { echo "no test of $package matches $pattern" >&2; exit 2; }
    green=$((green + 1)) verdict=green
    rm "$output"
  else
    running=
    red=$((red + 1)) verdict="red: $output"
  fi
  echo "run $n of $times, $((SECONDS - began)) s: $verdict"
  [ "${verdict%%:*}" = green ] || grep -aE '^ *--- FAIL|_test\.go:[0-9]+:|^panic:' "$output" | cut -c1-300 | head -n 10 || true
done
echo "$package $pattern, $busy busy loops a core: $green green, $red red of $times"
[ "$red" = 0 ] || exit 1
rmdir "$keep" 2>/dev/null || true
