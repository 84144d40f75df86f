#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# strip.sh shared FROM TO: installs a program or shared library; its debug information goes to .debug/ beside
# it, where debuggers look. strip.sh versioned FROM TO MAP SONAME LIBRARIES: the same, of a shared library linked from
# the archive FROM, with the symbols of MAP under their versions; rustc's own link of it gives them none, and linkers take
# no second map beside the one that rustc has. strip.sh static FROM TO: an archive of one object that gives out only the
# interface: what it contains of other libraries cannot meet the program's own copies of them.
set -eu

objcopy="${OBJCOPY:-objcopy}"
kind=$1 from=$2 to=$3

case "$kind" in
shared)
    debug="$(dirname "$to")/.debug"
    name="$(basename "$to").debug"
    mkdir -p "$debug"
    "$objcopy" --only-keep-debug "$from" "$debug/$name"
    chmod 644 "$debug/$name"
    # Another file takes the name: a program that runs from the old one goes on with it.
    "$objcopy" --strip-unneeded --add-gnu-debuglink="$debug/$name" "$from" "$debug/.new"
    chmod 755 "$debug/.new"
    mv -f "$debug/.new" "$to"
    ;;
versioned)
    map=$4 soname=$5
    shift 5
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Nothing of an archive is taken that nobody asks for.
    asked=$(sed -n 's/^ *\(backstay_[a-z_0-9]*\);$/-Wl,-u,\1/p' "$map")
    "${CC:-cc}" -shared -o "$work/$soname" -Wl,-soname,"$soname" -Wl,--version-script="$map" -Wl,--gc-sections -Wl,-O1 \
        -Wl,-z,relro,-z,now -Wl,--no-undefined -Wl,--as-needed ${LDFLAGS:-} $asked "$from" "$@"
    "$0" shared "$work/$soname" "$to"
    ;;
static)
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # Without the bitcode that Rust's own objects carry: linkers with plugins for it stumble over its version.
    "$objcopy" --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd "$from" "$work/plain.a"
    "${LD:-ld}" -r --whole-archive "$work/plain.a" -o "$work/all.o"
    "$objcopy" --wildcard --keep-global-symbol='backstay_*' "$work/all.o" "$work/backstay.o"
    rm -f "$to"
    "${AR:-ar}" rcs "$to" "$work/backstay.o"
    chmod 644 "$to"
    ;;
esac
