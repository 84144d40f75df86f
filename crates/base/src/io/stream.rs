// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: copies bytes past the caches, to memory that is not read again soon.
//! In from: `mapped`. Out to: a mapping of the store.
//! Invariants: when a copy returns, its stores are ordered before every later store of the thread
//! (sfence), so that a root written afterwards never becomes visible before its data.
#![expect(unsafe_code, reason = "vector stores into mapped memory")]

/// From this many bytes on a copy goes past the caches. Below it the cost of draining the
/// write-combining buffers is more than what is saved: measured equal at about 2 KiB.
const STREAM_BYTES_MIN: usize = 2 << 10;

/// Copies `source` to `target`, with non-temporal stores where the processor has them and the copy
/// is long enough to gain from them.
///
/// # Safety
/// `target` is valid for writing `source.len()` bytes, does not overlap `source`, and nobody else
/// reads or writes these bytes meanwhile.
pub(super) unsafe fn copy(source: &[u8], target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if source.len() >= STREAM_BYTES_MIN {
        // SAFETY: the caller's promise.
        unsafe { x86::copy(source, target) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
}

#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "sources are loaded unaligned; targets start on a line, which is checked at run time"
)]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256,
    };

    /// One cache line: a partial line would be read before it is written.
    const LINE: usize = 64;

    /// # Safety
    /// As of [`super::copy`].
    pub(super) unsafe fn copy(source: &[u8], target: *mut u8) {
        let head = target.align_offset(LINE).min(source.len());
        let lines = (source.len() - head) / LINE;
        let tail = head + lines * LINE;
        let from = source.as_ptr();
        // SAFETY: head, lines and tail cut the range that the caller promises; `target + head` is
        // aligned to a line; the vector extension is there where it is called.
        unsafe {
            target.copy_from_nonoverlapping(from, head);
            if is_x86_feature_detected!("avx2") {
                lines_avx2(from.add(head), target.add(head), lines);
            } else {
                lines_sse2(from.add(head), target.add(head), lines);
            }
            target
                .add(tail)
                .copy_from_nonoverlapping(from.add(tail), source.len() - tail);
        }
        // SAFETY: SSE is part of x86_64.
        unsafe { _mm_sfence() };
    }

    /// # Safety
    /// Both pointers are valid for `lines` lines, `target` is aligned to a line.
    #[target_feature(enable = "avx2")]
    unsafe fn lines_avx2(from: *const u8, target: *mut u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: both halves lie in line `line` of both ranges.
            unsafe {
                let source = from.add(line * LINE).cast::<__m256i>();
                let place = target.add(line * LINE).cast::<__m256i>();
                let (low, high) = (
                    _mm256_loadu_si256(source),
                    _mm256_loadu_si256(source.add(1)),
                );
                _mm256_stream_si256(place, low);
                _mm256_stream_si256(place.add(1), high);
            }
        }
    }

    /// # Safety
    /// As of [`lines_avx2`].
    pub(super) unsafe fn lines_sse2(from: *const u8, target: *mut u8, lines: usize) {
        for quarter in 0..lines * 4 {
            // SAFETY: quarter line `quarter` lies in both ranges; SSE2 is part of x86_64.
            unsafe {
                let value = _mm_loadu_si128(from.cast::<__m128i>().add(quarter));
                _mm_stream_si128(target.cast::<__m128i>().add(quarter), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_arrives_whole_and_nothing_beside_it() {
        let source: Vec<u8> = (0..=255_u8).cycle().take(5000).collect();
        for length in [0, 1, 63, 64, 65, 2047, 2048, 2049, 2111, 4096, 4999] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 63), (1, 64), (0, 100)] {
                let length = length.min(source.len() - from);
                let bytes = &source[from..from + length];
                let mut target = vec![0xAA_u8; length + 256];
                // SAFETY: the vector has room for `to + length` bytes.
                unsafe { copy(bytes, target.as_mut_ptr().add(to)) };
                assert_eq!(&target[to..to + length], bytes, "{length} {from} {to}");
                assert!(target[..to].iter().all(|&byte| byte == 0xAA));
                assert!(target[to + length..].iter().all(|&byte| byte == 0xAA));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_path_without_avx2_copies_the_same() {
        #[repr(align(64))]
        struct Aligned([u8; 640]);
        let source: Vec<u8> = (0..=255_u8).cycle().take(641).collect();
        let mut target = Aligned([0; 640]);
        // SAFETY: 10 lines fit both, the target is aligned.
        unsafe { x86::lines_sse2(source.as_ptr().add(1), target.0.as_mut_ptr(), 10) };
        assert_eq!(&target.0[..], &source[1..]);
    }
}
