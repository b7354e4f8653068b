#!/usr/bin/env bash
# Installs the OpenStack Ironic that `make e2e-metal` starts, as Debian packages it, with what
# makes config drives. DIRECTORY is the tests' tools', which all clones of a user share.
#
#   scripts/metal-deps.sh DIRECTORY
set -euo pipefail

tools=$1

# cannot REASON ends with a sentence that says why no Ironic can be started here.
cannot() {
  echo "OpenStack Ironic can't be started on this machine: $1" >&2
  exit 1
}

missing=()
for each in ironic=ironic-conductor xorrisofs=xorriso; do
  [ -x "/usr/bin/${each%=*}" ] || missing+=("${each#*=}")
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || cannot "its packages are missing, and only root can install them. Run this as root, or install ${missing[*]}."
command -v apt-get >/dev/null || cannot "please install what Debian calls ${missing[*]}."

mkdir -p "$tools"
exec 9>"$tools/metal.lock"
flock -n 9 || {
  echo "set-up: another clone installs Ironic; waiting for it" >&2
  flock 9
}
began=$SECONDS log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "set-up: ${missing[*]} …" >&2
install() {
  # Its services are not wanted: the tests start their own.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}"
}
# Two of apt-get update at once fail; scripts/test-deps.sh takes the same lock.
install >"$log" 2>&1 || { flock "$tools/apt.lock" apt-get update && install; } >"$log" 2>&1 || {
  tail -n 20 "$log" >&2
  echo "set-up: ${missing[*]}: failed after $((SECONDS - began)) s" >&2
  exit 1
}
[ -x /usr/bin/ironic ] || cannot "the package ironic-conductor has no /usr/bin/ironic, which is API and conductor in one process; Debian 12 has it."
echo "set-up: ${missing[*]}: ready after $((SECONDS - began)) s" >&2
