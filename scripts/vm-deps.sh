#!/usr/bin/env bash
# Installs libvirt and QEMU and makes the images that `make e2e-vm` starts, in DIRECTORY,
# which all clones of a user share.
#
#   scripts/vm-deps.sh DIRECTORY [provider] [debian]
#
# small.qcow2: Debian's cloud kernel with BusyBox and QEMU's guest agent in its initramfs;
# it starts within seconds where processors are emulated. With "provider" also Terraform's
# provider for libvirt, and with "debian" debian.qcow2: a Debian with cloud-init, sshd and the
# guest agent. Each takes some minutes to make.
set -euo pipefail

tools=$1 wants=${*:2}
provider_version=0.8.3
provider=$tools/terraform-provider-libvirt-$provider_version
version=2 # of what this script makes: count it up with each change of an image
images=$tools/vm-images-$version

# cannot REASON ends with a sentence that says why no hypervisor can be started here.
cannot() {
  echo "No hypervisor can be started on this machine: $1" >&2
  exit 1
}
[ "$(uname -s)" = Linux ] || cannot "libvirt needs Linux, and this is $(uname -s)."
[ "$(id -u)" = 0 ] || cannot "libvirt's daemons need root. Run this as root."
unshare --mount --net --uts --pid --fork true 2>/dev/null ||
  cannot "each libvirt daemon needs namespaces of its own, and the kernel refuses them (unshare --mount --net --uts --pid). In a container, run it with --privileged."
mkdir -p "$images"

exec 9>"$tools/vm-images.lock"
flock -n 9 || {
  echo "set-up: another clone prepares the virtual machines; waiting for it" >&2
  flock 9
}

# step NAME COMMAND… says what is prepared, and how long that took.
step() {
  local name=$1 began=$SECONDS
  shift
  echo "set-up: $name …" >&2
  # In a process of its own, so that the first command that fails ends it.
  (set -e; "$@") >"$images/step.log" 2>&1 &
  wait $! || {
    tail -n 20 "$images/step.log" >&2
    echo "set-up: $name: failed after $((SECONDS - began)) s" >&2
    exit 1
  }
  echo "set-up: $name: ready after $((SECONDS - began)) s" >&2
}

# Two of apt-get update at once fail; scripts/test-deps.sh takes the same lock.
update() { flock "$tools/apt.lock" apt-get update; }

