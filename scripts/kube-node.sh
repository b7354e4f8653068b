#!/usr/bin/env bash
# Starts and ends a Kubernetes cluster of one node, for tests: the servers, containerd and a kubelet
# in a network namespace of their own. Needs root, and what kube-deps.sh installs.
#
#   kube-node.sh up DIR TOOLS N IMAGE...   N, 0 to 200, tells clusters of one machine apart
#   kube-node.sh down DIR N
#
# DIR/admin.kubeconfig reaches it, from outside of the namespace too. The host is 10.213.N.1 for the
# pods. DIR/pids has the processes, DIR/log what they say.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
verb=$1 dir=$2

names() { space=tendrilkube$n host=10.213.$n.1 node=10.213.$n.2 pods=10.214.$n.0/24 services=10.215.$n.0/24 api=10.215.$n.1 link=tkube$n; }

# begin NAME COMMAND… starts a server inside of the namespace.
begin() {
  local name=$1
  shift
  nsenter --net="/run/netns/$space" setsid "$@" >"log/$name" 2>&1 </dev/null &
  echo "$! $name" >>pids
}

await() {
  local tries
  for ((tries = 0; tries < 1200; tries++)); do
    ! "$@" >/dev/null 2>&1 || return 0
    sleep 0.1
  done
  echo "waited two minutes in vain for: $*" >&2
  return 1
}

