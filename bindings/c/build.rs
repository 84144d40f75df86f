// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: names the shared library after its binary interface: `libbackstay.so.0`.

/// Grows when a program built against the old header would break. Also in make/install.mk.
const ABI_MAJOR: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbackstay.so.{ABI_MAJOR}");
}
