#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs those of the packages it is given that are missing, through apt-get; nothing that they bring is started.
set -euo pipefail
# Whether a package may start what it brings: policy-rc.d says no, for as long as packages are installed.
policy=/usr/sbin/policy-rc.d

missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null; then
    echo "setup: this is no Debian; install what ${missing[*]} contain, and run again" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as=()
elif sudo -n true 2>/dev/null; then
    as=(sudo)
else
    echo "setup: run as root: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "setup: installing ${missing[*]}"
# One at a time, of targets that run side by side.
exec 9<"$0"
flock 9
if [ ! -e "$policy" ]; then
    trap '"${as[@]}" rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' | "${as[@]}" tee "$policy" >/dev/null
    "${as[@]}" chmod 755 "$policy"
fi
"${as[@]}" apt-get update -qq
"${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
    --no-install-recommends "${missing[@]}" >/dev/null
