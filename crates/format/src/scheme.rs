// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how a stretch of archived data was encoded: all that a reader must know to decode it.
//! In: what a writer chose, or bytes of a segment's header. Out: 32 bytes, or a scheme that was checked.
//! Invariants: an id is never used again for something else; an unknown one is refused by its number,
//! one that was given up by its name;
//! a scheme that was read can be decoded, so what does not go together is refused here.
//! Format: docs/format/codec.md.

use crate::bytes::{Decoder, Encoder, FormatError, GIVEN_UP};
use crate::element::ElementType;

const STRUCTURE: &str = "scheme";
/// Bytes of a scheme.
pub const SCHEME_BYTES: usize = 32;
/// Most lags of a predictor.
pub const LAGS_MAX: usize = 6;
/// Ids that were given up before the first release, by field: no reader knows them, and nothing else gets
/// them.
pub const RESERVED: [(&str, u8, &str); 2] = [("arrangement", 3, "groups"), ("coder", 3, "entropy")];
/// Most bytes that one scheme encodes at once.
pub const DECODED_BYTES_MAX: usize = 1 << 24;

/// Most bytes that the coder of a scheme makes of `decoded` bytes before the writer falls back on raw.
///
/// What a writer keeps is never longer than what it encoded: it takes [`Scheme::raw`] then.
pub const fn encoded_bytes_max(decoded: usize) -> usize {
    decoded + decoded / 64 + 4096
}

/// What an element is compared with before anything else is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum History {
    /// Nothing.
    None = 0,
    /// Exclusive or with the base's element.
    Xor = 1,
    /// The base's element is taken away, on ordered integers.
    Subtract = 2,
}

/// How the bytes of the elements are laid out for the coder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Arrangement {
    /// One element after the other.
    Plain = 0,
    /// All first bytes, all second bytes, and so on.
    Bytes = 1,
    /// All first bits, all second bits, and so on.
    Bits = 2,
}

/// What makes the bytes fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Coder {
    /// Nothing: the bytes as they are.
    Raw = 0,
    /// An LZ4 block.
    Lz4 = 1,
    /// A Zstandard frame.
    Zstd = 2,
    /// Pcodec, for numbers.
    Pco = 4,
}

/// What is done with the coder's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum SecondPass {
    /// Nothing.
    None = 0,
    /// A Zstandard frame is made of them.
    Zstd = 1,
}

impl History {
    /// All of them, in order of their ids.
    pub const ALL: [Self; 3] = [Self::None, Self::Xor, Self::Subtract];
    /// Its id.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Its name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Xor => "xor",
            Self::Subtract => "subtract",
        }
    }
}

impl Arrangement {
    /// All of them, in order of their ids.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Bytes, Self::Bits];
    /// Its id.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Its name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Bytes => "bytes",
            Self::Bits => "bits",
        }
    }
}

impl Coder {
    /// All of them, in order of their ids.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Lz4, Self::Zstd, Self::Pco];
    /// Its id.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Its name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Pco => "pco",
        }
    }
}

impl SecondPass {
    /// All of them, in order of their ids.
    pub const ALL: [Self; 2] = [Self::None, Self::Zstd];
    /// Its id.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Its name in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Zstd => "zstd",
        }
    }
}

/// Strides that an element is predicted over, in elements. One may stand twice: that is a second
/// difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Lags {
    /// As many as are used come first; the others are 0.
    strides: [u32; LAGS_MAX],
}

impl Lags {
    /// No prediction.
    pub const NONE: Self = Self {
        strides: [0; LAGS_MAX],
    };

    /// These strides; those that are 0, and what is more than [`LAGS_MAX`], are left out.
    pub fn new(strides: &[u32]) -> Self {
        let mut lags = Self::NONE;
        let wanted = strides.iter().filter(|&&stride| stride > 0);
        for (place, &stride) in lags.strides.iter_mut().zip(wanted) {
            *place = stride;
        }
        lags
    }
    /// The strides.
    pub fn as_slice(&self) -> &[u32] {
        let used = self.strides.iter().take_while(|&&stride| stride > 0);
        &self.strides[..used.count()]
    }
    /// Whether there is no prediction.
    pub fn is_empty(&self) -> bool {
        self.strides[0] == 0
    }
}

/// How data was encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Type of the elements: their width, and how they become integers.
    pub element: ElementType,
    /// What the elements are compared with.
    pub history: History,
    /// What the elements are predicted from.
    pub lags: Lags,
    /// How the bytes are laid out.
    pub arrangement: Arrangement,
    /// What makes them fewer.
    pub coder: Coder,
    /// What is done with the result.
    pub second_pass: SecondPass,
}

const fn plain(element: ElementType, arrangement: Arrangement, coder: Coder) -> Scheme {
    Scheme {
        element,
        history: History::None,
        lags: Lags::NONE,
        arrangement,
        coder,
        second_pass: SecondPass::None,
    }
}

