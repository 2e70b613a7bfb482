#!/bin/bash
# Boots a real systemd as process 1 of namespaces of its own, with no units but empty ones: systemd_lab.sh FOLDER
set -e
mkdir -p "$1/cgroup" "$1/units"
mount -t cgroup2 cgroup2 "$1/cgroup"
# Its cgroup namespace begins here: systemd takes all processes below the root that it sees for its own.
mkdir "$1/cgroup/$2"
echo $$ > "$1/cgroup/$2/cgroup.procs"
for unit in default.target basic.target sysinit.target shutdown.target system.slice -.slice; do
    printf '[Unit]\nDescription=empty\n' > "$1/units/$unit"
done
export container=lxc SYSTEMD_UNIT_PATH="$1/units"
exec unshare --pid --fork --mount --uts --cgroup --ipc bash -ec '
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /run
    umount -l /sys/fs/cgroup 2>/dev/null || true
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for systemd in /usr/lib/systemd/systemd /lib/systemd/systemd; do
        [ ! -x $systemd ] || exec $systemd --system --log-target=null
    done'
