#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Recipes are read by what they are for, as far as that can be had here: the module file is loaded by Environment Modules,
# the easyconfig checked by EasyBuild (from PyPI, into target/), the Spack recipe compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

make/packages.sh environment-modules
work=$(mktemp -d "${TMPDIR:-/tmp}/backstay-recipes.XXXXXX")
trap 'rm -rf "$work"' EXIT
venv=$PWD/target/easybuild-venv
modules=/usr/share/modules/init/bash
. tests/check.sh

# With the module a program compiles and runs; without it nothing of it is left.
module_file() {
    env -u LD_LIBRARY_PATH -u PKG_CONFIG_PATH -u CPATH -u LIBRARY_PATH bash -ec '
        . "$1"
        module use "$2/modules"
        module load backstay
        [ "$BACKSTAY_ROOT" = "$2/prefix" ]
        [ "$(command -v backstay)" = "$2/prefix/bin/backstay" ]
        pkg-config --exists backstay
        cc -o "$2/single" tests/install/single.c -lbackstay
        BACKSTAY_STORE_PATH="$2" BACKSTAY_JOB=module "$2/single"
        man -w 3 backstay_open
        module unload backstay
        [ -z "${BACKSTAY_ROOT:-}" ]
        ! pkg-config --exists backstay
    ' - "$modules" "$work"
}

easyconfig() {
    [ -x "$venv/bin/eb" ] || python3 -m venv "$venv"
    "$venv/bin/pip" --quiet --disable-pip-version-check install 'easybuild-framework==5.*' 'easybuild-easyblocks==5.*' || return 1
    cat >"$work/read.py" <<'END'
import sys
from easybuild.tools.options import set_up_configuration
words = ["--allow-use-as-root-and-accept-consequences", "--modules-tool=EnvironmentModules", "--module-syntax=Tcl"]
set_up_configuration(args=words, silent=True)
from easybuild.framework.easyconfig.easyconfig import EasyConfig
read = EasyConfig(sys.argv[1], validate=True)
assert (read.name, read.version) == ("Backstay", sys.argv[2]), (read.name, read.version)
assert sys.argv[1].endswith(f"{read.name}-{read.version}-GCCcore-{read.toolchain.version}.eb")
END
    HOME="$work" PATH="$venv/bin:$PATH" bash -c '. "$1" && shift && exec "$@"' - \
        "$modules" "$venv/bin/python" "$work/read.py" packaging/easybuild/*.eb \
        "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)"
}

spack() { python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' packaging/spack/package.py; }

make --no-print-directory install PREFIX="$work/prefix" DESTDIR= >/dev/null
mkdir -p "$work/modules/backstay"
make --no-print-directory modulefile PREFIX="$work/prefix" MODULEFILE="$work/modules/backstay/0.1.0"
check "the module file" module_file
check "the easyconfig" easyconfig
check "the Spack recipe" spack
finish
