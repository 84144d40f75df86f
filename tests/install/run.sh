#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Installs to a temporary prefix with a space in its name, moves it, and builds and runs programs
# against it: through pkg-config and through CMake, C99 and C++17, Open MPI and MPICH, shared and static.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d "${TMPDIR:-/tmp}/backstay install.XXXXXX")
trap 'rm -rf "$work"' EXIT
export BACKSTAY_JOB="install-test"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
strict=(-O2 -Wall -Wextra -Werror -pedantic)
. tests/check.sh

make --no-print-directory install PREFIX=/opt DESTDIR="$work/built"
cp -a "$work/built" "$work/whole"
prefix="$work/prefix"
mv "$work/built/opt" "$prefix"
lib="$prefix/lib"
export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"

# flags [pkg-config options]: into the array `found`. The prefix has a space, which pkg-config escapes.
flags() {
    eval "found=($(pkg-config "$@" backstay))"
}

# run_twice MPI PROGRAM: the first start is stopped by its own limit, the second goes on.
run_twice() {
    local mpi=$1 program=$2
    export BACKSTAY_STORE_PATH="$work/store of $(basename "$program")"
    mkdir "$BACKSTAY_STORE_PATH"
    "mpirun.$mpi" -n 2 "$program" 20 &&
        "mpirun.$mpi" -n 2 "$program" 40 | tee "$work/second" &&
        grep -q "from step 20 to step 40" "$work/second"
}

with_pkg_config() {
    local mpi=$1 language=$2 compiler=$3
    local program="$work/pkg-config-$mpi-$language"
    local source=tests/install/counter.c
    [ "$language" = c99 ] || source=tests/install/counter_cxx.cpp
    flags --cflags --libs
    "$compiler" "-std=$language" "${strict[@]}" -o "$program" "$source" "${found[@]}" &&
        run_twice "$mpi" "$program"
}

collectives_in_pieces() {
    local mpi=$1
    flags --cflags --libs
    "mpicc.$mpi" -std=c99 "${strict[@]}" -o "$work/pieces-$mpi" tests/install/pieces.c "${found[@]}" &&
        "mpirun.$mpi" -n 3 "$work/pieces-$mpi"
}

finalized_first() {
    local mpi=$1
    export BACKSTAY_STORE_PATH="$work/store of finalized-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    flags --cflags --libs
    "mpicc.$mpi" -std=c99 "${strict[@]}" -o "$work/finalized-$mpi" tests/install/finalized.c "${found[@]}" &&
        "mpirun.$mpi" -n 2 "$work/finalized-$mpi"
}

example() {
    local mpi=$1 name=$2
    flags --cflags --libs
    "mpicc.$mpi" -std=c99 "${strict[@]}" -o "$work/$name-$mpi" "examples/$name/$name.c" "${found[@]}" -lm
}

# Killed after its first checkpoint, which leaves time for a person to do so, and run again.
quickstart() {
    local mpi=$1
    export BACKSTAY_STORE_PATH="$work/store of quickstart-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    example "$mpi" quickstart || return 1
    "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" 100 >"$work/first" 2>&1 &
    local job=$!
    for _ in $(seq 300); do
        ! "$prefix/bin/backstay" ls "$BACKSTAY_STORE_PATH" 2>/dev/null | grep complete >/dev/null || break
        sleep 0.1
    done
    kill -0 "$job" && kill -9 $(pgrep -P "$job") $(pgrep -f "$work/quickstart-$mpi 100") "$job" || return 1
    wait "$job" 2>/dev/null || true
    "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" 30 >"$work/second" 2>&1
    # It has finished: the next run is another one.
    "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" 5 >"$work/third" 2>&1
    cat "$work/first" "$work/second" "$work/third"
    grep "restored checkpoint" "$work/second" && [ "$(grep -c "every cell is 30" "$work/second")" = 1 ] &&
        grep "finished with checkpoint .*: this start begins anew" "$work/third" && grep "every cell is 5" "$work/third"
}

