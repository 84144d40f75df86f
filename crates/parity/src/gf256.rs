// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: bytes as the field GF(2^8) with the polynomial 0x11d, and sums of products over buffers:
//! the only loop that encoding and rebuilding run.
//! In from: `code` (coefficients and pieces). Out to: buffers of the caller.
//! Invariants: all kernels give the same bytes as `naive`; a kernel runs only where the processor has
//! its instructions; no byte outside the shortest buffer is read or written.
//!
//! Sources: J. S. Plank, K. M. Greenan, E. L. Miller, "Screaming Fast Galois Field Arithmetic Using
//! Intel SIMD Instructions", FAST 2013 (a product as two look-ups of half bytes); Intel, "Galois Field
//! New Instructions (GFNI) Technology Guide" (a product as a matrix of 8 x 8 bits). Adding is XOR.

mod naive;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

/// x^8 + x^4 + x^3 + x^2 + 1; x itself generates all other elements.
const POLYNOMIAL: u16 = 0x11d;

/// Outputs that a kernel fills in one pass over the sources: their sums fit into registers.
const OUTPUTS_MAX: usize = 4;

/// Sources of one pass.
const SOURCES_MAX: usize = 32;

/// Bytes of all sources that stay in the second-level cache from one pass to the next.
const CACHED_BYTES: usize = 512 << 10;

/// Powers of x, twice in a row so that a sum of two logarithms needs no remainder; and logarithms.
const POWERS_LOGARITHMS: ([u8; 512], [u8; 256]) = {
    let (mut powers, mut logarithms) = ([0; 512], [0; 256]);
    let (mut power, mut element) = (0_u8, 1_u16);
    while power < 255 {
        let [low, _] = element.to_le_bytes();
        powers[power as usize] = low;
        powers[power as usize + 255] = low;
        logarithms[low as usize] = power;
        element <<= 1;
        if element > 0xff {
            element ^= POLYNOMIAL;
        }
        power += 1;
    }
    (powers, logarithms)
};
static POWERS: [u8; 512] = POWERS_LOGARITHMS.0;
static LOGARITHMS: [u8; 256] = POWERS_LOGARITHMS.1;

/// The product of two elements.
pub const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let sum = LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize;
    POWERS[sum]
}

/// The element that gives 1 with `a`; 0 for 0, which has none.
pub const fn invert(a: u8) -> u8 {
    if a == 0 {
        return 0;
    }
    POWERS[255 - LOGARITHMS[a as usize] as usize]
}

/// Instructions that a sum of products is computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// One byte at a time from a table: the readable one, which the others are tested against.
    Naive,
    /// 16 bytes: two look-ups by PSHUFB.
    Ssse3,
    /// 32 bytes: the same.
    Avx2,
    /// 32 bytes: one VGF2P8AFFINEQB.
    Avx2Gfni,
    /// 64 bytes: the same.
    Avx512Gfni,
}

impl Kernel {
    /// All of them, the slowest first.
    pub const ALL: [Self; 5] = [
        Self::Naive,
        Self::Ssse3,
        Self::Avx2,
        Self::Avx2Gfni,
        Self::Avx512Gfni,
    ];

    /// The fastest one that this processor has.
    pub fn best() -> Self {
        let mut fastest_first = Self::ALL.into_iter().rev();
        fastest_first
            .find(|kernel| kernel.is_available())
            .unwrap_or(Self::Naive)
    }

    /// Whether this processor has its instructions.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let available = x86::is_available(self);
        #[cfg(not(target_arch = "x86_64"))]
        let available = self == Self::Naive;
        available
    }

    /// Its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Ssse3 => "ssse3",
            Self::Avx2 => "avx2",
            Self::Avx2Gfni => "avx2+gfni",
            Self::Avx512Gfni => "avx512+gfni",
        }
    }
}

/// Whether a combination replaces what its outputs hold, or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The outputs are written; what they held does not matter.
    Fill,
    /// The outputs are read, and the combination is added. Adding twice takes away again.
    Add,
}

