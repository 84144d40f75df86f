#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The static command beside the one that is linked as usual: it needs nothing of the machine, and says and writes the
# same of one store. run.sh STATIC BACKSTAY APPLICATION, which takes checkpoints into a store.
set -euo pipefail
cd "$(dirname "$0")/../.."

static=$(realpath "$1") usual=$(realpath "$2") application=$(realpath "$3")
work=$(mktemp -d "${TMPDIR:-/tmp}/backstay-static.XXXXXX")
trap 'rm -rf "$work"' EXIT
. tests/check.sh
mkdir "$work/store"
export BACKSTAY_STORE_PATH="$work/store" BACKSTAY_JOB=static

# Neither a loader nor a library, in the file's own words.
nothing_is_loaded() {
    readelf -hl "$static" >"$work/headers" && grep "Type: .*\(EXEC\|DYN\)" "$work/headers" && ! grep INTERP "$work/headers" &&
        ! readelf -d "$static" | grep NEEDED
}

# The only file of a root folder of its own.
alone() {
    mkdir "$work/root" && cp "$static" "$work/root/backstay" &&
        chroot "$work/root" /backstay --version | grep "^backstay "
}

version() {
    [ "$("$static" --version | cut -d ';' -f 1)" = "$("$usual" --version | cut -d ';' -f 1)" ]
}

# alike NAME WORDS...: both say the same, on both channels, and end alike.
alike() {
    local name=$1 which status
    shift
    for which in static usual; do
        status=0
        "${!which}" "$@" >"$work/$name.$which" 2>&1 || status=$?
        echo "ended with $status" >>"$work/$name.$which"
    done
    [ "$(wc -l <"$work/$name.usual")" -gt 1 ] && diff "$work/$name.usual" "$work/$name.static"
}

views() {
    local words
    for words in "ls" "ls --json" "inspect" "inspect --json" "inspect -v cells" "verify" "timeline --json" "changes" \
        "plan" "completions bash" "inspect -c 99"; do
        alike "${words// /_}" $words || return 1
    done
}

exports() {
    local which
    for which in static usual; do
        "${!which}" export -v cells -o "$work/$which.npy" && "${!which}" export -o "$work/$which.npz" || return 1
    done
    [ "$(stat -c %s "$work/usual.npy")" -gt 80000 ] && cmp "$work/usual.npy" "$work/static.npy" &&
        cmp "$work/usual.npz" "$work/static.npz"
}

# What it says depends on the machine: here that it asks it at all, and that its lines are those of the other.
doctor() {
    local which
    for which in static usual; do
        "${!which}" doctor --json >"$work/doctor.$which" || [ $? = 1 ] || return 1
        python3 -c 'import json, sys
print(*(check["check"] for check in json.load(open(sys.argv[1]))["checks"]), sep="\n")' "$work/doctor.$which" \
            >"$work/checks.$which" || return 1
    done
    [ -s "$work/checks.usual" ] && diff "$work/checks.usual" "$work/checks.static"
}

# It supervises a program that is linked as usual, with agents of its own.
run() {
    BACKSTAY_JOB=run "$static" run -- "$application" | grep "every cell is 20"
}

check "a store is made by the library that is linked as usual" "$application"
check "neither a loader nor a library is named in it" nothing_is_loaded
check "it runs where there is no other file" alone
check "the version" version
check "what is said of a store" views
check "exports, byte for byte" exports
check "doctor" doctor
check "run" run
check "what it removes is gone" bash -c '"$1" rm --yes static && [ -z "$(find "$2" -name store.backstay -path "*/store/static/*")" ]' - \
    "$static" "$work/store"
finish
