#!/usr/bin/env bash
# Installs what e2e/kube and e2e/kubejobs need: Kubernetes' servers, its kubelet and
# kubectl, built from their module, and Debian's etcd, containerd and network plugins.
# Says what to install where it cannot. Takes the directory for what is not a system package, which
# must have helm already (scripts/test-deps.sh).
set -euo pipefail

tools=$1
kubernetes_version=1.32.2
missing=()

# What a node needs besides the kubelet, and where it is found.
packages=(etcd-server containerd runc containernetworking-plugins iptables iproute2 busybox-static)
installed() { command -v etcd containerd ctr runc iptables ip nsenter busybox >/dev/null && [ -x /usr/lib/cni/bridge ]; }
PATH=$PATH:/usr/sbin
installed || {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
    { apt-get install -y --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
      { apt-get update >/dev/null && apt-get install -y --no-install-recommends "${packages[@]}" >/dev/null; }; } && installed
} || missing+=("etcd, containerd, runc, CNI plugins, iptables, busybox: apt-get install ${packages[*]}")

kube=$tools/kubernetes-$kubernetes_version-node

# The module leaves its own parts (staging/) out of its archive: they are modules
# themselves, whose version is the same with another first number. The checksums
# of everything else come with it.
build_kubernetes() {
  local module parts=v0${kubernetes_version#1} minor=${kubernetes_version#1.} stamps=() stamp
  module=$(go mod download -json "k8s.io/kubernetes@v$kubernetes_version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  [ -n "$module" ] || return 1
  sed "s#=> ./staging/src/\(.*\)#=> \1 $parts#" "$module/go.mod" >"$kube.part/go.mod" || return 1
  cat "$module/go.sum" >"$kube.part/go.sum" || return 1 # cp would have it read-only
  for stamp in gitVersion=v$kubernetes_version gitMajor=1 gitMinor="${minor%.*}" gitTreeState=clean; do
    stamps+=("-X k8s.io/component-base/version.$stamp" "-X k8s.io/client-go/pkg/version.$stamp")
  done
  cd "$module" || return 1
  CGO_ENABLED=0 GOWORK=off nice go build -mod=mod -modfile="$kube.part/go.mod" -trimpath \
    -ldflags "-s -w ${stamps[*]}" -o "$kube.part/" ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kubelet ./cmd/kubectl
}

if [ ! -d "$kube" ]; then
  echo "building Kubernetes $kubernetes_version into $tools, once; this takes some minutes" >&2
  rm -rf "$kube.part" && mkdir -p "$kube.part"
  if (build_kubernetes) >&2; then
    rm -f "$kube.part"/go.*
    mv "$kube.part" "$kube"
  else
    missing+=("kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and kubectl $kubernetes_version: https://kubernetes.io/releases/download, in $kube")
  fi
fi
[ ! -d "$kube" ] || ln -sfn "${kube##*/}" "$tools/kubernetes"

[ -x "$tools/helm" ] || command -v helm >/dev/null || missing+=("Helm 3: https://helm.sh/docs/intro/install, put on PATH")

if [ ${#missing[@]} -gt 0 ]; then
  echo "make e2e-kube cannot run yet. Please install:" >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi
