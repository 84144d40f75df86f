// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the coders that others wrote, called in one way: LZ4, Zstandard, Pcodec.
//! In from: `shuffle` (bytes), `history`, `predict` (words). Out to: the encoded stream, and the way
//! back.
//! Invariants: what is decoded has the length that the caller says, or that is an error; nothing is
//! allocated by a number that stands in the stream, but what the caller's length allows.
//! Format: docs/format/codec.md, section "Coders".

use super::words::Word;
use super::{Effort, damaged};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::ElementType;
use backstay_format::scheme::{Coder, Scheme};
use pco::data_types::Number;
use pco::metadata::DeltaEncoding;
use pco::wrapped::{FileCompressor, FileDecompressor};
use pco::{ChunkConfig, DeltaSpec, ModeSpec, PagingSpec};

/// Numbers that Pcodec describes at once.
pub(super) const NUMBERS: usize = 1 << 18;
/// A mode of Pcodec that allocates by a number that nothing has earned; no writer here takes it.
const DICTIONARY_MODE: u8 = 4;
/// Largest window of Pcodec, as a logarithm: no larger than [`NUMBERS`].
const WINDOW_LOG: u32 = 18;

/// Contexts of the coders for bytes, used again and again.
pub(super) struct General {
    pub(super) effort: Effort,
    compressor: Option<(i32, zstd::bulk::Compressor<'static>)>,
    decompressor: Option<zstd::bulk::Decompressor<'static>>,
}

impl std::fmt::Debug for General {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("General")
            .field("effort", &self.effort)
            .finish_non_exhaustive()
    }
}

fn failed(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::caused(ErrorKind::Internal, format!("{what} failed"), error)
}

impl General {
    pub(super) fn new() -> Self {
        Self {
            effort: Effort::default(),
            compressor: None,
            decompressor: None,
        }
    }

    /// Appends a Zstandard frame.
    pub(super) fn zstd(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let level = i32::from(self.effort.zstd);
        let compressor = match &mut self.compressor {
            Some((of, compressor)) if *of == level => compressor,
            place => {
                let made = zstd::bulk::Compressor::new(level);
                let made = made.map_err(|error| failed("making a compressor", error))?;
                &mut place.insert((level, made)).1
            }
        };
        let before = out.len();
        out.resize(before + zstd::zstd_safe::compress_bound(bytes.len()), 0);
        let length = compressor
            .compress_to_buffer(bytes, &mut out[before..])
            .map_err(|error| failed("Zstandard", error))?;
        out.truncate(before + length);
        Ok(())
    }

    /// Fills `out` from a Zstandard frame.
    pub(super) fn unzstd(&mut self, coded: &[u8], out: &mut [u8]) -> Result<()> {
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            place => {
                let made = zstd::bulk::Decompressor::new();
                place.insert(made.map_err(|error| failed("making a decompressor", error))?)
            }
        };
        let length = decompressor.decompress_to_buffer(coded, out);
        let length = length.map_err(|error| corrupt("a Zstandard frame", error))?;
        exactly(length, out.len())
    }

    /// Appends what `coder` makes of `bytes`.
    pub(super) fn encode(&mut self, coder: Coder, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        match coder {
            Coder::Raw | Coder::Pco => out.extend_from_slice(bytes),
            Coder::Lz4 => {
                let before = out.len();
                let most = lz4_flex::block::get_maximum_output_size(bytes.len());
                out.resize(before + most, 0);
                let length = lz4_flex::block::compress_into(bytes, &mut out[before..]);
                let length = length.map_err(|error| failed("LZ4", error))?;
                out.truncate(before + length);
            }
            Coder::Zstd => self.zstd(bytes, out)?,
        }
        Ok(())
    }

    /// The inverse of [`General::encode`].
    pub(super) fn decode(&mut self, coder: Coder, coded: &[u8], out: &mut [u8]) -> Result<()> {
        match coder {
            Coder::Raw | Coder::Pco => {
                exactly(coded.len(), out.len())?;
                out.copy_from_slice(coded);
                Ok(())
            }
            Coder::Lz4 => {
                let length = lz4_flex::block::decompress_into(coded, out);
                let length = length.map_err(|error| corrupt("an LZ4 block", error))?;
                exactly(length, out.len())
            }
            Coder::Zstd => self.unzstd(coded, out),
        }
    }
}

fn corrupt(what: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::caused(
        ErrorKind::Corrupt,
        format!("{what} cannot be decoded"),
        error,
    )
}

fn exactly(found: usize, wanted: usize) -> Result<()> {
    if found == wanted {
        Ok(())
    } else {
        let words = format!("an encoded stream has {found} bytes, not {wanted}");
        Err(damaged(&words))
    }
}

/// Whether the words are the numbers as they are, so that Pcodec may know their type.
fn is_typed(scheme: &Scheme) -> bool {
    !scheme.needs_base() && scheme.lags.is_empty() && scheme.component_bytes() > 2
}

/// Appends the numbers as Pcodec keeps them.
pub(super) fn encode_numbers<W: Word>(
    scheme: &Scheme,
    words: &[W],
    effort: Effort,
    out: &mut Vec<u8>,
) -> Result<()> {
    use ElementType::{Complex64, Complex128, F32, F64, U32, U64};
    if !is_typed(scheme) {
        return compress(words, scheme, effort, out);
    }
    match scheme.element {
        F32 | Complex64 => compress::<f32>(bytemuck::cast_slice(words), scheme, effort, out),
        F64 | Complex128 => compress::<f64>(bytemuck::cast_slice(words), scheme, effort, out),
        U32 => compress::<u32>(bytemuck::cast_slice(words), scheme, effort, out),
        U64 => compress::<u64>(bytemuck::cast_slice(words), scheme, effort, out),
        _ => compress(words, scheme, effort, out),
    }
}

/// The inverse of [`encode_numbers`].
pub(super) fn decode_numbers<W: Word>(
    scheme: &Scheme,
    coded: &[u8],
    words: &mut [W],
) -> Result<()> {
    use ElementType::{Complex64, Complex128, F32, F64, U32, U64};
    if !is_typed(scheme) {
        return decompress(coded, words);
    }
    match scheme.element {
        F32 | Complex64 => decompress::<f32>(coded, bytemuck::cast_slice_mut(words)),
        F64 | Complex128 => decompress::<f64>(coded, bytemuck::cast_slice_mut(words)),
        U32 => decompress::<u32>(coded, bytemuck::cast_slice_mut(words)),
        U64 => decompress::<u64>(coded, bytemuck::cast_slice_mut(words)),
        _ => decompress(coded, words),
    }
}

fn compress<T: Number>(
    numbers: &[T],
    scheme: &Scheme,
    effort: Effort,
    out: &mut Vec<u8>,
) -> Result<()> {
    let wrong = |error| failed("Pcodec", error);
    let file = FileCompressor::default();
    file.write_header(&mut *out).map_err(wrong)?;
    for chunk in numbers.chunks(NUMBERS) {
        let mut config = ChunkConfig::default()
            .with_compression_level(usize::from(effort.pco))
            .with_paging_spec(PagingSpec::EqualPagesUpTo(NUMBERS));
        if !scheme.lags.is_empty() {
            // The differences are taken already.
            config = config.with_delta_spec(DeltaSpec::NoOp);
        }
        if !is_typed(scheme) {
            config = config.with_mode_spec(ModeSpec::Classic);
        }
        let mut compressor = file.chunk_compressor(chunk, &config).map_err(wrong)?;
        compressor.write_meta(&mut *out).map_err(wrong)?;
        for page in 0..compressor.n_per_page().len() {
            compressor.write_page(page, &mut *out).map_err(wrong)?;
        }
    }
    Ok(())
}

fn decompress<T: Number>(coded: &[u8], numbers: &mut [T]) -> Result<()> {
    let wrong = |error| corrupt("a stream of Pcodec", error);
    let (file, mut rest) = FileDecompressor::new(coded).map_err(wrong)?;
    for chunk in numbers.chunks_mut(NUMBERS) {
        if rest
            .first()
            .is_some_and(|first| first & 0xf == DICTIONARY_MODE)
        {
            return Err(damaged("a chunk of Pcodec has a dictionary"));
        }
        let (mut decompressor, after) = file.chunk_decompressor::<T, _>(rest).map_err(wrong)?;
        if let DeltaEncoding::Lookback { config, .. } = &decompressor.meta().delta_encoding
            && config.window_n_log > WINDOW_LOG
        {
            return Err(damaged("a chunk of Pcodec looks back too far"));
        }
        let count = chunk.len();
        let mut page = decompressor
            .page_decompressor(after, count)
            .map_err(wrong)?;
        let progress = page.read(chunk).map_err(wrong)?;
        exactly(progress.n_processed, count)?;
        rest = page.into_src();
    }
    exactly(rest.len(), 0)
}
