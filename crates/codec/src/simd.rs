// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the same loops compiled twice on x86-64: for every processor, and for those with AVX2 and
//! BMI2, where putting planes together takes half the time.
//! In from: `shuffle` (loops). Out to: `shuffle` (what the loop gives).
//! Invariants: a loop runs with those instructions only where the processor has them; both give the
//! same.
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that is inlined where they are allowed"
)]
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "instructions that not every processor has")
)]

/// A loop that is compiled twice. Closures will not do: the compiler may leave one as it is, out of
/// line and without the instructions.
pub(super) trait Loop {
    /// What it gives.
    type Out;
    /// Runs it; to be inlined always.
    fn run(self) -> Self::Out;
}

/// Runs a loop with the best instructions there are.
#[inline(always)]
pub(super) fn fast<L: Loop>(work: L) -> L::Out {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor has the instructions.
        return unsafe { wide(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn wide<L: Loop>(work: L) -> L::Out {
    work.run()
}
