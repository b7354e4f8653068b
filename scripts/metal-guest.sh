#!/usr/bin/env bash
# Makes the guest that the tests of bare metal deploy onto a virtual machine, in DIRECTORY, which
# all clones of a user share: metal-images/boot.iso, and its vmlinuz and initrd.gz alone.
#
#   scripts/metal-guest.sh DIRECTORY
#
# It starts from a CD and keeps everything in memory: Debian's kernel, BusyBox and Dropbear. It
# reads OpenStack's config drive from a USB stick, as Ironic's driver redfish attaches it: host
# name, keys for SSH, a fixed address and a script. It takes about a minute, once.
set -euo pipefail

tools=$1
version=2 # of what this script makes: count it up with each change of the guest
images=$tools/metal-images-$version

[ "$(uname -s)" = Linux ] && command -v apt-get >/dev/null || {
  echo "The guest of the bare-metal tests is made of Debian's packages, and this is not Debian." >&2
  exit 1
}
mkdir -p "$images"
exec 9>"$tools/metal-images.lock"
flock 9
# Two of apt-get update at once fail; scripts/test-deps.sh takes the same lock.
update() { flock "$tools/apt.lock" apt-get update; }
apt_install() {
  apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" ||
    { update && apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@"; }
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

# What is missing, although the guest may be made: Ironic makes CDs as well.
missing=()
for each in busybox=busybox-static depmod=kmod mkisofs=genisoimage dropbear=dropbear-bin ssh=openssh-client; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${each%=*}" >/dev/null || missing+=("${each#*=}")
done
[ -e /usr/lib/ISOLINUX/isolinux.bin ] || missing+=(isolinux)
[ -e /usr/lib/syslinux/modules/bios/ldlinux.c32 ] || missing+=(syslinux-common)
[ ${#missing[@]} = 0 ] || step "${missing[*]}" apt_install "${missing[@]}"
if [ -e "$images/boot.iso" ]; then
  ln -sfn "${images##*/}" "$tools/metal-images"
  exit 0
fi

work=$images/work
trap 'rm -rf "$work"' EXIT
rm -rf "$work" && mkdir -p "$work/root" "$work/packages"

make_guest() {
  local kernel release guest=$work/guest module library
  kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | tail -1)
  cd "$work/packages"
  apt-get download "$kernel" || { update && apt-get download "$kernel"; }
  dpkg-deb -x "$kernel"_*.deb "$work/root"
  release=$(ls "$work/root/lib/modules")
  PATH=$PATH:/sbin depmod -b "$work/root" "$release"
  mkdir -p "$guest"/{bin,sbin,proc,sys,dev,run,tmp,root/.ssh,etc/dropbear,etc/acpi/PWRF,modules,config,var/log}

  # The modules with those that they need, in the order in which they are loaded.
  for module in virtio_pci virtio_net virtio_blk virtio_rng xhci_pci usb_storage sd_mod isofs evdev button; do
    PATH=$PATH:/sbin modprobe --dirname "$work/root" --set-version "$release" --show-depends "$module" | sed -n 's|^insmod \([^ ]*\).*|\1|p'
  done | awk '!seen[$0]++' | while read -r module; do
    cp "$module" "$guest/modules/"
    echo "${module##*/}" >>"$guest/modules/order"
  done

  cp "$(command -v busybox)" "$guest/bin/busybox"
  cp "$(PATH=$PATH:/usr/sbin command -v dropbear)" "$(command -v dropbearkey)" "$guest/bin/"
  for module in dropbear dropbearkey; do ldd "$guest/bin/$module"; done | grep -o '/[^ ]*' | sort -u | while read -r library; do
    [ ! -f "$library" ] || { mkdir -p "$guest${library%/*}" && cp -L "$library" "$guest$library"; }
  done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$guest/etc/passwd"
  echo 'root:x:0:' >"$guest/etc/group"
  echo /bin/sh >"$guest/etc/shells"
  cat >"$guest/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox --install -s /bin
export PATH=/bin:/sbin HOME=/root
# Whatever the kernel's console is: Ironic chooses it for the images that it makes.
[ ! -c /dev/ttyS0 ] || exec >/dev/ttyS0 2>&1
mkdir -p /dev/pts && mount -t devpts pts /dev/pts
while read -r m; do
  case $m in usb-storage.ko) insmod /modules/$m delay_use=0 ;; *) insmod /modules/$m ;; esac
done </modules/order 2>/dev/null # some are for other processors
chmod 700 /root /root/.ssh

# The config drive: a disk whose label is config-2. A USB stick is found some time after the start:
# 20 s are enough for one that is there, and 3 s to see that nothing is.
tries=0 wait=30
until [ -e /config/openstack ] || [ $tries -ge $wait ]; do
  for stick in /sys/bus/usb/devices/[0-9]-[0-9]; do [ ! -e "$stick" ] || wait=200; done
  for disk in /sys/block/sd* /sys/block/vd* /sys/block/sr*; do
    disk=/dev/${disk##*/}
    [ "$(dd if="$disk" bs=1 skip=32808 count=8 2>/dev/null)" = config-2 ] && mount -t iso9660 -o ro "$disk" /config && echo "GUEST config-drive $disk" && break
  done
  [ -e /config/openstack ] || sleep 0.1
  tries=$((tries + 1))
done
latest=/config/openstack/latest
field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" "$2" 2>/dev/null | head -n 1; }
hostname "$(field hostname $latest/meta_data.json)"
echo "GUEST name $(hostname)"
sed 's/.*"public_keys": *{\([^}]*\)}.*/\1/' $latest/meta_data.json 2>/dev/null | grep -o '\(ssh\|ecdsa\)-[a-z0-9-]* [A-Za-z0-9+/=]*' >/root/.ssh/authorized_keys
chmod 600 /root/.ssh/authorized_keys
echo "GUEST keys $(wc -l </root/.ssh/authorized_keys)"

ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
  ip link set eth0 up
  address=$(field ip_address $latest/network_data.json)
  if [ -n "$address" ]; then
    ip addr add "$address/$(field netmask $latest/network_data.json)" dev eth0
  else
    printf '#!/bin/sh\n[ "$1" = bound ] && ip addr add "$ip/${mask:-24}" dev "$interface"\nexit 0\n' >/bin/bound
    chmod +x /bin/bound
    udhcpc -i eth0 -b -x "hostname:$(hostname)" -s /bin/bound -t 5 >/dev/null
  fi
  echo "GUEST address $(ip -4 -o addr show dev eth0 | sed 's/.*inet \([^ ]*\).*/\1/')"
fi

# A script among the user's data is run, as cloud-init does.
if [ "$(head -c 2 $latest/user_data 2>/dev/null)" = '#!' ]; then
  cp $latest/user_data /tmp/user_data && chmod +x /tmp/user_data && /tmp/user_data 2>&1 | sed 's/^/GUEST user-data: /'
fi

dropbearkey -t ed25519 -f /etc/dropbear/dropbear_ed25519_host_key 2>/dev/null | sed -n 's/^\(ssh-ed25519 [^ ]*\).*/GUEST host-key \1/p'
dropbear -s -E -r /etc/dropbear/dropbear_ed25519_host_key 2>/var/log/dropbear

# Whoever presses the power button gets a shutdown.
printf '#!/bin/sh\nsync\npoweroff -f\n' >/sbin/shutdown && chmod +x /sbin/shutdown
ln -s /sbin/shutdown /etc/acpi/PWRF/00000080
acpid -d >/dev/null 2>&1 &
echo "GUEST up $(cut -d' ' -f1 /proc/uptime)"
exec setsid cttyhack sh
INIT
  chmod +x "$guest/init"
  (cd "$guest" && find . | busybox cpio -o -H newc | gzip -9) >"$work/initrd.gz"

  mkdir -p "$work/cd/isolinux"
  cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/cd/isolinux/"
  cp "$work"/root/boot/vmlinuz-* "$work/cd/vmlinuz"
  cp "$work/initrd.gz" "$work/cd/initrd.gz"
  printf 'DEFAULT linux\nLABEL linux\n  LINUX /vmlinuz\n  INITRD /initrd.gz\n  APPEND console=ttyS0 quiet mitigations=off net.ifnames=0\n' >"$work/cd/isolinux/isolinux.cfg"
  mkisofs -quiet -r -V METAL -o "$work/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$work/cd"
  cp "$work/cd/vmlinuz" "$work/initrd.gz" "$images/"
  mv "$work/boot.iso" "$images/boot.iso"
}

step "a guest for bare metal" make_guest
ln -sfn "${images##*/}" "$tools/metal-images"