impl Scheme {
    /// The bytes as they are.
    pub const fn raw(element: ElementType) -> Self {
        plain(element, Arrangement::Plain, Coder::Raw)
    }
    /// A coder behind an arrangement, and nothing else.
    pub const fn of(element: ElementType, arrangement: Arrangement, coder: Coder) -> Self {
        plain(element, arrangement, coder)
    }
    /// The same with a predictor.
    #[must_use]
    pub fn with_lags(self, strides: &[u32]) -> Self {
        Self {
            lags: Lags::new(strides),
            ..self
        }
    }
    /// The same with a history.
    #[must_use]
    pub const fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }
    /// The same with a second pass.
    #[must_use]
    pub const fn with_second_pass(self, second_pass: SecondPass) -> Self {
        Self {
            second_pass,
            ..self
        }
    }

    /// Bytes of the numbers that an element consists of.
    pub const fn component_bytes(&self) -> usize {
        match self.element.width_bytes() {
            _ if matches!(self.element, ElementType::Complex64) => 4,
            1 => 1,
            2 => 2,
            4 => 4,
            _ => 8,
        }
    }
    /// Numbers that an element consists of: 2 where it is complex.
    pub const fn components(&self) -> usize {
        match self.element {
            ElementType::Complex64 | ElementType::Complex128 => 2,
            _ => 1,
        }
    }
    /// Whether the numbers are floats.
    pub const fn is_float(&self) -> bool {
        use ElementType::{Bf16, Complex64, Complex128, F16, F32, F64};
        matches!(
            self.element,
            F16 | Bf16 | F32 | F64 | Complex64 | Complex128
        )
    }
    /// Whether a reader needs the bytes that the writer compared with.
    pub const fn needs_base(&self) -> bool {
        !matches!(self.history, History::None)
    }

    /// What does not go together: the field, what it would have to be.
    fn conflict(&self) -> Option<(&'static str, &'static str)> {
        if self.coder == Coder::Pco {
            if self.arrangement != Arrangement::Plain {
                return Some(("arrangement", "0 where the coder is 4"));
            }
            if self.component_bytes() == 1 {
                return Some(("coder", "0 to 2 for elements of one byte"));
            }
        }
        None
    }
    /// Whether a reader accepts it.
    pub fn is_valid(&self) -> bool {
        self.conflict().is_none()
    }

    /// Its bytes: 32.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut encoder = Encoder::new(STRUCTURE);
        encoder
            .u8(self.element.id())
            .u8(self.history.id())
            .u8(self.arrangement.id())
            .u8(self.coder.id())
            .u8(self.second_pass.id())
            .small_count(self.lags.as_slice().len())
            .u16(0);
        for stride in self.lags.strides {
            encoder.u32(stride);
        }
        encoder.finish(self, Self::of_bytes)
    }

    /// The scheme that `bytes` are.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut decoder = Decoder::new(STRUCTURE, bytes);
        let scheme = Self::decode(&mut decoder)?;
        decoder.end()?;
        Ok(scheme)
    }

    /// The scheme in the next 32 bytes.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let id = decoder.u8("element type")?;
        let element = ElementType::from_id(id)
            .ok_or_else(|| decoder.refuse("element type", 1, "1 to 15", id))?;
        let history = one_of(decoder, "history", &History::ALL, History::id)?;
        let arrangement = one_of(decoder, "arrangement", &Arrangement::ALL, Arrangement::id)?;
        let coder = one_of(decoder, "coder", &Coder::ALL, Coder::id)?;
        let second_pass = one_of(decoder, "second pass", &SecondPass::ALL, SecondPass::id)?;
        let count = usize::from(decoder.u8("lags")?);
        if count > LAGS_MAX {
            return Err(decoder.refuse("lags", 1, format!("at most {LAGS_MAX}"), count));
        }
        decoder.zeros("reserved", 2)?;
        let mut lags = Lags::NONE;
        for (index, place) in lags.strides.iter_mut().enumerate() {
            let stride = decoder.u32("lag")?;
            if (index < count) != (stride > 0) {
                let expected = if index < count { "1 or more" } else { "0" };
                return Err(decoder.refuse("lag", 4, expected, stride));
            }
            *place = stride;
        }
        let scheme = Self {
            element,
            history,
            lags,
            arrangement,
            coder,
            second_pass,
        };
        match scheme.conflict() {
            None => Ok(scheme),
            Some((field, expected)) => {
                let found = if field == "coder" {
                    coder.id()
                } else {
                    arrangement.id()
                };
                Err(decoder.refuse(field, SCHEME_BYTES, expected, found))
            }
        }
    }
}

impl std::fmt::Display for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.element.name())?;
        if self.needs_base() {
            write!(f, " {}", self.history.name())?;
        }
        if !self.lags.is_empty() {
            write!(f, " lags {:?}", self.lags.as_slice())?;
        }
        if self.arrangement != Arrangement::Plain {
            write!(f, " {}", self.arrangement.name())?;
        }
        write!(f, " {}", self.coder.name())?;
        if self.second_pass != SecondPass::None {
            write!(f, " then {}", self.second_pass.name())?;
        }
        Ok(())
    }
}

/// The one of `all` whose id is the next byte.
fn one_of<T: Copy>(
    decoder: &mut Decoder<'_>,
    field: &'static str,
    all: &[T],
    id_of: impl Fn(T) -> u8,
) -> Result<T, FormatError> {
    let id = decoder.u8(field)?;
    if let Some(one) = all.iter().copied().find(|&one| id_of(one) == id) {
        return Ok(one);
    }
    let known: Vec<String> = all.iter().map(|&one| id_of(one).to_string()).collect();
    let known = known.join(", ");
    let mut reserved = RESERVED.iter();
    Err(
        match reserved.find(|(of, number, _)| (*of, *number) == (field, id)) {
            Some((_, _, name)) => decoder.refuse(
                GIVEN_UP,
                1,
                format!("{field} {known}"),
                format!("{field} {id}, {name}"),
            ),
            None => decoder.refuse(field, 1, known, id),
        },
    )
}