/// `outputs[i]` becomes the sum over `s` of `rows[i][s]` times `sources[s]`, or that is added to it.
///
/// As many bytes are computed as the shortest of all buffers has. A source whose row has no
/// coefficient for it counts as zero.
pub fn combine(
    kernel: Kernel,
    rows: &[&[u8]],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    mode: Mode,
) {
    let shortest = outputs.iter().map(|output| output.len()).min().unwrap_or(0);
    let lengths = sources.iter().map(|source| source.len());
    let length = lengths.fold(shortest, usize::min);
    if sources.is_empty() && mode == Mode::Fill {
        for output in outputs.iter_mut() {
            output.fill(0);
        }
    }
    let mut mode = mode;
    for (number, sources) in sources.chunks(SOURCES_MAX).enumerate() {
        let first = number * SOURCES_MAX;
        combine_strips(kernel, (rows, first), sources, outputs, length, mode);
        mode = Mode::Add;
    }
}

/// Passes over up to [`SOURCES_MAX`] sources, whose coefficients stand in the rows from `first`. One
/// pass reads each byte once; where more outputs need several, they follow each other strip by strip,
/// and find the sources in the cache.
fn combine_strips(
    kernel: Kernel,
    (rows, first): (&[&[u8]], usize),
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    length: usize,
    mode: Mode,
) {
    let strip = match outputs.len() {
        0..=OUTPUTS_MAX => length.max(1),
        _ => (CACHED_BYTES / sources.len()) & !4095,
    };
    let coefficient = |row: usize, source: usize| {
        let row = rows.get(row);
        row.and_then(|row| row.get(first + source)).copied()
    };
    let mut cut: [&[u8]; SOURCES_MAX] = [&[]; SOURCES_MAX];
    for start in (0..length).step_by(strip) {
        let range = start..length.min(start + strip);
        for (cut, source) in cut.iter_mut().zip(sources) {
            *cut = &source[range.clone()];
        }
        for (number, outputs) in outputs.chunks_mut(OUTPUTS_MAX).enumerate() {
            let mut pass = Pass {
                coefficients: [[0; SOURCES_MAX]; OUTPUTS_MAX],
                sources: &cut[..sources.len()],
                outputs: std::array::from_fn(|_| &mut [][..]),
                width: outputs.len(),
                mode,
            };
            for (index, output) in outputs.iter_mut().enumerate() {
                pass.outputs[index] = &mut output[range.clone()];
                for source in 0..sources.len() {
                    pass.coefficients[index][source] =
                        coefficient(number * OUTPUTS_MAX + index, source).unwrap_or(0);
                }
            }
            run(kernel, &mut pass);
        }
    }
}

/// One pass over the sources. All buffers in use have the same length.
#[derive(Debug)]
struct Pass<'a> {
    /// By output, then by source.
    coefficients: [[u8; SOURCES_MAX]; OUTPUTS_MAX],
    sources: &'a [&'a [u8]],
    outputs: [&'a mut [u8]; OUTPUTS_MAX],
    /// How many outputs are in use.
    width: usize,
    mode: Mode,
}

impl Pass<'_> {
    /// Bytes that every buffer in use has.
    fn length(&self) -> usize {
        let outputs = self.outputs[..self.width].iter().map(|output| output.len());
        let sources = self.sources.iter().map(|source| source.len());
        outputs.chain(sources).min().unwrap_or(0)
    }
    /// Whether the first output is a plain XOR of all sources.
    fn first_is_xor(&self) -> bool {
        let first = &self.coefficients[0][..self.sources.len()];
        first.iter().all(|&coefficient| coefficient == 1)
    }
}

fn run(kernel: Kernel, pass: &mut Pass<'_>) {
    #[cfg(target_arch = "x86_64")]
    if kernel != Kernel::Naive && x86::run(kernel, pass) {
        return;
    }
    naive::run(pass);
}
