#!/usr/bin/env bash
# Looks for known vulnerabilities in what the given packages (all) call of their
# dependencies and of the Go library. Exits with 0 when there are none, with 3
# when there are some, with 75 when the database of vulnerabilities cannot be
# reached, so nothing was looked at, and with 1 when something else is wrong.
# GOVULNDB names a mirror of https://vuln.go.dev, or a copy: file:///…
set -euo pipefail

database=${GOVULNDB:-https://vuln.go.dev}
packages=("$@")
[ $# != 0 ] || packages=(./...)

if ! command -v govulncheck >/dev/null; then
  echo "govulncheck is missing: run \"make deps\", and this by \"make vuln\" or with the directory of \"make tools-dir\" on PATH" >&2
  exit 1
fi

not_checked() {
  echo "NOT CHECKED: the database of vulnerabilities, $database, cannot be reached ($1)." >&2
  echo "NOT CHECKED: nothing is known of vulnerabilities in our dependencies. Set GOVULNDB to a mirror, or to file:// and a copy." >&2
  exit 75
}

# Asked here, for govulncheck says of a mirror that is away that it is no database.
case $database in
http://* | https://*)
  status=0
  answer=$(curl --silent --show-error --location --max-time 60 --output /dev/null --write-out '%{http_code}' "$database/index/modules.json.gz" 2>&1) || status=$?
  case $status in
  0) ;;
  # No name, no connection, no TLS, no answer in time or a broken one.
  5 | 6 | 7 | 28 | 35 | 52 | 55 | 56) not_checked "${answer%$'\n'000}" ;;
  *)
    echo "$database: $answer" >&2
    exit 1
    ;;
  esac
  case $answer in
  200) ;;
  # What stands between refuses, or the server is not well.
  403 | 407 | 429 | 5??) not_checked "HTTP status $answer" ;;
  *)
    echo "$database is no database of vulnerabilities: it answers HTTP status $answer for index/modules.json.gz" >&2
    exit 1
    ;;
  esac
  ;;
esac

status=0
govulncheck -db "$database" "${packages[@]}" || status=$?
case $status in
0 | 3) exit "$status" ;;
*) exit 1 ;;
esac
