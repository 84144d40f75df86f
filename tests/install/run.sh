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
passed=0 failed=0

make --no-print-directory install PREFIX=/opt DESTDIR="$work/built"
mv "$work/built/opt" "$work/prefix"
lib="$work/prefix/lib"
export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib"

# check NAME COMMAND...: runs it; its output is shown if it fails.
check() {
    local name=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        sed 's/^/    /' "$work/log"
    fi
}

# flags [pkg-config options]: into the array `found`. The prefix has a space, which pkg-config escapes.
flags() {
    eval "found=($(pkg-config "$@" backstay))"
}

# run_twice MPI PROGRAM: the first life is stopped by its own limit, the second goes on.
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

allgather_in_pieces() {
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

quickstart() {
    local mpi=$1
    export BACKSTAY_STORE_PATH="$work/store of quickstart-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    example "$mpi" quickstart &&
        "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" | grep "every cell is 100" &&
        "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" | grep "every cell is 100"
}

# Nothing of the quickstart is marked: what a job-wide setting would miss is found all the same.
quickstart_marked() {
    local mpi=$1
    export BACKSTAY_STORE_PATH="$work/store of quickstart-marked-$mpi"
    mkdir "$BACKSTAY_STORE_PATH"
    BACKSTAY_TRACKING=marked "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" | grep "every cell is 100" &&
        BACKSTAY_TRACKING=marked "mpirun.$mpi" -n 2 "$work/quickstart-$mpi" | grep "every cell is 100"
}

# 4 processes to the end; or 3 for a while, 6 in blocks for a while, then 2: the same bytes.
heat2d_on_other_numbers() {
    local mpi=$1
    local heat=("$work/heat2d-$mpi" --rows 300 --cols 410 --interval 50 --progress)
    mkdir "$work/whole-$mpi" "$work/changed-$mpi"
    example "$mpi" heat2d || return 1
    export BACKSTAY_STORE_PATH="$work/whole-$mpi"
    "mpirun.$mpi" -n 4 "${heat[@]}" --steps 500 --output "$work/whole.npy" || return 1
    export BACKSTAY_STORE_PATH="$work/changed-$mpi"
    "mpirun.$mpi" -n 3 "${heat[@]}" --steps 180 &&
        "mpirun.$mpi" -n 6 "${heat[@]}" --steps 320 --blocks | tee "$work/second" &&
        grep -q "restored checkpoint 3 of 3 processes: step 150" "$work/second" &&
        "mpirun.$mpi" -n 2 "${heat[@]}" --steps 500 --output "$work/changed.npy" | tee "$work/third" &&
        grep -q "restored checkpoint 6 of 6 processes: step 300" "$work/third" &&
        cmp "$work/whole.npy" "$work/changed.npy"
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

static_without_mpi() {
    flags --cflags --libs-only-other --static
    local cflags=("${found[@]}")
    eval "local private=($(sed -n 's/^Libs.private: //p' "$PKG_CONFIG_PATH/backstay.pc"))"
    cc -std=c99 "${strict[@]}" -o "$work/single" tests/install/single.c "${cflags[@]}" \
        "$lib/libbackstay.a" "${private[@]}" &&
        BACKSTAY_STORE_PATH="$work" "$work/single"
}

soname() {
    readelf -d "$lib/libbackstay.so" | grep -q 'SONAME.*\[libbackstay\.so\.0\]'
}

no_mpi_inside() {
    ! readelf -d "$lib/libbackstay.so" | grep -i 'NEEDED.*mpi'
}

check "soname is libbackstay.so.0" soname
check "the library needs no MPI" no_mpi_inside
check "static, one process, no MPI" static_without_mpi
for mpi in openmpi mpich; do
    check "pkg-config, C99, $mpi" with_pkg_config $mpi c99 "mpicc.$mpi"
    check "pkg-config, C++17, $mpi" with_pkg_config $mpi c++17 "mpicxx.$mpi"
    check "allgather in pieces, $mpi" allgather_in_pieces $mpi
    check "MPI_Finalize first, $mpi" finalized_first $mpi
    check "quickstart, $mpi" quickstart $mpi
    check "quickstart, all marked, $mpi" quickstart_marked $mpi
    check "heat2d on other numbers of processes, $mpi" heat2d_on_other_numbers $mpi
    check "CMake, C and C++, $mpi" with_cmake $mpi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