apt_install() {
  apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" ||
    { update && apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@"; }
}

missing=()
for each in libvirtd=libvirt-daemon-system qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils dnsmasq=dnsmasq-base \
  virsh=libvirt-clients busybox=busybox-static mcopy=mtools syslinux=syslinux mmdebstrap=mmdebstrap mke2fs=e2fsprogs; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${each%=*}" >/dev/null || missing+=("${each#*=}")
done
[ -e /usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so ] || missing+=(libvirt-daemon-driver-qemu)
[ -e /usr/lib/SYSLINUX/mbr.bin ] || missing+=(syslinux-common)
if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || cannot "please install what Debian calls ${missing[*]}."
  step "${missing[*]}" apt_install "${missing[@]}"
fi

work=$images/work
trap 'rm -rf "$work"' EXIT
rm -rf "$work" && mkdir -p "$work"

# unpack PACKAGE… downloads Debian packages and unpacks them below work/root, installing nothing.
unpack() {
  local package
  mkdir -p "$work/root" "$work/packages" && cd "$work/packages"
  for package in "$@"; do
    apt-get download "$package" || { update && apt-get download "$package"; }
    dpkg-deb -x "${package}"_*.deb "$work/root"
  done
}

little_endian() { printf "\\x$(printf %02x $(($1 & 255)))\\x$(printf %02x $(($1 >> 8 & 255)))\\x$(printf %02x $(($1 >> 16 & 255)))\\x$(printf %02x $(($1 >> 24 & 255)))"; }

# boot_partition DISK MIB starts a disk: a boot record and, at 1 MiB, an active FAT partition
# of so many MiB with SYSLINUX on it.
boot_partition() {
  local disk=$1 mib=$2
  truncate -s $((mib + 1))M "$disk"
  dd if=/usr/lib/SYSLINUX/mbr.bin of="$disk" conv=notrunc status=none
  { printf '\x80\xfe\xff\xff\x0c\xfe\xff\xff' && little_endian 2048 && little_endian $((mib * 2048)); } |
    dd of="$disk" bs=1 seek=446 conv=notrunc status=none
  printf '\x55\xaa' | dd of="$disk" bs=1 seek=510 conv=notrunc status=none
  mformat -i "$disk@@1M" -T $((mib * 2048)) -h 255 -s 63 -F -H 2048 ::
  syslinux --install --offset $((1 << 20)) "$disk"
}

cloud_kernel() { apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | tail -1; }

# The small guest. What its start does is in its init below.
make_small() {
  local kernel guest=$work/guest module library
  kernel=$(cloud_kernel)
  unpack "$kernel" qemu-guest-agent
  mkdir -p "$guest"/{bin,sbin,proc,sys,dev,run,tmp,etc,modules,seed,var/run,usr/share/udhcpc}
  for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net \
    virtio_blk virtio_console cdrom isofs evdev button; do
    cp "$(find "$work/root/lib/modules" -name "$module.ko")" "$guest/modules/"
  done
  cp "$(command -v busybox)" "$guest/bin/busybox"
  cp "$(find "$work/root" -name qemu-ga -type f)" "$guest/bin/qemu-ga"
  apt_install libglib2.0-0 liburing2 libudev1 # whose files are copied
  ldd "$guest/bin/qemu-ga" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$guest${library%/*}" && cp -L "$library" "$guest$library"
  done
  cat >"$guest/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin:/sbin
for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net \
  virtio_blk virtio_console cdrom isofs evdev button; do insmod /modules/$m.ko; done

# The seed: a disk whose label is cidata, as cloud-init looks for it.
for disk in /sys/block/vd*; do
  disk=/dev/${disk##*/}
  [ "$(dd if="$disk" bs=1 skip=32808 count=6 2>/dev/null)" = cidata ] && mount -t iso9660 -o ro "$disk" /seed && echo "GUEST seed $disk"
done
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$2"; }
hostname "$(field local-hostname /seed/meta-data)"
echo "GUEST name $(hostname)"
[ ! -e /seed/user-data ] || echo "GUEST user-data $(md5sum </seed/user-data)"

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
  ip link set eth0 up
  if grep -q '"addresses": *\["' /seed/network-config 2>/dev/null; then
    ip addr add "$(grep -o '"addresses": *\["[^"]*' /seed/network-config | head -n 1 | sed 's|.*"||')" dev eth0
  else
    printf '#!/bin/sh\n[ "$1" = bound ] && ip addr add "$ip/${mask:-24}" dev "$interface"\nexit 0\n' >/bin/bound
    chmod +x /bin/bound
    udhcpc -i eth0 -b -x "hostname:$(hostname)" -s /bin/bound -t 5 >/dev/null
  fi
  echo "GUEST address $(ip -4 -o addr show dev eth0 | sed 's/.*inet \([^ ]*\).*/\1/')"
fi

# Whoever asks for a shutdown, by ACPI or by the agent, gets one.
printf '#!/bin/sh\nsync\npoweroff -f\n' >/sbin/shutdown && chmod +x /sbin/shutdown
mkdir -p /etc/acpi/PWRF && ln -s /sbin/shutdown /etc/acpi/PWRF/00000080
acpid -d >/dev/null 2>&1 &
for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name" 2>/dev/null)" != org.qemu.guest_agent.0 ] || qemu-ga -m virtio-serial -p "/dev/${port##*/}" -t /run >/dev/null 2>&1 &
done
echo "GUEST up $(cut -d' ' -f1 /proc/uptime)"
exec setsid cttyhack sh
INIT
  chmod +x "$guest/init"
  (cd "$guest" && find . | busybox cpio -o -H newc | gzip -9) >"$work/initrd.gz"
  boot_partition "$work/small" 64
  printf 'DEFAULT linux\nSAY\nLABEL linux\n  LINUX vmlinuz\n  INITRD initrd.gz\n  APPEND console=ttyS0 quiet\n' >"$work/syslinux.cfg"
  mcopy -i "$work/small@@1M" "$work"/root/boot/vmlinuz-* ::vmlinuz
  mcopy -i "$work/small@@1M" "$work/initrd.gz" "$work/syslinux.cfg" ::
  qemu-img convert -O qcow2 "$work/small" "$work/small.qcow2"
  mv "$work/small.qcow2" "$images/small.qcow2"
}

# The Debian guest: what a cloud image has, as none can be downloaded everywhere.
make_debian() {
  local root=$work/debian boot=128 size=1600
  mmdebstrap --variant=minbase --mode=root --skip=check/empty --dpkgopt=force-unsafe-io \
    --include=systemd-sysv,udev,dbus,ifupdown,isc-dhcp-client,iproute2,cloud-init,sudo,openssh-server,qemu-guest-agent,linux-image-cloud-amd64 \
    bookworm "$root"
  echo '/dev/vda2 / ext4 defaults,noatime 0 1' >"$root/etc/fstab"
  printf 'datasource_list: [NoCloud, None]\nlocale: false\n' >"$root/etc/cloud/cloud.cfg.d/99-datasource.cfg"
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/etc/ssh/ssh_host_*
  rm -f "$root"/etc/systemd/system/timers.target.wants/*
  boot_partition "$work/disk" $boot
  printf 'DEFAULT linux\nLABEL linux\n  LINUX vmlinuz\n  INITRD initrd.img\n  APPEND root=/dev/vda2 ro console=ttyS0 mitigations=off net.ifnames=0\n' >"$work/syslinux.cfg"
  mcopy -i "$work/disk@@1M" "$root"/boot/vmlinuz-* ::vmlinuz
  mcopy -i "$work/disk@@1M" "$root"/boot/initrd.img-* ::initrd.img
  mcopy -i "$work/disk@@1M" "$work/syslinux.cfg" ::
  { printf '\x00\xfe\xff\xff\x83\xfe\xff\xff' && little_endian $(((boot + 1) * 2048)) && little_endian $((size * 2048)); } |
    dd of="$work/disk" bs=1 seek=462 conv=notrunc status=none
  mke2fs -q -t ext4 -d "$root" "$work/ext4" ${size}M
  dd if="$work/ext4" of="$work/disk" bs=1M seek=$((boot + 1)) conv=notrunc,sparse status=none
  truncate -s $((boot + 1 + size))M "$work/disk"
  qemu-img convert -c -O qcow2 "$work/disk" "$work/debian.qcow2"
  mv "$work/debian.qcow2" "$images/debian.qcow2"
}

# Terraform's provider, built: `go install` would ask for the list of its versions, which not
# every proxy has.
make_provider() {
  local module=$work/module
  mkdir -p "$module"
  source=$(go mod download -json "github.com/dmacvicar/terraform-provider-libvirt@v$provider_version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  install -m 0644 "$source"/go.mod "$source"/go.sum "$module/"
  (cd "$source" && CGO_ENABLED=0 nice go build -mod=mod -modfile="$module/go.mod" -trimpath -ldflags '-s -w' -o "$provider.part" .)
  mv "$provider.part" "$provider"
}

wanted() { [[ " $wants " == *" $1 "* ]]; }
if wanted provider; then
  [ -e "$provider" ] || step "Terraform's provider for libvirt" make_provider
  ln -sfn "${provider##*/}" "$tools/terraform-provider-libvirt"
fi
! wanted debian || [ -e "$images/debian.qcow2" ] || step "a Debian guest, which takes some minutes" make_debian
[ -e "$images/small.qcow2" ] || step "a small guest" make_small
ln -sfn "${images##*/}" "$tools/vm-images"
