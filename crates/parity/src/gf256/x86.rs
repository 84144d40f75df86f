// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: sums of products with the vectors of x86-64: one loop, written once for all of them.
//! In from: `gf256` (one pass). Out to: its outputs.
//! Invariants: a function with target features is reached only through `run`, which asked the
//! processor; pointers stay below the length that all buffers of the pass have.
#![expect(unsafe_code, reason = "vector instructions take pointers")]
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that has their target feature"
)]

use super::{Kernel, Mode, OUTPUTS_MAX, Pass, SOURCES_MAX, multiply};
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_setzero_si128,
    _mm_shuffle_epi8, _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256,
    _mm256_set1_epi8, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256, _mm512_gf2p8affine_epi64_epi8,
    _mm512_loadu_si512, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_xor_si512,
};

/// Whether this processor has the instructions of `kernel`.
pub(super) fn is_available(kernel: Kernel) -> bool {
    match kernel {
        Kernel::Naive => true,
        Kernel::Ssse3 => is_x86_feature_detected!("ssse3"),
        Kernel::Avx2 => is_x86_feature_detected!("avx2"),
        Kernel::Avx2Gfni => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("gfni"),
        Kernel::Avx512Gfni => {
            is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("gfni")
        }
    }
}

/// Runs one pass, if this processor can.
pub(super) fn run(kernel: Kernel, pass: &mut Pass<'_>) -> bool {
    if !is_available(kernel) {
        return false;
    }
    // SAFETY: the processor has the instructions.
    unsafe {
        match kernel {
            Kernel::Naive => return false,
            Kernel::Ssse3 => ssse3(pass),
            Kernel::Avx2 => avx2(pass),
            Kernel::Avx2Gfni => avx2_gfni(pass),
            Kernel::Avx512Gfni => avx512_gfni(pass),
        }
    }
    true
}

#[target_feature(enable = "ssse3")]
fn ssse3(pass: &mut Pass<'_>) {
    // SAFETY: this function has the instructions.
    unsafe { choose::<Ssse3>(pass) }
}

#[target_feature(enable = "avx2")]
fn avx2(pass: &mut Pass<'_>) {
    // SAFETY: this function has the instructions.
    unsafe { choose::<Avx2>(pass) }
}

#[target_feature(enable = "avx2,gfni")]
fn avx2_gfni(pass: &mut Pass<'_>) {
    // SAFETY: this function has the instructions.
    unsafe { choose::<Avx2Gfni>(pass) }
}

#[target_feature(enable = "avx512f,gfni")]
fn avx512_gfni(pass: &mut Pass<'_>) {
    // SAFETY: this function has the instructions.
    unsafe { choose::<Avx512Gfni>(pass) }
}

/// The loop for this many outputs. An output that is a plain XOR needs no products.
///
/// # Safety
/// The processor has the instructions of `L`, and the caller their target features.
#[inline(always)]
unsafe fn choose<L: Lanes>(pass: &mut Pass<'_>) {
    // SAFETY: what the caller promised.
    unsafe {
        match (pass.width, pass.first_is_xor()) {
            (1, false) => sum::<L, 1, false>(pass),
            (1, true) => sum::<L, 1, true>(pass),
            (2, false) => sum::<L, 2, false>(pass),
            (2, true) => sum::<L, 2, true>(pass),
            (3, false) => sum::<L, 3, false>(pass),
            (3, true) => sum::<L, 3, true>(pass),
            (OUTPUTS_MAX, false) => sum::<L, OUTPUTS_MAX, false>(pass),
            (OUTPUTS_MAX, true) => sum::<L, OUTPUTS_MAX, true>(pass),
            _ => {}
        }
    }
}

/// The sums of `N` outputs; with `XOR` all coefficients of the first one are 1.
///
/// # Safety
/// As for [`choose`].
#[inline(always)]
unsafe fn sum<L: Lanes, const N: usize, const XOR: bool>(pass: &mut Pass<'_>) {
    let length = pass.length();
    let mut terms: [Term<L, N>; SOURCES_MAX] = std::array::from_fn(|source| Term {
        from: std::ptr::null(),
        by: std::array::from_fn(|output| L::multiplier(pass.coefficients[output][source])),
    });
    let terms = &mut terms[..pass.sources.len()];
    for (term, source) in terms.iter_mut().zip(pass.sources) {
        term.from = source.as_ptr();
    }
    let add = pass.mode == Mode::Add;
    let to: [*mut u8; N] = std::array::from_fn(|output| pass.outputs[output].as_mut_ptr());
    let (step, mut at) = (2 * L::BYTES, 0);
    while at + step <= length {
        // SAFETY: all buffers have `step` bytes from `at`.
        unsafe { sum_at::<L, N, XOR>(terms, &to, at, add) };
        at += step;
    }
    if at < length {
        // SAFETY: all buffers have this many bytes from `at`, less than two vectors.
        unsafe { sum_rest::<L, N, XOR>(terms, &to, at..length, add) };
    }
}

