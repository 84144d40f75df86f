#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# deb.sh OUT: Debian packages of the commit that is checked out, in OUT, looked at by lintian.
# Cargo and rustc are what is on the path: Debian 12 and 13 have older ones than Backstay needs.
set -euo pipefail
cd "$(dirname "$0")/.."

make --no-print-directory -s debian-tools
out=$(realpath -m "$1")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
tree="$out/backstay-$version"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
BACKSTAY_COMMIT=$(git rev-parse --short=12 HEAD)
SOURCE_DATE_EPOCH=$(git show --no-patch --format=%ct HEAD)
export BACKSTAY_COMMIT SOURCE_DATE_EPOCH

rm -rf "$out"
mkdir -p "$tree"
git archive HEAD | tar -x -C "$tree"
rm -rf "$tree/debian"
cp -r packaging/debian "$tree/debian"
# -d: whether cargo and rustc are packages of Debian's does not matter.
(cd "$tree" && dpkg-buildpackage --unsigned-changes --unsigned-source --build=binary --no-check-builddeps)
rm -rf "$tree"
lintian --allow-root --fail-on error,warning --info --tag-display-limit 0 "$out"/backstay_*.changes
ls -1 "$out"/*.deb
