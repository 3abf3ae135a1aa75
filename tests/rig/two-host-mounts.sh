#!/bin/bash
# Shared storage as two hosts see it, the quick rig: two FUSE mounts of one folder (hostfs2.c).
#
#   two-host-mounts.sh up DIR               DIR/A: the writer's host. DIR/B: the reader's. DIR/back: what
#                                           the server has.
#   two-host-mounts.sh fault DIR A|B RULES  Make operations of that host fail; no RULES: none fail.
#   two-host-mounts.sh crash DIR            Host A loses power: what it had not sent is gone. It comes
#                                           back up with an empty cache.
#   two-host-mounts.sh down DIR
#
# For `up`: LOCK=local (default) or none; ATTR, ENTRY, NEG: seconds for which host B trusts attributes,
# names and missing names (0.5, 1, 3). Needs root, /dev/fuse, and Debian's fuse3 libfuse3-dev pkg-config
# gcc libc6-dev.
set -eu
here=$(dirname "$(readlink -f "$0")")
command=${1:-help} dir=${2:-}
lock=${LOCK:-local}

mount_a() {
  "$dir/hostfs2" "$dir/back" "$dir/A" -o "attr=3,entry=3,neg=3,writeback,lock=$(cat "$dir/lock"),ctl=$dir/ctlA"
}

case $command in
  up)
    mkdir -p "$dir"/back "$dir"/A "$dir"/B
    rm -f "$dir"/ctlA "$dir"/ctlB
    echo "$lock" >"$dir/lock"
    # shellcheck disable=SC2046
    [ -x "$dir/hostfs2" ] || gcc -O2 -o "$dir/hostfs2" "$here/hostfs2.c" $(pkg-config --cflags --libs fuse3)
    mount_a
    "$dir/hostfs2" "$dir/back" "$dir/B" \
      -o "attr=${ATTR:-0.5},entry=${ENTRY:-1},neg=${NEG:-3},lock=$lock,ctl=$dir/ctlB"
    ;;
  fault)
    side=$3 rules=${4:-}
    if [ -n "$rules" ]; then
      printf '%s\n' "$rules" >"$dir/.ctl" && mv "$dir/.ctl" "$dir/ctl$side"
    else
      rm -f "$dir/ctl$side"
    fi
    ;;
  crash)
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections
    device=$(mountpoint -d "$dir/A")
    echo 1 >"/sys/fs/fuse/connections/${device#*:}/abort"
    umount -l "$dir/A"
    mount_a
    ;;
  down)
    umount -l "$dir/A" 2>/dev/null || true
    umount -l "$dir/B" 2>/dev/null || true
    ;;
  *) sed -n '2,/^set/{/^set/d;p}' "$0" ;;
esac