# Killed between its sets and run again: the state is that of the last set, and the log has each step once.
files_killed() {
    local mpi=$1
    local log="$work/files log $mpi"
    export BACKSTAY_STORE_PATH="$work/store of files-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    example "$mpi" files || return 1
    "mpirun.$mpi" -n 3 "$work/files-$mpi" 1000 "$log" >"$work/first" 2>&1 &
    local job=$!
    for _ in $(seq 300); do
        ! "$prefix/bin/backstay" ls "$BACKSTAY_STORE_PATH" 2>/dev/null | grep "complete" >/dev/null || break
        sleep 0.1
    done
    # The set is written out while the job runs.
    "$prefix/bin/backstay" export --files -o "$work/taken $mpi" "$BACKSTAY_STORE_PATH" || return 1
    [ "$(find "$work/taken $mpi" -name "rank_*.dat" | wc -l)" = 3 ] && [ -s "$work/taken $mpi/log" ] || return 1
    kill -0 "$job" && kill -9 $(pgrep -P "$job") $(pgrep -f "$work/files-$mpi 1000") "$job" || return 1
    wait "$job" 2>/dev/null || true
    "mpirun.$mpi" -n 3 "$work/files-$mpi" 60 "$log" >"$work/second" 2>&1
    cat "$work/first" "$work/second"
    grep "begins with step [1-9]" "$work/second" && grep "every cell is right" "$work/second" &&
        [ "$(cat "$log")" = "$(seq -f "step %.0f" 60)" ]
}

# A type that there is not: refused at the first run, by each rank, and the job ends.
quickstart_of_a_wrong_type() {
    local mpi=$1
    sed 's/BACKSTAY_F64, cell/99, cell/' examples/quickstart/quickstart.c >"$work/wrong.c"
    flags --cflags --libs
    "mpicc.$mpi" -std=c99 "${strict[@]}" -o "$work/wrong-$mpi" "$work/wrong.c" "${found[@]}" || return 1
    # A launcher that ends the others when one exits may lose what they said: then once more.
    local turn
    for turn in 1 2 3; do
        ! BACKSTAY_STORE_PATH="$work" BACKSTAY_JOB=wrong timeout 60 "mpirun.$mpi" -n 2 "$work/wrong-$mpi" \
            >"$work/said" 2>&1 || return 1
        grep "type 99 is none of" "$work/said" && return
    done
    cat "$work/said"
    return 1
}

# Nothing of the quickstart is marked: what a job-wide setting would miss is found all the same.
quickstart_marked() {
    local mpi=$1
    export BACKSTAY_STORE_PATH="$work/store of quickstart-marked-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    BACKSTAY_TRACKING=marked "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" 20 | grep "every cell is 20" &&
        BACKSTAY_TRACKING=marked "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" 20 | grep "every cell is 20"
}

# 4 processes to the end; or 3 to an earlier end, 6 in blocks on from there, then 2: the same bytes. Each of these has
# finished: it is gone back to by its number.
heat2d_on_other_numbers() {
    local mpi=$1
    local heat=("$work/heat2d-$mpi" --rows 300 --cols 410 --interval 50 --progress)
    mkdir "$work/whole-$mpi" "$work/changed-$mpi"
    example "$mpi" heat2d || return 1
    export BACKSTAY_STORE_PATH="$work/whole-$mpi"
    "mpirun.$mpi" -n 4 "${heat[@]}" --steps 500 --output "$work/whole.npy" || return 1
    export BACKSTAY_STORE_PATH="$work/changed-$mpi"
    "mpirun.$mpi" -n 3 "${heat[@]}" --steps 180 &&
        BACKSTAY_RESTORE_CHECKPOINT=4 "mpirun.$mpi" -n 6 "${heat[@]}" --steps 320 --blocks | tee "$work/second" &&
        grep -q "restored checkpoint 4 of 3 processes: step 180" "$work/second" &&
        BACKSTAY_RESTORE_CHECKPOINT=8 "mpirun.$mpi" -n 2 "${heat[@]}" --steps 500 --output "$work/changed.npy" |
        tee "$work/third" && grep -q "restored checkpoint 8 of 6 processes: step 320" "$work/third" &&
        cmp "$work/whole.npy" "$work/changed.npy"
}

