#!/bin/bash
# Shared storage as two hosts see it, the real thing: three User-Mode-Linux kernels on one machine.
#
#   srv    ext4 on a block device that is a file, exported by the kernel's NFS server
#   a, b   two kernels, each with its own page, attribute and name cache, and an NFS mount
#
# The guests' root is this machine's root (hostfs), so they run the same Python and the same checkout;
# only $RIG/shared, inside a and b, is NFS. They talk over uml_switch, a Unix socket: nothing leaves the
# machine and no interface is made on it. Needs root and Debian; needs no KVM and no kernel module.
#
#   two-host-nfs.sh install             Debian packages (once)
#   two-host-nfs.sh up                  boot all three (about 10 s)
#   two-host-nfs.sh run GUEST COMMAND   run there, wait, print its output, return its status
#   two-host-nfs.sh bg GUEST COMMAND    start there, print a ticket; `wait TICKET` collects it
#   two-host-nfs.sh crash GUEST         power cut: what the guest had not sent or synced is gone
#   two-host-nfs.sh boot GUEST          start it again; srv keeps its disk
#   two-host-nfs.sh down                stop everything that `up` started
#
# For `up`: VERS (3, 4.0, 4.1, 4.2; default 4.2), MOPTS (more mount options, such as nolock, noac,
# lookupcache=none, actimeo=60, local_lock=all), MEM (384M), RIG (state folder), IMG (the server's disk;
# in /dev/shm, so that its fsync is quick), SIZE (1G), KEEP=1 (use IMG again as it is).
set -u
RIG=${RIG:-/var/lib/two-host-nfs}
VERS=${VERS:-4.2} MOPTS=${MOPTS:-} MEM=${MEM:-384M} SIZE=${SIZE:-1G}
IMG=${IMG:-/dev/shm/$(basename "$RIG")-export.img}
modules=/usr/lib/uml/modules
guests="srv a b"

install() {
  local packages=(user-mode-linux uml-utilities nfs-kernel-server nfs-common rpcbind kmod iproute2 e2fsprogs \
    gcc libc6-dev)
  dpkg -s "${packages[@]}" >/dev/null 2>&1 && return 0
  # The packages' scripts must not start an NFS server on this machine itself.
  local policy=/usr/sbin/policy-rc.d made= status
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made=1; }
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
  status=$?
  [ -z "$made" ] || rm -f $policy
  return $status
}

# Inside a guest, as process 1 ---------------------------------------------------------------------

guest() {
  local me=$1 address device try
  # shellcheck disable=SC1091
  . "$RIG/conf" # The caller's PATH and HOME: the same interpreter as outside.
  export PATH HOME
  mount -t proc proc /proc
  mount -t sysfs sys /sys
  mount -t devtmpfs dev /dev 2>/dev/null
  mkdir -p /dev/pts /dev/shm
  mount -t devpts devpts /dev/pts
  mount -t tmpfs shm /dev/shm
  mount -t tmpfs run /run
  mount -t tmpfs none /var/lib/nfs
  mkdir -p /var/lib/nfs/{sm,sm.bak,v4recovery,rpc_pipefs,nfsdcld} /run/rpcbind
  : >/var/lib/nfs/etab
  : >/var/lib/nfs/rmtab
  hostname "rig-$me"
  ip link set lo up
  modprobe -d "$RIG" af_packet 2>/dev/null
  case $me in srv) address=1 ;; a) address=2 ;; b) address=3 ;; esac
  ip addr add 10.77.0.$address/24 dev eth0
  ip link set eth0 up
  rpcbind -w
  rpc.statd
  if [ "$me" = srv ]; then
    mkdir -p /run/export
    mount -t ext4 /dev/ubda /run/export
    chmod 1777 /run/export
    modprobe -d "$RIG" nfsd
    mount -t nfsd nfsd /proc/fs/nfsd
    exportfs -o rw,no_root_squash,insecure,no_subtree_check,fsid=0,sync 10.77.0.0/24:/run/export
    rpc.mountd
    rpc.nfsd --grace-time 10 --lease-time 10 8
  else
    modprobe -d "$RIG" nfsv4
    modprobe -d "$RIG" nfsv3
    device=10.77.0.1:/
    case $VERS in 3*) device=10.77.0.1:/run/export ;; esac
    for try in $(seq 60); do
      mount -t nfs -o "vers=$VERS${MOPTS:+,$MOPTS}" $device "$RIG/shared" 2>"$RIG/$me.error" && break
      sleep 0.5
    done
    grep " $RIG/shared " /proc/mounts >"$RIG/$me.mount"
  fi
  touch "$RIG/$me.ready"
  serve "$me"
  cd /
  umount -l "$RIG/shared" 2>/dev/null
  umount /run/export 2>/dev/null
  sync
  echo o >/proc/sysrq-trigger
  sleep 5
}

