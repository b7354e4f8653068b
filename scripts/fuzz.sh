#!/usr/bin/env bash
# Runs every fuzz target of the repository, one after the other.
set -euo pipefail
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "== $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$package"
  done
done