/// A source and what it is multiplied by for each output.
struct Term<L: Lanes, const N: usize> {
    from: *const u8,
    by: [L::Multiplier; N],
}

/// Two vectors of each output, from `at`.
///
/// # Safety
/// As for [`choose`]; sources and outputs have two vectors from `at`.
#[inline(always)]
unsafe fn sum_at<L: Lanes, const N: usize, const XOR: bool>(
    terms: &[Term<L, N>],
    to: &[*mut u8; N],
    at: usize,
    add: bool,
) {
    // SAFETY: what the caller promised.
    unsafe {
        let mut sums = [[L::zero(); 2]; N];
        if add {
            for (sum, to) in sums.iter_mut().zip(to) {
                *sum = [L::load(to.add(at)), L::load(to.add(at + L::BYTES))];
            }
        }
        for term in terms {
            let from = term.from.add(at);
            let [low, high] = [L::load(from), L::load(from.add(L::BYTES))];
            for (output, (sum, &by)) in sums.iter_mut().zip(&term.by).enumerate() {
                let (mut first, mut second) = (low, high);
                if !(XOR && output == 0) {
                    first = L::product(by, low);
                    second = L::product(by, high);
                }
                *sum = [L::xor(sum[0], first), L::xor(sum[1], second)];
            }
        }
        for (sum, to) in sums.iter().zip(to) {
            L::store(to.add(at), sum[0]);
            L::store(to.add(at + L::BYTES), sum[1]);
        }
    }
}

/// What is left at the end, through copies that are as long as two vectors.
///
/// # Safety
/// As for [`choose`]; sources and outputs have the bytes of `range`, at most two vectors.
#[inline(always)]
unsafe fn sum_rest<L: Lanes, const N: usize, const XOR: bool>(
    terms: &[Term<L, N>],
    to: &[*mut u8; N],
    range: std::ops::Range<usize>,
    add: bool,
) {
    let mut sources = [[0_u8; 128]; SOURCES_MAX];
    let mut outputs = [[0_u8; 128]; N];
    let mut padded: [Term<L, N>; SOURCES_MAX] = std::array::from_fn(|source| Term {
        from: sources[source].as_ptr(),
        by: terms
            .get(source)
            .map_or([L::multiplier(0); N], |term| term.by),
    });
    // SAFETY: the copies are as long as two vectors of any kind, and `range` is no longer.
    unsafe {
        for (index, term) in terms.iter().enumerate() {
            let copy = sources[index].as_mut_ptr();
            copy.copy_from_nonoverlapping(term.from.add(range.start), range.len());
            padded[index].from = copy;
        }
        for (copy, to) in outputs.iter_mut().zip(to) {
            copy.as_mut_ptr()
                .copy_from_nonoverlapping(to.add(range.start), range.len());
        }
        let copies: [*mut u8; N] = outputs.each_mut().map(|copy| copy.as_mut_ptr());
        sum_at::<L, N, XOR>(&padded[..terms.len()], &copies, 0, add);
        for (copy, to) in copies.iter().zip(to) {
            to.add(range.start)
                .copy_from_nonoverlapping(*copy, range.len());
        }
    }
}

/// A vector of bytes and what can be done with it.
trait Lanes: Copy {
    type Vector: Copy;
    /// A coefficient in the form that `product` takes.
    type Multiplier: Copy;
    const BYTES: usize;

