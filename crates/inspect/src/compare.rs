// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the elements of two arrays, one by one: how many differ, where, and by how much.
//! In from: `diff` (bytes of both, piece by piece). Out to: `diff`.
//! Invariants: an element differs if a bit of it does; differences are of numbers that are finite on both sides.

use backstay_format::ElementType;
use backstay_format::width::to_u64;

/// Pieces of an array of which the share that differs is known.
pub const BINS: usize = 512;

/// What differs between two arrays.
#[derive(Debug, Clone, PartialEq)]
pub struct Differences {
    /// Elements that were compared.
    pub elements: u64,
    /// Those that differ.
    pub changed: u64,
    /// The first of them.
    pub first: Option<u64>,
    /// The last of them.
    pub last: Option<u64>,
    /// The largest difference of numbers; none where they are no numbers, or none that is finite differs.
    pub largest: Option<f64>,
    /// The largest difference over the larger of both numbers, without signs.
    pub largest_relative: Option<f64>,
    /// Elements that differ and are not finite on one side.
    pub not_finite: u64,
    /// Elements of each piece of the array, and those that differ.
    pub bins: Vec<(u64, u64)>,
    /// Elements of all that will be compared.
    whole: u64,
}

impl Differences {
    /// Of arrays of `whole` elements.
    pub fn new(whole: u64) -> Self {
        Self {
            elements: 0,
            changed: 0,
            first: None,
            last: None,
            largest: None,
            largest_relative: None,
            not_finite: 0,
            bins: vec![(0, 0); BINS.min(backstay_format::width::to_usize(whole))],
            whole,
        }
    }

    /// Compares elements `at` and those that follow, whose bytes are these.
    pub fn compare(
        &mut self,
        element: ElementType,
        big_endian: bool,
        at: u64,
        one: &[u8],
        other: &[u8],
    ) {
        let width = backstay_format::width::to_usize(element.width_bytes());
        let pairs = one.chunks_exact(width).zip(other.chunks_exact(width));
        let count = to_u64(one.len().min(other.len()) / width);
        if one == other {
            self.note_equal(at, count);
            return;
        }
        for (place, (one, other)) in pairs.enumerate() {
            let place = at + to_u64(place);
            let bin = self.bin(place);
            self.bins[bin].0 += 1;
            self.elements += 1;
            if one == other {
                continue;
            }
            self.bins[bin].1 += 1;
            self.changed += 1;
            self.first = Some(self.first.map_or(place, |first| first.min(place)));
            self.last = self.last.max(Some(place));
            self.measure(element, big_endian, one, other);
        }
    }

    /// So many elements from `at` on are equal.
    pub fn note_equal(&mut self, at: u64, count: u64) {
        self.elements += count;
        let mut place = at;
        while place < at + count {
            let bin = self.bin(place);
            let end = self.bin_end(bin).clamp(place + 1, at + count);
            self.bins[bin].0 += end - place;
            place = end;
        }
    }

    fn bin(&self, place: u64) -> usize {
        let bins = to_u64(self.bins.len());
        let bin = u128::from(place) * u128::from(bins) / u128::from(self.whole.max(1));
        usize::try_from(bin)
            .unwrap_or(usize::MAX)
            .min(self.bins.len().saturating_sub(1))
    }

    /// The first element behind a piece.
    fn bin_end(&self, bin: usize) -> u64 {
        let bins = u128::from(to_u64(self.bins.len().max(1)));
        let end = (u128::from(to_u64(bin)) + 1) * u128::from(self.whole);
        u64::try_from(end.div_ceil(bins)).unwrap_or(u64::MAX)
    }

    fn measure(&mut self, element: ElementType, big_endian: bool, one: &[u8], other: &[u8]) {
        let Some(component) = component(element) else {
            return;
        };
        let width = backstay_format::width::to_usize(component.width_bytes());
        for (one, other) in one.chunks_exact(width).zip(other.chunks_exact(width)) {
            if one == other {
                continue;
            }
            let (Some(a), Some(b)) = (
                number(component, big_endian, one),
                number(component, big_endian, other),
            ) else {
                continue;
            };
            let difference = a.minus(b);
            if !difference.is_finite() {
                self.not_finite += 1;
                continue;
            }
            let larger = a.magnitude().max(b.magnitude());
            let relative = if larger > 0.0 {
                difference / larger
            } else {
                0.0
            };
            self.largest = Some(self.largest.map_or(difference, |most| most.max(difference)));
            let most = self
                .largest_relative
                .map_or(relative, |most| most.max(relative));
            self.largest_relative = Some(most);
        }
    }

    /// Takes in what differs in another part of the same variable.
    pub fn add(&mut self, other: &Self, at: u64) {
        self.elements += other.elements;
        self.changed += other.changed;
        let first = other.first.map(|first| first + at);
        self.first = self.first.into_iter().chain(first).min();
        self.last = self.last.max(other.last.map(|last| last + at));
        let most =
            |one: Option<f64>, next: Option<f64>| one.into_iter().chain(next).reduce(f64::max);
        self.largest = most(self.largest, other.largest);
        self.largest_relative = most(self.largest_relative, other.largest_relative);
        self.not_finite += other.not_finite;
        for (bin, &(elements, changed)) in other.bins.iter().enumerate() {
            let start = bin.checked_sub(1).map_or(0, |bin| other.bin_end(bin));
            let middle = start.midpoint(other.bin_end(bin));
            let own = self.bin(at + middle);
            if let Some(own) = self.bins.get_mut(own) {
                own.0 += elements;
                own.1 += changed;
            }
        }
    }
}

