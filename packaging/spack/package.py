# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Spack: into a repository of packages as packages/backstay/package.py, beside the one that has rust."""

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Backstay(MakefilePackage):
    """Checkpoint and restart of long parallel programs: what changed in arrays and files is copied into space reserved
    on the node, protected by parity on other nodes, and drained to the parallel file system in the background."""

    homepage = "https://github.com/backstay/backstay"
    url = "https://github.com/backstay/backstay/releases/download/v0.1.0/backstay-0.1.0.tar.xz"
    git = "https://github.com/backstay/backstay.git"

    license("Apache-2.0 OR MIT")

    # A release is added with its line of SHA256SUMS. The branch needs crates from the network; a release has them.
    version("main", branch="main")

    variant("archive", default=True, description="Checkpoints on the parallel file system, and their compression")
    variant("libfabric", default=False, description="Reads between nodes over libfabric, which is loaded at run time")
    variant("python", default=False, description="The Python package")

    depends_on("c", type="build")
    depends_on("rust@1.90:", type="build")
    depends_on("pkgconf", type="test")
    depends_on("libfabric", when="+libfabric", type="run")
    depends_on("python@3.11:", when="+python", type=("build", "run"))
    extends("python", when="+python")

    # The library links no MPI: the adapter is compiled by the program's own mpicc.
    requires("platform=linux", msg="Backstay is for Linux")

    def _arguments(self, spec, prefix):
        arguments = [f"PREFIX={prefix}", "DESTDIR="]
        if spec.satisfies("~archive"):
            arguments.append("LIBRARY_FEATURES=--no-default-features --features libfabric")
        return arguments

    def build(self, spec, prefix):
        make("library", "program", *self._arguments(spec, prefix))
        if spec.satisfies("+python"):
            which("cargo", required=True)("build", "--release", "--locked", "--package", "backstay-python")

    def install(self, spec, prefix):
        make("install", *self._arguments(spec, prefix))
        if spec.satisfies("+python"):
            package = join_path(python_platlib, "backstay")
            install_tree("bindings/python/python/backstay", package)
            install("target/release/libbackstay_native.so", join_path(package, "_native.abi3.so"))

    def setup_run_environment(self, env):
        env.set("BACKSTAY_ROOT", self.prefix)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        """A program of one process against what was installed."""
        flags = which("pkg-config", required=True)("--cflags", "--libs", "backstay", output=str,
                                                   extra_env={"PKG_CONFIG_PATH": self.prefix.lib.pkgconfig})
        which("cc", required=True)("-std=c99", "-o", "single", "tests/install/single.c", *flags.split(),
                                   f"-Wl,-rpath,{self.prefix.lib}")
        Executable("./single")(extra_env={"BACKSTAY_STORE_PATH": self.stage.path, "BACKSTAY_JOB": "spack"})
        Executable(self.prefix.bin.backstay)("--version")