certificate() { # NAME SUBJECT NAMES
  openssl ecparam -name prime256v1 -genkey -noout -out "pki/$1.key"
  openssl req -new -key "pki/$1.key" -subj "$2" -out "pki/$1.csr"
  openssl x509 -req -in "pki/$1.csr" -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 30 -out "pki/$1.crt" \
    -extfile <(printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=%s' "${3:-DNS:$1}") 2>/dev/null
}

kubeconfig() {
  cat >"$1.kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: me, namespace: default}}]
clusters: [{name: it, cluster: {server: "https://$node:6443", certificate-authority: $dir/pki/ca.crt}}]
users: [{name: me, user: {client-certificate: $dir/pki/$1.crt, client-key: $dir/pki/$1.key}}]
CONFIG
}

network() {
  local controller
  for controller in /sys/fs/cgroup/*/; do # a cgroup of its own, or two kubelets would clear each other's pods
    grep -q "^cgroup ${controller%/} cgroup " /proc/mounts || continue
    mkdir -p "$controller$space"
    [ ! -f "$controller$space/cpuset.cpus" ] || {
      cat "${controller}cpuset.cpus" >"$controller$space/cpuset.cpus"
      cat "${controller}cpuset.mems" >"$controller$space/cpuset.mems"
    }
  done
  ip netns add "$space"
  ip link add "$link" type veth peer name eth0 netns "$space"
  ip addr add "$host/24" dev "$link"
  ip link set "$link" up
  ip -n "$space" addr add "$node/24" dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" link set lo up
  ip -n "$space" route add default via "$host"
  ip netns exec "$space" sysctl -qw net.ipv4.ip_forward=1
  # In place of kube-proxy, for the one service that there is.
  for chain in PREROUTING OUTPUT; do
    ip netns exec "$space" iptables -t nat -A $chain -d "$api" -p tcp --dport 443 -j DNAT --to-destination "$node:6443"
  done
}

configure() {
  cat >cni/10-pods.conflist <<CONFIG
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$dir/run/addresses", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
CONFIG
  cat >containerd.toml <<CONFIG
version = 2
root = "$dir/containerd"
state = "$dir/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "$dir/run/containerd.sock"
[ttrpc]
  address = "$dir/run/containerd.ttrpc.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "tendril.test/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
CONFIG
  cat >kubelet.yaml <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$space
enforceNodeAllocatable: []
failSwapOn: false
containerRuntimeEndpoint: unix://$dir/run/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $dir/pki/kubelet.crt
tlsPrivateKeyFile: $dir/pki/kubelet.key
clusterDNS: []
resolvConf: $dir/resolv.conf
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
podLogsDir: $dir/podlogs
volumePluginDir: $dir/kubelet/volume-plugins
nodeStatusUpdateFrequency: 5s
maxPods: 200
CONFIG
  : >resolv.conf
}

up() {
  local bin=$1 image user
  shift
  mkdir -p "$dir"/{pki,log,etcd,containerd,run,kubelet,cni}
  cd "$dir"
  : >pids
  network
  openssl ecparam -name prime256v1 -genkey -noout -out pki/ca.key
  openssl req -x509 -new -key pki/ca.key -subj /CN=tendril-test -days 30 -out pki/ca.crt 2>/dev/null
  openssl ecparam -name prime256v1 -genkey -noout -out pki/accounts.key
  openssl ec -in pki/accounts.key -pubout -out pki/accounts.pub 2>/dev/null
  certificate apiserver /CN=kube-apiserver "IP:127.0.0.1,IP:$node,IP:$api,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  certificate apiserver-kubelet /O=system:masters/CN=apiserver-kubelet
  certificate kubelet /O=system:nodes/CN=system:node:node0 "DNS:node0,IP:$node"
  certificate admin /O=system:masters/CN=admin
  certificate controller-manager /CN=system:kube-controller-manager
  certificate scheduler /CN=system:kube-scheduler
  for user in admin kubelet controller-manager scheduler; do kubeconfig $user; done
  configure
  begin etcd etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
  begin containerd containerd --config containerd.toml
  begin kube-apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --bind-address=0.0.0.0 --advertise-address="$node" \
    --client-ca-file=pki/ca.crt --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key \
    --kubelet-client-certificate=pki/apiserver-kubelet.crt --kubelet-client-key=pki/apiserver-kubelet.key --kubelet-certificate-authority=pki/ca.crt \
    --kubelet-preferred-address-types=InternalIP --service-account-key-file=pki/accounts.pub --service-account-signing-key-file=pki/accounts.key \
    --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range="$services" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction
  ask() { "$bin/kubectl" --kubeconfig="$dir/admin.kubeconfig" "$@"; }
  await ask get --raw /readyz
  begin kube-controller-manager "$bin/kube-controller-manager" --kubeconfig=controller-manager.kubeconfig --use-service-account-credentials \
    --service-account-private-key-file=pki/accounts.key --root-ca-file=pki/ca.crt --leader-elect=false --cluster-cidr="$pods" \
    --node-monitor-grace-period="${NODE_GRACE:-40s}" --bind-address=127.0.0.1
  begin kube-scheduler "$bin/kube-scheduler" --kubeconfig=scheduler.kubeconfig --leader-elect=false --bind-address=127.0.0.1
  await ctr -a run/containerd.sock version
  for image in "$@"; do ctr -a run/containerd.sock -n k8s.io images import "$image" >>log/images 2>&1; done
  begin kubelet "$bin/kubelet" --config=kubelet.yaml --kubeconfig=kubelet.kubeconfig --hostname-override=node0 --node-ip="$node" --root-dir="$dir/kubelet"
  await ask wait --for=condition=Ready node/node0 --timeout=5s
  await ask -n default get serviceaccount default
}

containers() { timeout 20 ctr -a run/containerd.sock -n k8s.io "$@"; }

down() {
  local pid id mount
  cd "$dir" 2>/dev/null || return 0
  pid=$(awk '$2 == "kubelet" {print $1}' pids)
  [ -z "$pid" ] || kill "$pid" || true
  if [ -S run/containerd.sock ]; then
    for id in $(containers tasks ls -q); do containers tasks kill -s KILL "$id"; done
    sleep 1
    for id in $(containers containers ls -q); do containers tasks delete -f "$id"; containers containers delete "$id"; done
  fi >/dev/null 2>&1 || true
  for pid in $(tac pids | cut -d' ' -f1); do kill "$pid" 2>/dev/null || true; done
  sleep 1
  for pid in $(cut -d' ' -f1 pids); do kill -9 "$pid" 2>/dev/null || true; done
  for pid in $(grep -alF -- "$dir/run/containerd" /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do # what is left of its containers
    ! grep -qa containerd-shim "/proc/$pid/cmdline" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true
  done
  grep -F "$dir/" /proc/self/mounts | cut -d' ' -f2 | sort -r | while read -r mount; do umount -l "$mount" || true; done
  for mount in $(ip netns list | grep -o '^cni-[0-9a-f-]*'); do
    ip -n "$mount" addr 2>/dev/null | grep -q "10\.214\.$n\." && ip netns del "$mount"
  done || true
  ip netns del "$space" 2>/dev/null || true
  ip link del "$link" 2>/dev/null || true
  find /sys/fs/cgroup/*/"$space" -depth -type d -exec rmdir {} + 2>/dev/null || true
}

case $verb in
up)
  n=$4
  names
  up "$3/kubernetes" "${@:5}"
  ;;
down)
  n=$3
  names
  down
  ;;
esac