/// What an element is made of, if that is numbers.
fn component(element: ElementType) -> Option<ElementType> {
    match element {
        ElementType::Bytes => None,
        ElementType::Complex64 => Some(ElementType::F32),
        ElementType::Complex128 => Some(ElementType::F64),
        other => Some(other),
    }
}

/// A number as exactly as it takes to compare it.
#[derive(Debug, Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    #[expect(clippy::cast_precision_loss, reason = "a difference that is shown")]
    fn minus(self, other: Self) -> f64 {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a.abs_diff(b) as f64,
            (a, b) => (a.value() - b.value()).abs(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a magnitude")]
    fn value(self) -> f64 {
        match self {
            Self::Whole(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    fn magnitude(self) -> f64 {
        self.value().abs()
    }
}

fn number(element: ElementType, big_endian: bool, bytes: &[u8]) -> Option<Number> {
    let mut wide = [0; 8];
    let width = bytes.len().min(8);
    wide[..width].copy_from_slice(&bytes[..width]);
    if big_endian {
        wide[..width].reverse();
    }
    let bits = u64::from_le_bytes(wide);
    let narrow = u32::try_from(bits & 0xffff_ffff).unwrap_or(0);
    let half = u16::try_from(bits & 0xffff).unwrap_or(0);
    // A signed number stands in the lowest bits: its sign is copied to all above.
    let signed =
        |bits: u64| i128::from((bits << (64 - 8 * width)).cast_signed() >> (64 - 8 * width));
    Some(match element {
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64 => {
            Number::Whole(signed(bits))
        }
        ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => {
            Number::Whole(i128::from(bits))
        }
        ElementType::F16 => Number::Float(binary16(half)),
        ElementType::Bf16 => Number::Float(f64::from(f32::from_bits(u32::from(half) << 16))),
        ElementType::F32 => Number::Float(f64::from(f32::from_bits(narrow))),
        ElementType::F64 => Number::Float(f64::from_bits(bits)),
        _ => return None,
    })
}

fn binary16(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    match exponent {
        0 => sign * mantissa * (-24_f64).exp2(),
        31 if mantissa == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1.0 + mantissa / 1024.0) * f64::from(exponent - 15).exp2(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(element: ElementType, one: &[u8], other: &[u8]) -> Differences {
        let count = to_u64(one.len()) / element.width_bytes();
        let mut found = Differences::new(count);
        found.compare(element, false, 0, one, other);
        found
    }

    fn close(found: Option<f64>, wanted: f64) -> bool {
        found.is_some_and(|found| (found - wanted).abs() <= 1e-12 * wanted.abs())
    }

    #[test]
    fn numbers_differ_by_what_they_are() {
        let bytes = |values: &[f64]| {
            values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let found = of(
            ElementType::F64,
            &bytes(&[1.0, 2.0, -4.0, 0.0]),
            &bytes(&[1.0, 3.0, -4.5, 0.0]),
        );
        assert_eq!(
            (found.elements, found.changed, found.first, found.last),
            (4, 2, Some(1), Some(2))
        );
        assert!(
            close(found.largest, 1.0) && close(found.largest_relative, 1.0 / 3.0),
            "{found:?}"
        );
        assert_eq!(found.bins, [(1, 0), (1, 1), (1, 1), (1, 0)]);
        // Signs of zero and payloads of not-a-number differ by their bits, and by no number.
        let found = of(
            ElementType::F64,
            &bytes(&[0.0, f64::NAN, 1.0]),
            &bytes(&[-0.0, 1.0, f64::INFINITY]),
        );
        assert_eq!(
            (found.changed, found.not_finite, found.largest),
            (3, 2, Some(0.0))
        );
        let found = of(
            ElementType::I32,
            &(-5_i32).to_le_bytes(),
            &7_i32.to_le_bytes(),
        );
        assert!(close(found.largest, 12.0) && close(found.largest_relative, 12.0 / 7.0));
        let found = of(
            ElementType::U64,
            &u64::MAX.to_le_bytes(),
            &0_u64.to_le_bytes(),
        );
        assert!(close(found.largest, 18_446_744_073_709_551_615.0));
        let found = of(ElementType::I8, &[0x80], &[0x7f]);
        assert!(close(found.largest, 255.0));
        let found = of(ElementType::F16, &[0x00, 0x3c], &[0x00, 0xc0]);
        assert!(close(found.largest, 3.0), "1 and -2: {found:?}");
        let found = of(ElementType::Bytes, b"abc", b"abd");
        assert_eq!((found.changed, found.largest), (1, None));
        let mut found = Differences::new(1);
        found.compare(ElementType::U16, true, 0, &[1, 0], &[0, 1]);
        assert!(close(found.largest, 255.0), "highest byte first");
    }

    #[test]
    fn pieces_of_parts_are_put_together() {
        let mut whole = Differences::new(4000);
        for part in 0..4 {
            let mut found = Differences::new(1000);
            found.note_equal(0, 1000 - 8);
            let one = [part; 8];
            found.compare(ElementType::U8, false, 992, &one, &[9; 8]);
            assert_eq!(found.bins.iter().map(|bin| bin.0).sum::<u64>(), 1000);
            whole.add(&found, u64::from(part) * 1000);
        }
        assert_eq!((whole.elements, whole.changed), (4000, 32));
        assert_eq!((whole.first, whole.last), (Some(992), Some(3999)));
        assert_eq!(whole.bins.iter().map(|bin| bin.0).sum::<u64>(), 4000);
        assert_eq!(whole.bins.iter().map(|bin| bin.1).sum::<u64>(), 32);
        assert!(whole.bins[BINS - 1].1 > 0 && whole.bins[0].1 == 0);
    }
}