# Killed in its course on 2 processes and gone on with on 4, beside 3 that nobody disturbed: the same atoms, to the last bit.
atoms_killed_on_another_number() {
    local mpi=$1
    mkdir "$work/atoms-killed-$mpi" "$work/atoms-whole-$mpi"
    example "$mpi" atoms || return 1
    export BACKSTAY_STORE_PATH="$work/atoms-killed-$mpi"
    "mpirun.$mpi" -n 2 "$work/atoms-$mpi" 1000000 >"$work/first" 2>&1 &
    local job=$! newest=
    for _ in $(seq 300); do
        newest=$("$prefix/bin/backstay" ls --json "$BACKSTAY_STORE_PATH" 2>/dev/null |
            python3 -c 'import json, sys
print(max((c["number"] for c in json.load(sys.stdin).get("checkpoints", []) if c["complete"]), default=0))' || true)
        [ "${newest:-0}" -lt 2 ] || break
        sleep 0.1
    done
    kill -0 "$job" && kill -9 $(pgrep -P "$job") $(pgrep -f "$work/atoms-$mpi 1000000") "$job" || return 1
    wait "$job" 2>/dev/null || true
    # It has gone on until it was killed.
    newest=$("$prefix/bin/backstay" ls --json "$BACKSTAY_STORE_PATH" |
        python3 -c 'import json, sys
print(max(c["number"] for c in json.load(sys.stdin)["checkpoints"] if c["complete"]))')
    local steps=$((10 * newest + 25))
    "mpirun.$mpi" -n 4 "$work/atoms-$mpi" "$steps" "$work/atoms-killed-$mpi.out" | tee "$work/second" &&
        grep -q "of 2 processes: step $((10 * newest))" "$work/second" || return 1
    export BACKSTAY_STORE_PATH="$work/atoms-whole-$mpi"
    "mpirun.$mpi" -n 3 "$work/atoms-$mpi" "$steps" "$work/atoms-whole-$mpi.out" &&
        [ -s "$work/atoms-whole-$mpi.out" ] && cmp "$work/atoms-whole-$mpi.out" "$work/atoms-killed-$mpi.out"
}

with_cmake() {
    local mpi=$1
    local build="$work/cmake-$mpi"
    cmake -S tests/install -B "$build" -DCMAKE_PREFIX_PATH="$work/prefix" \
        -DMPI_C_COMPILER="mpicc.$mpi" -DMPI_CXX_COMPILER="mpicxx.$mpi" &&
        cmake --build "$build" &&
        for program in counter_c counter_cxx counter_static; do
            cp "$build/$program" "$build/$program-$mpi" && run_twice "$mpi" "$build/$program-$mpi" || return 1
        done
}

# As docs/guide/c-mpi.md has it: find_package without components, then backstay::mpi.
with_plain_cmake() {
    local mpi=$1
    local build="$work/plain-$mpi"
    cmake -S tests/install/plain -B "$build" -DCMAKE_PREFIX_PATH="$work/prefix" \
        -DMPI_C_COMPILER="mpicc.$mpi" &&
        cmake --build "$build" && cp "$build/counter" "$build/plain-$mpi" && run_twice "$mpi" "$build/plain-$mpi"
}

# Where CMake finds no MPI: a program without one is built all the same, COMPONENTS mpi is refused.
cmake_without_mpi() {
    local build="$work/no-mpi"
    cmake -S tests/install/plain -B "$build" -DCMAKE_PREFIX_PATH="$work/prefix" \
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DWITH_MPI=OFF &&
        cmake --build "$build" && BACKSTAY_STORE_PATH="$work" "$build/single" || return 1
    ! cmake -S tests/install -B "$build-components" -DCMAKE_PREFIX_PATH="$work/prefix" \
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
}

static_without_mpi() {
    flags --cflags --libs-only-other --static
    local cflags=("${found[@]}")
    eval "local private=($(sed -n 's/^Libs.private: //p' "$PKG_CONFIG_PATH/backstay.pc"))"
    cc -std=c99 "${strict[@]}" -o "$work/single" tests/install/single.c "${cflags[@]}" \
        "$lib/libbackstay.a" "${private[@]}" &&
        BACKSTAY_STORE_PATH="$work" "$work/single"
}

# As distributions have it: libraries in a folder of the architecture.
libraries_deeper() {
    local deep="$work/deep/opt"
    make --no-print-directory install CARGO=true PREFIX=/opt LIBDIR=lib/of-it DESTDIR="$work/deep" || return 1
    eval "local flags=($(PKG_CONFIG_PATH="$deep/lib/of-it/pkgconfig" pkg-config --cflags --libs backstay))"
    cc -std=c99 "${strict[@]}" -o "$work/deeper" tests/install/single.c "${flags[@]}" || return 1
    cmake -S tests/install/plain -B "$work/deep-cmake" -Dbackstay_DIR="$deep/lib/of-it/cmake/backstay" \
        -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DWITH_MPI=OFF && cmake --build "$work/deep-cmake" || return 1
    local program
    for program in "$work/deeper" "$work/deep-cmake/single"; do
        BACKSTAY_STORE_PATH="$work/deep" LD_LIBRARY_PATH="$deep/lib/of-it" "$program" || return 1
    done
}

soname() {
    readelf -d "$lib/libbackstay.so" | grep 'SONAME.*\[libbackstay\.so\.0\]' >/dev/null
}

no_mpi_inside() {
    ! readelf -d "$lib/libbackstay.so" | grep -i 'NEEDED.*mpi'
}

is_below_kb() { [ "$(stat -Lc %s "$1")" -lt "$(($2 * 1000))" ]; }

# Debuggers find what is not in the files: by name, beside them. The command has the engine for the routing agent.
sizes() {
    is_below_kb "$lib/libbackstay.so" 8000 && is_below_kb "$prefix/bin/backstay" 12500 &&
        is_below_kb "$lib/backstay/libbackstay_preload.so" 1000 && is_below_kb "$lib/libbackstay.a" 40000 &&
        readelf -S "$prefix/bin/.debug/backstay.debug" | grep debug_line &&
        readelf -S "$lib"/.debug/libbackstay.so.*.debug | grep debug_line &&
        readelf -x .gnu_debuglink "$lib/libbackstay.so" | grep libback
}

# Nothing of other libraries meets a program's own copies of them.
only_its_own_symbols() {
    nm -g --defined-only "$lib/libbackstay.a" 2>/dev/null | awk 'NF == 3 {print $3}' >"$work/symbols"
    grep -qx backstay_checkpoint "$work/symbols" && ! grep -v '^backstay_' "$work/symbols"
}

# What programs rely on: each call under its version and no other symbol, and where members of structures lie.
interface() {
    local map=bindings/c/backstay.map
    sed -n 's/^\(BACKSTAY_[0-9.]*\) {$/\1/p; s/^ *\(backstay_[a-z_0-9]*\);$/\1/p' "$map" |
        awk '/^BACKSTAY_/ {version = $1; print version; next} {print $1 "@@" version}' | LC_ALL=C sort >"$work/wanted"
    nm -D --defined-only "$lib/libbackstay.so" | awk '{print $3}' | LC_ALL=C sort >"$work/found"
    diff "$work/wanted" "$work/found" || return 1
    flags --cflags
    python3 bindings/c/reference.py --layout >"$work/layout.c" &&
        cc -std=c99 -O2 -Wall -Werror -o "$work/layout" "$work/layout.c" "${found[@]}" && "$work/layout" >"$work/layout.txt" &&
        diff bindings/c/layout.txt "$work/layout.txt"
}

command_line() {
    "$prefix/bin/backstay" --version | grep -E '^backstay [0-9.]+ \(commit [0-9a-f]{12};' &&
        bash -c '. "$1" && complete -p backstay' - "$prefix/share/bash-completion/completions/backstay" &&
        grep -q '^#compdef backstay' "$prefix/share/zsh/site-functions/_backstay" &&
        grep -q 'complete -c backstay' "$prefix/share/fish/vendor_completions.d/backstay.fish" || return 1
    local name
    for name in $("$prefix/bin/backstay" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\+\) .*/\1/p' | grep -vx help); do
        grep -q "^.SH NAME" "$prefix/share/man/man1/backstay-$name.1" || { echo "no page of $name"; return 1; }
    done
    grep -q "backstay.*ls(1)" "$prefix/share/man/man1/backstay.1"
}

# Every call of the headers has a page that groff finds nothing wrong with; so has the overview, with every setting.
manual_pages() {
    local man="$prefix/share/man" name
    for name in $(sed -n 's/^\(int32_t\|void\|const char\|struct [a-z_]*\) \**\(backstay_[a-z_]*\)(.*/\2/p' "$prefix/include/backstay/backstay.h"); do
        grep -q "^\.SH SYNOPSIS" "$man/man3/$name.3" || { echo "no page of $name"; return 1; }
    done
    for name in $(sed -n 's/^| `[a-z_]*` .*| `\(BACKSTAY_[A-Z_]*\)` | \(the same\|may differ\) |$/\1/p' docs/reference/config.md); do
        grep -q "^\.B $name, " "$man/man7/backstay.7" || { echo "backstay(7) has not $name"; return 1; }
    done
    local page said
    for page in "$man"/man[37]/*; do
        said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        [ -z "$said" ] || { echo "$page: $said"; return 1; }
    done
}

uninstall() {
    make --no-print-directory uninstall PREFIX=/opt DESTDIR="$work/whole" && ! find "$work/whole" -type f -o -type l | grep .
}

check "sizes, and debug information apart" sizes
check "libbackstay.a gives out its interface only" only_its_own_symbols
check "versions of symbols, layout of structures" interface
check "the command, its pages and completions" command_line
check "pages of the library and the overview" manual_pages
check "uninstall leaves no file" uninstall
check "libraries in a folder of the architecture" libraries_deeper
check "soname is libbackstay.so.0" soname
check "the library needs no MPI" no_mpi_inside
check "static, one process, no MPI" static_without_mpi
check "CMake without MPI" cmake_without_mpi
for mpi in openmpi mpich; do
    check "pkg-config, C99, $mpi" with_pkg_config $mpi c99 "mpicc.$mpi"
    check "pkg-config, C++17, $mpi" with_pkg_config $mpi c++17 "mpicxx.$mpi"
    check "collectives in pieces, $mpi" collectives_in_pieces $mpi
    check "MPI_Finalize first, $mpi" finalized_first $mpi
    check "quickstart, $mpi" quickstart $mpi
    check "files of the program, killed, $mpi" files_killed $mpi
    check "quickstart with a wrong type, $mpi" quickstart_of_a_wrong_type $mpi
    check "quickstart, all marked, $mpi" quickstart_marked $mpi
    check "heat2d on other numbers of processes, $mpi" heat2d_on_other_numbers $mpi
    check "atoms, killed, on another number of processes, $mpi" atoms_killed_on_another_number $mpi
    check "CMake, C and C++, $mpi" with_cmake $mpi
    check "CMake, no components, $mpi" with_plain_cmake $mpi
done
finish