serve() { # Commands come as files: NAME.cmd appears whole, by rename; NAME.out and NAME.rc answer it.
  local command name
  while [ ! -e "$RIG/stop" ]; do
    for command in "$RIG/q/$1"/*.cmd; do
      [ -e "$command" ] || continue
      name=${command%.cmd}
      mv "$command" "$name.run"
      (
        cd "$RIG/shared" 2>/dev/null || true
        bash "$name.run" >"$name.out" 2>&1
        echo $? >"$name.rc.new"
        mv "$name.rc.new" "$name.rc"
      ) &
    done
    sleep 0.05
  done
}

# Outside ------------------------------------------------------------------------------------------

boot() { # setsid: all of a guest's processes are one group, so that exactly they can be ended.
  local me=$1 address disk=
  case $me in srv) address=1 disk=ubd0=$IMG ;; a) address=2 ;; b) address=3 ;; esac
  rm -f "$RIG/$me.ready" "$RIG/$me.mount" "$RIG/q/$me"/*
  # shellcheck disable=SC2086
  LD_PRELOAD=$RIG/xstate.so setsid linux.uml "mem=$MEM" "umid=rig-$me-$$" root=/dev/root rootfstype=hostfs rootflags=/ rw \
    "init=$RIG/init-$me" "eth0=daemon,fe:fd:0a:4d:00:0$address,unix,$RIG/switch.socket" $disk \
    con=null con0=null,fd:2 >/dev/null 2>"$RIG/$me.log" </dev/null &
  echo $! >"$RIG/$me.pid"
}

await() { # Ends early when the guest has ended.
  local try
  for try in $(seq 600); do
    [ -e "$RIG/$1.ready" ] && return 0
    kill -0 "$(cat "$RIG/$1.pid")" 2>/dev/null || return 1
    sleep 0.1
  done
  return 1
}

crash() { kill -9 -- -"$(cat "$RIG/$1.pid")" 2>/dev/null; }

up() {
  local me try
  mkdir -p "$RIG"/q/{srv,a,b} "$RIG"/{shared,lib}
  rm -f "$RIG"/{stop,*.ready,*.pid,*.mount,*.error} "$RIG"/q/*/*
  ln -sfn $modules "$RIG/lib/modules"
  printf 'VERS=%q\nMOPTS=%q\nPATH=%q\nHOME=%q\n' "$VERS" "$MOPTS" "$PATH" "$HOME" >"$RIG/conf"
  cp "$(readlink -f "$0")" "$RIG/init.sh"
  gcc -O2 -shared -fPIC -o "$RIG/xstate.so" "$(dirname "$(readlink -f "$0")")/xstate.c" -ldl || return 1
  for me in $guests; do
    printf '#!/bin/bash\nRIG=%q exec /bin/bash %q guest %s\n' "$RIG" "$RIG/init.sh" "$me" >"$RIG/init-$me"
    chmod +x "$RIG/init-$me"
  done
  if [ -z "${KEEP:-}" ] || [ ! -e "$IMG" ]; then
    rm -f "$IMG"
    truncate -s "$SIZE" "$IMG"
    mkfs.ext4 -q -F "$IMG"
  fi
  uml_switch -unix "$RIG/switch.socket" </dev/zero >"$RIG/switch.log" 2>&1 &
  echo $! >"$RIG/switch.pid"
  for try in $(seq 40); do
    [ -S "$RIG/switch.socket" ] && break
    sleep 0.05
  done
  for me in $guests; do boot "$me"; done
  for me in $guests; do await "$me"; done
  [ -s "$RIG/a.mount" ] && [ -s "$RIG/b.mount" ] && return 0
  echo "The rig did not come up; see $RIG/*.log and $RIG/*.error" >&2
  return 1
}

start() {
  local me=$1 ticket
  shift
  ticket=$RIG/q/$me/$(date +%s%N).$$
  printf '%s\n' "$*" >"$ticket.new"
  mv "$ticket.new" "$ticket.cmd"
  echo "$ticket"
}

collect() {
  while [ ! -e "$1.rc" ]; do sleep 0.05; done
  cat "$1.out"
  return "$(cat "$1.rc")"
}

down() {
  local me pid try
  touch "$RIG/stop"
  for me in a b srv; do
    pid=$(cat "$RIG/$me.pid" 2>/dev/null) || continue
    rm -f "$RIG/$me.pid"
    for try in $(seq 50); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 -- -"$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
  done
  kill "$(cat "$RIG/switch.pid" 2>/dev/null)" 2>/dev/null
  rm -f "$RIG/switch.socket"
  [ -n "${KEEP:-}" ] || rm -f "$IMG"
}

case ${1:-help} in
  install | up | down) "$1" ;;
  guest | crash) "$1" "$2" ;;
  boot) boot "$2" && await "$2" ;;
  run) shift && collect "$(start "$@")" ;;
  bg) shift && start "$@" ;;
  wait) collect "$2" ;;
  *) sed -n '2,/^set/{/^set/d;p}' "$0" ;;
esac
