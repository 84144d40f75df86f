#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# test-deb.sh DEBS [SUITE...]: installs the packages in a fresh Debian of each suite (bookworm, trixie), uses them there
# and purges them; nothing of them stays. Needs root, and debootstrap's mirror.
set -euo pipefail
cd "$(dirname "$0")/.."

debs=$(realpath "$1")
shift
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
work=$(mktemp -d "${TMPDIR:-/tmp}/backstay-deb.XXXXXX")
trap 'for mounted in "$work"/*/proc; do umount "$mounted" 2>/dev/null || true; done; rm -rf "$work"' EXIT
. tests/check.sh

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }

fresh() {
    # Documentation too, which small images leave out.
    debootstrap --variant=minbase --include=gcc,libc6-dev,pkg-config,man-db "$suite" "$root" &&
        mount -t proc proc "$root/proc" && cp "$debs"/*.deb "$root/tmp/" && cp tests/install/single.c "$root/tmp/" &&
        inside dpkg-query -W -f '${Package}\n' | sort >"$work/before"
}

installed() { inside sh -c 'apt-get -qq update && apt-get -qq install -y --no-install-recommends /tmp/*.deb'; }

used() {
    inside sh -ec '
        cd /tmp
        backstay --version | grep "^backstay "
        cc -std=c99 -O2 -Wall -Wextra -Werror -o single single.c $(pkg-config --cflags --libs backstay)
        readelf -d single | grep "libbackstay.so.0"
        BACKSTAY_STORE_PATH=/tmp BACKSTAY_JOB=deb ./single
        man 7 backstay | grep -q BACKSTAY_REDUNDANCY
        man 3 backstay_checkpoint | grep -q "Takes a checkpoint"
        man backstay-ls >/dev/null
    '
}

python() {
    inside python3 -c '
import backstay, array
for start in (1, 2):
    with backstay.open(job="of-python", store_path="/tmp") as session:
        cells = array.array("d", [0.0]) * 1000
        session.protect("cells", cells)
        try:
            session.restore()
        except backstay.NoCheckpoint:
            assert start == 1
        assert cells[7] == start - 1, cells[7]
        cells[7] += 1
        session.checkpoint()
' && inside backstay ls /tmp | grep of-python
}

purged() {
    inside sh -c 'apt-get -qq purge -y backstay libbackstay0 libbackstay-dev python3-backstay && apt-get -qq autoremove --purge -y' &&
        [ -z "$(find "$root"/usr "$root"/etc "$root"/var/lib/dpkg/info -iname '*backstay*')" ]
}

for suite in "${suites[@]}"; do
    root="$work/$suite"
    check "$suite: a fresh system" fresh
    check "$suite: installed" installed
    check "$suite: the command, a program, manual pages" used
    check "$suite: Python" python
    check "$suite: purged, nothing stays" purged
    umount "$root/proc" 2>/dev/null || true
    rm -rf "$root"
done
finish
