#!/usr/bin/env bash
# Makes the images that the tests of the images build on, where none can be
# pulled: a base, Terraform and PostgreSQL, of what is on this machine and in its
# distribution's archive. Prints them as NAME=IMAGE.
# Takes the directory for what is kept: what is there already is used.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$1
images=$tools/images
docker=${DOCKER:-/usr/bin/docker} # another client that is on PATH may lack BuildKit
command -v "$docker" >/dev/null || docker=docker
export DOCKER_BUILDKIT=1
mkdir -p "$images"

answers() { "$docker" version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# Where policy or the lack of an init keeps Docker from being started, it is
# started here, and stays as a service would.
start_docker() {
  if [ -d /run/systemd/system ]; then
    systemctl start docker || return 1
  elif [ "$(id -u)" = 0 ] && command -v dockerd >/dev/null; then
    echo "starting dockerd, whose log is $images/dockerd.log" >&2
    setsid nohup dockerd >"$images/dockerd.log" 2>&1 </dev/null &
  else
    return 1
  fi
  for ((tries = 0; tries < 120; tries++)); do
    ! answers || return 0
    sleep 0.5
  done
  return 1
}

# One of these at a time: two tests may want the images at once.
exec 9>"$images/lock"
flock 9

if ! answers && ! start_docker 9>&-; then
  [ ! -s "$images/dockerd.log" ] || tail -n 5 "$images/dockerd.log" >&2
  cat >&2 <<SAYS
$docker does not reach a Docker daemon that this user may use. Install one and start it:
  apt-get install docker.io iptables, then systemctl start docker, or dockerd as root
or name another client by DOCKER=/path/to/docker.
SAYS
  exit 1
fi

have() { "$docker" image inspect "$1" >/dev/null 2>&1; }
key() { sha256sum | cut -c1-12; }

# The base is Debian without what the images need, for their own way of getting
# it to be tested. Documents are left out as in Debian's own images.
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
recipe=(--variant=minbase
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
base=tendril-test/base:$(echo "$suite" "${recipe[@]}" | key)
if ! have "$base"; then
  tar=$images/${base##*:}.tar
  if [ ! -e "$tar" ]; then
    if ! command -v mmdebstrap >/dev/null; then
      echo "A base image is made by mmdebstrap: apt-get install mmdebstrap" >&2
      exit 1
    fi
    echo "making a base image of $suite in $images, once" >&2
    mmdebstrap --quiet --format=tar "${recipe[@]}" "$suite" - >"$tar.part"
    mv "$tar.part" "$tar"
  fi
  "$docker" import --message "$suite, minimal" "$tar" "$base" >/dev/null
fi

# As the vendor's image has it, and nothing else. Its licence lies beside it, as it
# comes in the vendor's archive, or where packages put it.
program=$(readlink -f "$(command -v terraform)")
for license in "$(dirname "$program")/LICENSE.txt" /usr/share/doc/terraform/LICENSE.txt; do
  [ ! -s "$license" ] || break
done
[ -s "$license" ] ||
  { echo "Terraform's licence is missing: put the LICENSE.txt of its archive beside $program" >&2; exit 1; }
terraform=tendril-test/terraform:$(stat -c '%s %Y' "$program" "$license" | key)
have "$terraform" || tar -cP --transform "s,.*/${program##*/}\$,bin/terraform,;s,.*/LICENSE.txt\$,usr/share/doc/terraform/LICENSE.txt," "$program" "$license" |
  "$docker" import - "$terraform" >/dev/null

postgres=tendril-test/postgres:$(echo "$base" "$(stat -c '%s %Y' "$tools/postgresql-18/bin/postgres")" | key)
if ! have "$postgres"; then
  tar -C "$tools/postgresql-18" -c --transform 's,^\.,usr/local/pgsql,' . | "$docker" import - tendril-test/postgres-files >/dev/null
  "$docker" build --quiet --tag "$postgres" - >/dev/null <<DOCKERFILE
FROM tendril-test/postgres-files AS files
FROM $base
COPY --from=files / /
RUN useradd --system --create-home postgres
ENV PATH=/usr/local/pgsql/bin:/usr/bin:/bin
USER postgres
DOCKERFILE
  "$docker" rmi tendril-test/postgres-files >/dev/null
fi

# What was made of older dependencies goes after a week: another checkout may
# still build on younger ones.
week=$(date -d '7 days ago' +%s)
for image in $("$docker" images --format '{{.Repository}}:{{.Tag}}' --filter 'reference=tendril-test/*'); do
  case $image in "$base" | "$terraform" | "$postgres") continue ;; esac
  made=$("$docker" image inspect --format '{{.Created}}' "$image" 2>/dev/null) || continue
  [ "$(date -d "$made" +%s)" -gt "$week" ] || "$docker" rmi "$image" >/dev/null 2>&1 || true # in use: another time
done
find "$images" -maxdepth 1 -name '*.tar' ! -name "${base##*:}.tar" -mtime +7 -delete

printf '%s=%s\n' BASE_IMAGE "$base" TERRAFORM_IMAGE "$terraform" POSTGRES_IMAGE "$postgres"
