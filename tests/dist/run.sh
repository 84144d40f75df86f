#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A release made twice, in two folders, under two umasks, time zones and languages: the same bytes. Then it is unpacked,
# built and installed where there is no network and no cache of cargo, and a program is built and run against it.
# Needs root, or leave to make namespaces; cyclonedx-python-lib comes from PyPI. Takes a release build.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/backstay-dist-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
venv=target/dist-venv
commit=$(git rev-parse HEAD)
. tests/check.sh

twice() {
    git clone --quiet . "$work/clone" && git -C "$work/clone" checkout --quiet "$commit" || return 1
    (umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 python3 make/dist.py "$work/one") &&
        (cd "$work/clone" && umask 002 && TZ=UTC LC_ALL=C python3 make/dist.py "$work/two") || return 1
    diff -r "$work/one" "$work/two"
}

sums() { (cd "$work/one" && sha256sum --check --strict SHA256SUMS); }

bill() {
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    "$venv/bin/pip" --quiet --disable-pip-version-check install 'cyclonedx-python-lib[json-validation]==11.*' || return 1
    "$venv/bin/python" make/dist.py --validate "$work"/one/*.cdx.json || return 1
    # It does find what is wrong.
    sed 's/"bomFormat": "CycloneDX"/"bomFormat": "Cyclone"/' "$work"/one/*.cdx.json >"$work/wrong.json"
    ! "$venv/bin/python" make/dist.py --validate "$work/wrong.json"
}

nobody_and_one_time() {
    [ "$(tar -tvf "$work"/one/*.tar.xz --numeric-owner | awk '{print $2}' | sort -u)" = 0/0 ] &&
        [ "$(tar -tvf "$work"/one/*.tar.xz --full-time | awk '{print $4, $5}' | sort -u | wc -l)" = 1 ]
}

# Neither a network nor what cargo has already.
offline() {
    local namespaces=(unshare --net)
    [ "$(id -u)" = 0 ] || namespaces=(unshare --net --map-root-user)
    tar -xf "$work"/one/*.tar.xz -C "$work" && mkdir "$work/home" || return 1
    env -u CARGO_TARGET_DIR CARGO_HOME="$work/home" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}" \
        "${namespaces[@]}" make --no-print-directory -C "$work"/backstay-*/ install PREFIX="$work/prefix" DESTDIR=
}

installed() {
    export LD_LIBRARY_PATH="$work/prefix/lib" PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
    "$work/prefix/bin/backstay" --version | grep "commit ${commit:0:12};" &&
        cc -std=c99 -o "$work/single" tests/install/single.c $(pkg-config --cflags --libs backstay) &&
        BACKSTAY_STORE_PATH="$work" BACKSTAY_JOB=dist "$work/single"
}

check "the same bytes twice" twice
check "SHA256SUMS" sums
check "files of nobody, of one time" nobody_and_one_time
check "the list of what is in it is CycloneDX" bill
check "built and installed with no network" offline
check "it says its commit, and a program runs" installed
finish