    fn multiplier(coefficient: u8) -> Self::Multiplier;
    unsafe fn zero() -> Self::Vector;
    unsafe fn load(from: *const u8) -> Self::Vector;
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    unsafe fn xor(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn product(by: Self::Multiplier, vector: Self::Vector) -> Self::Vector;
}

/// Products of a coefficient and all lower, and all upper halves of a byte.
#[repr(align(32))]
struct Halves([[u8; 16]; 2]);

static HALVES: [Halves; 256] = {
    let mut tables = [const { Halves([[0; 16]; 2]) }; 256];
    let (mut coefficient, mut index) = (0_u8, 0);
    while index < 256 {
        let mut half = 0_u8;
        while half < 16 {
            tables[index].0[0][half as usize] = multiply(coefficient, half);
            tables[index].0[1][half as usize] = multiply(coefficient, half << 4);
            half += 1;
        }
        coefficient = coefficient.wrapping_add(1);
        index += 1;
    }
    tables
};

/// A product as a matrix of bits: bit `i` of it is the parity of the byte `7 - i` and the factor.
const fn matrix(coefficient: u8) -> i64 {
    let mut rows = [0_u8; 8];
    let mut column = 0;
    while column < 8 {
        let product = multiply(coefficient, 1 << column);
        let mut row = 0;
        while row < 8 {
            rows[7 - row] |= ((product >> row) & 1) << column;
            row += 1;
        }
        column += 1;
    }
    i64::from_le_bytes(rows)
}

static MATRICES: [i64; 256] = {
    let mut matrices = [0; 256];
    let (mut coefficient, mut index) = (0_u8, 0);
    while index < 256 {
        matrices[index] = matrix(coefficient);
        coefficient = coefficient.wrapping_add(1);
        index += 1;
    }
    matrices
};

#[derive(Clone, Copy)]
struct Ssse3;
#[derive(Clone, Copy)]
struct Avx2;
#[derive(Clone, Copy)]
struct Avx2Gfni;
#[derive(Clone, Copy)]
struct Avx512Gfni;

impl Lanes for Ssse3 {
    type Vector = __m128i;
    type Multiplier = &'static Halves;
    const BYTES: usize = 16;

    #[inline(always)]
    fn multiplier(coefficient: u8) -> Self::Multiplier {
        &HALVES[usize::from(coefficient)]
    }
    #[inline(always)]
    unsafe fn zero() -> __m128i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm_setzero_si128() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m128i {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm_loadu_si128(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m128i) {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm_storeu_si128(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m128i, b: __m128i) -> __m128i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm_xor_si128(a, b) }
    }
    #[inline(always)]
    unsafe fn product(by: Self::Multiplier, vector: __m128i) -> __m128i {
        // SAFETY: the caller has the instructions; the tables have 16 bytes each.
        unsafe {
            let lower = _mm_loadu_si128(by.0[0].as_ptr().cast());
            let upper = _mm_loadu_si128(by.0[1].as_ptr().cast());
            let half = _mm_set1_epi8(0x0f);
            let low = _mm_and_si128(vector, half);
            let high = _mm_and_si128(_mm_srli_epi64::<4>(vector), half);
            _mm_xor_si128(_mm_shuffle_epi8(lower, low), _mm_shuffle_epi8(upper, high))
        }
    }
}

impl Lanes for Avx2 {
    type Vector = __m256i;
    type Multiplier = &'static Halves;
    const BYTES: usize = 32;

    #[inline(always)]
    fn multiplier(coefficient: u8) -> Self::Multiplier {
        &HALVES[usize::from(coefficient)]
    }
    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn product(by: Self::Multiplier, vector: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions; the tables have 16 bytes each.
        unsafe {
            let lower = _mm_loadu_si128(by.0[0].as_ptr().cast());
            let upper = _mm_loadu_si128(by.0[1].as_ptr().cast());
            let lower = _mm256_broadcastsi128_si256(lower);
            let upper = _mm256_broadcastsi128_si256(upper);
            let half = _mm256_set1_epi8(0x0f);
            let low = _mm256_and_si256(vector, half);
            let high = _mm256_and_si256(_mm256_srli_epi64::<4>(vector), half);
            _mm256_xor_si256(
                _mm256_shuffle_epi8(lower, low),
                _mm256_shuffle_epi8(upper, high),
            )
        }
    }
}

impl Lanes for Avx2Gfni {
    type Vector = __m256i;
    type Multiplier = i64;
    const BYTES: usize = 32;

    #[inline(always)]
    fn multiplier(coefficient: u8) -> i64 {
        MATRICES[usize::from(coefficient)]
    }
    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn product(by: i64, vector: __m256i) -> __m256i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_gf2p8affine_epi64_epi8::<0>(vector, _mm256_set1_epi64x(by)) }
    }
}

impl Lanes for Avx512Gfni {
    type Vector = __m512i;
    type Multiplier = i64;
    const BYTES: usize = 64;

    #[inline(always)]
    fn multiplier(coefficient: u8) -> i64 {
        MATRICES[usize::from(coefficient)]
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m512i) {
        // SAFETY: the caller has the instructions and the bytes.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn product(by: i64, vector: __m512i) -> __m512i {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(vector, _mm512_set1_epi64(by)) }
    }
}
