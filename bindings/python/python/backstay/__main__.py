# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`python -m backstay`: the command line, if it is installed."""

import os
import shutil
import sys


def main() -> None:
    """Becomes the command line."""
    program = shutil.which("backstay")
    if program is None:
        sys.exit("backstay: the command line is not on the path; `make install` or `cargo install backstay-cli` "
                 "installs it")
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
