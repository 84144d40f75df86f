// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a systematic erasure code: parity of data pieces, and lost pieces from those that are left.
//! In from: whoever holds the pieces of a stripe. Out to: the caller's buffers.
//! Invariants: any pieces of a stripe, as many as it has data pieces, give all the others, whichever
//! columns it uses; a column that takes no part, and what a short piece lacks, are zeros that nobody
//! sends and nothing reads.
//!
//! # The code
//!
//! A stripe has up to [`COLUMNS_MAX`] data pieces, each in the **column** of the group's member that it
//! comes from, and parity pieces in **rows** from 0. Byte by byte, over GF(2^8) with the polynomial
//! 0x11d, parity is a sum of products: `parity[row] = sum of coefficient(row, column) * data[column]`.
//!
//! The coefficients are a Cauchy matrix `1 / (x[row] + y[column])`, with `y[column] = column` and
//! `x[row] = 32 + row`, each column multiplied by `x[0] + y[column]`:
//!
//! `coefficient(row, column) = (x[0] + y[column]) / (x[row] + y[column])`
//!
//! Every square part of a Cauchy matrix can be inverted, and scaling columns does not change that. So
//! any loss of pieces up to the number of parity pieces can be solved for. Row 0 is all ones: with one
//! parity piece the code is XOR, with one data piece and one parity piece it is a copy.
//!
//! Sources: J. Bloemer and others, "An XOR-Based Erasure-Resilient Coding Scheme", ICSI TR-95-048, 1995
//! (Cauchy matrices for erasure codes); J. S. Plank and L. Xu, "Optimizing Cauchy Reed-Solomon Codes for
//! Fault-Tolerant Network Storage Applications", NCA 2006 (scaling to ones).

use super::gf256::{self, Kernel, Mode, invert, multiply};
use super::matrix;
use backstay_base::error::{Error, ErrorKind, Result};
use std::fmt;

/// Members of a group, and with that data pieces of a stripe.
pub const COLUMNS_MAX: usize = 32;

/// Parity pieces of a stripe: a group keeps at least one member for data.
pub const ROWS_MAX: usize = 31;

/// A piece of a stripe, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Piece {
    /// Data of the member in this column.
    Data(usize),
    /// The parity of this row.
    Parity(usize),
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(column) => write!(f, "data {column}"),
            Self::Parity(row) => write!(f, "parity {row}"),
        }
    }
}

/// What the data of a column is multiplied by in a row of parity; 0 beyond the limits.
pub const fn coefficient(row: usize, column: usize) -> u8 {
    if row >= ROWS_MAX || column >= COLUMNS_MAX {
        return 0;
    }
    // COLUMNS_MAX is a power of two above all columns, so the sums are never zero.
    let [x, ..] = (COLUMNS_MAX + row).to_le_bytes();
    let [first, ..] = COLUMNS_MAX.to_le_bytes();
    let [y, ..] = column.to_le_bytes();
    multiply(first ^ y, invert(x ^ y))
}

/// A code with some number of parity pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    parities: usize,
    kernel: Kernel,
}

impl Code {
    /// A code with this many parity pieces, on the fastest kernel.
    pub fn new(parities: usize) -> Result<Self> {
        Self::with_kernel(parities, Kernel::best())
    }

    /// The same on a chosen kernel.
    pub fn with_kernel(parities: usize, kernel: Kernel) -> Result<Self> {
        if !(1..=ROWS_MAX).contains(&parities) {
            return Err(wrong(format!("{parities} parities, not 1 to {ROWS_MAX}")));
        }
        if !kernel.is_available() {
            let context = format!("this processor cannot run the kernel {}", kernel.name());
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(Self { parities, kernel })
    }

    /// How many pieces of a stripe can be lost.
    pub fn parities(&self) -> usize {
        self.parities
    }

    /// What it computes with.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Fills parity, given by its row, from data, given by its column. Each parity buffer is as long as
    /// the longest piece. Any rows may be asked for.
    pub fn encode(&self, data: &[(usize, &[u8])], parity: &mut [(usize, &mut [u8])]) -> Result<()> {
        let longest = data.iter().map(|(_, piece)| piece.len()).max().unwrap_or(0);
        if let Some((row, buffer)) = parity.iter().find(|(_, buffer)| buffer.len() != longest) {
            let length = buffer.len();
            return Err(wrong(format!(
                "parity {row} has {length} bytes, the longest piece {longest}"
            )));
        }
        self.run(data, parity, Mode::Fill)
    }

    /// Adds the share of some data to parity that holds the share of other data, or zeros. Data and
    /// parity are the same range of their pieces; data may end earlier.
    ///
    /// What arrives together is best added together, and piece by piece in ranges that the second-level
    /// cache holds: parity is read and written once in each call.
    ///
    /// Adding is its own inverse: data whose share is already there is taken out of the parity.
    pub fn accumulate(
        &self,
        data: &[(usize, &[u8])],
        parity: &mut [(usize, &mut [u8])],
    ) -> Result<()> {
        let shortest = parity.iter().map(|(_, buffer)| buffer.len()).min();
        let shortest = shortest.unwrap_or(0);
        if let Some((column, piece)) = data.iter().find(|(_, piece)| piece.len() > shortest) {
            let length = piece.len();
            return Err(wrong(format!(
                "data {column} has {length} bytes, parity {shortest}"
            )));
        }
        self.run(data, parity, Mode::Add)
    }

    fn run(
        &self,
        data: &[(usize, &[u8])],
        parity: &mut [(usize, &mut [u8])],
        mode: Mode,
    ) -> Result<()> {
        self.check(data.iter().map(|&(column, _)| Piece::Data(column)))?;
        self.check(parity.iter().map(|&(row, _)| Piece::Parity(row)))?;
        let rows: Vec<Vec<u8>> = parity
            .iter()
            .map(|&(row, _)| data.iter().map(|&(at, _)| coefficient(row, at)).collect())
            .collect();
        let sources: Vec<&[u8]> = data.iter().map(|&(_, piece)| piece).collect();
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|(_, to)| &mut **to).collect();
        combine_ragged(self.kernel, &rows, &sources, &mut outputs, mode);
        Ok(())
    }

    /// Rebuilds the `lost` pieces of a stripe, data or parity, from those that are `present`. `lengths`
    /// are the columns that took part, and how long their pieces were; each buffer has the length of
    /// its piece, parity that of the longest one. A damaged piece is not present.
    pub fn rebuild(
        &self,
        lengths: &[(usize, usize)],
        present: &[(Piece, &[u8])],
        lost: &mut [(Piece, &mut [u8])],
    ) -> Result<()> {
        let columns: Vec<usize> = lengths.iter().map(|&(column, _)| column).collect();
        let here: Vec<Piece> = present.iter().map(|&(piece, _)| piece).collect();
        let wanted: Vec<Piece> = lost.iter().map(|&(piece, _)| piece).collect();
        let plan = self.plan(&columns, &here, &wanted)?;
        let longest = lengths.iter().map(|&(_, length)| length).max().unwrap_or(0);
        let length_of = |piece: Piece| match piece {
            Piece::Data(at) => lengths.iter().find(|&&(column, _)| column == at),
            Piece::Parity(_) => None,
        };
        let given = present.iter().map(|(piece, bytes)| (*piece, bytes.len()));
        let given = given.chain(lost.iter().map(|(piece, to)| (*piece, to.len())));
        for (piece, length) in given {
            let right = length_of(piece).map_or(longest, |&(_, length)| length);
            if length != right {
                return Err(wrong(format!("{piece} has {length} bytes, not {right}")));
            }
        }
        let bytes_of = |wanted: &Piece| present.iter().find(|(piece, _)| piece == wanted);
        let sources: Vec<&[u8]> = plan
            .sources
            .iter()
            .filter_map(bytes_of)
            .map(|&(_, bytes)| bytes)
            .collect();
        let mut outputs: Vec<&mut [u8]> = lost.iter_mut().map(|(_, to)| &mut **to).collect();
        plan.fill(&sources, &mut outputs)
    }

    /// How the `lost` pieces of a stripe follow from those that are `present`; `columns` took part in
    /// it. An error says how many pieces are missing, and how many the code covers.
    pub fn plan(&self, columns: &[usize], present: &[Piece], lost: &[Piece]) -> Result<Plan> {
        self.check(columns.iter().map(|&column| Piece::Data(column)))?;
        self.check(present.iter().copied())?;
        self.check(lost.iter().copied())?;
        let foreign = |piece: &&Piece| matches!(piece, Piece::Data(at) if !columns.contains(at));
        if let Some(piece) = present.iter().chain(lost).find(foreign) {
            return Err(wrong(format!("{piece} has no part in the stripe")));
        }
        if let Some(piece) = lost.iter().find(|piece| present.contains(piece)) {
            return Err(wrong(format!("{piece} is both present and lost")));
        }
        let is_here = |&column: &usize| present.contains(&Piece::Data(column));
        let (here, missing): (Vec<usize>, Vec<usize>) = columns.iter().copied().partition(is_here);
        let mut rows: Vec<usize> = (0..self.parities)
            .filter(|&row| present.contains(&Piece::Parity(row)))
            .collect();
        if rows.len() < missing.len() {
            return Err(self.beyond(missing.len(), rows.len(), columns.len()));
        }
        rows.truncate(missing.len());
        let singular = || {
            let context = format!("rows {rows:?} do not give columns {missing:?}");
            Error::new(ErrorKind::Internal, context)
        };
        let solved = solve(&here, &missing, &rows).ok_or_else(singular)?;
        let sources = here.iter().map(|&column| Piece::Data(column));
        let sources = sources.chain(rows.iter().map(|&row| Piece::Parity(row)));
        Ok(Plan {
            kernel: self.kernel,
            sources: sources.collect(),
            rows: lost
                .iter()
                .map(|&piece| express(piece, &here, &missing, &solved))
                .collect(),
        })
    }

    /// The error of too many losses.
    fn beyond(&self, data: usize, parity: usize, columns: usize) -> Error {
        let (covers, lost) = (self.parities, data + self.parities - parity);
        let pieces = columns + self.parities;
        Error::new(
            ErrorKind::Corrupt,
            format!("{lost} of the {pieces} pieces of a stripe are missing, {covers} are covered"),
        )
    }

    /// That pieces lie within the code, each once.
    fn check(&self, pieces: impl Iterator<Item = Piece>) -> Result<()> {
        let mut seen = Vec::new();
        for piece in pieces {
            let within = match piece {
                Piece::Data(column) => column < COLUMNS_MAX,
                Piece::Parity(row) => row < self.parities,
            };
            if !within {
                let parities = self.parities;
                return Err(wrong(format!(
                    "there is no {piece}: {COLUMNS_MAX} columns, {parities} parities"
                )));
            }
            if seen.contains(&piece) {
                return Err(wrong(format!("{piece} is named twice")));
            }
            seen.push(piece);
        }
        Ok(())
    }
}

/// How lost pieces of a stripe follow from others: for all bytes alike, so that a caller can apply it
/// to ranges of the pieces as they arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    kernel: Kernel,
    sources: Vec<Piece>,
    /// By lost piece, then by source.
    rows: Vec<Vec<u8>>,
}

impl Plan {
    /// The pieces that it reads: no more than there were data pieces.
    pub fn sources(&self) -> &[Piece] {
        &self.sources
    }

    /// Fills the lost pieces from all sources, both in the plan's order. All are the same range of
    /// their pieces; a source may end earlier.
    pub fn fill(&self, sources: &[&[u8]], lost: &mut [&mut [u8]]) -> Result<()> {
        self.check(sources.len(), lost.len())?;
        combine_ragged(self.kernel, &self.rows, sources, lost, Mode::Fill);
        Ok(())
    }

    /// Adds the share of one source, the `source`-th of the plan, to lost pieces that hold the share of
    /// other sources, or zeros.
    pub fn accumulate(&self, source: usize, bytes: &[u8], lost: &mut [&mut [u8]]) -> Result<()> {
        self.check(self.sources.len(), lost.len())?;
        if source >= self.sources.len() {
            let sources = self.sources.len();
            return Err(wrong(format!("source {source} of a plan with {sources}")));
        }
        let rows: Vec<Vec<u8>> = self.rows.iter().map(|row| vec![row[source]]).collect();
        combine_ragged(self.kernel, &rows, &[bytes], lost, Mode::Add);
        Ok(())
    }

    fn check(&self, sources: usize, lost: usize) -> Result<()> {
        if (sources, lost) == (self.sources.len(), self.rows.len()) {
            return Ok(());
        }
        let (from, to) = (self.sources.len(), self.rows.len());
        Err(wrong(format!(
            "{sources} sources and {lost} lost pieces for a plan from {from} to {to}"
        )))
    }
}

/// The missing columns, each as coefficients of the columns that are here and of the parity rows.
///
/// Parity without what is here is the missing columns times their part of the matrix, whose inverse
/// gives them back.
fn solve(here: &[usize], missing: &[usize], rows: &[usize]) -> Option<Vec<Vec<u8>>> {
    let part: Vec<Vec<u8>> = rows
        .iter()
        .map(|&row| missing.iter().map(|&at| coefficient(row, at)).collect())
        .collect();
    let inverse = matrix::inverse(&part)?;
    let solved = inverse.iter().map(|line| {
        let share = |&column: &usize| {
            let terms = line.iter().zip(rows);
            terms.fold(0, |sum, (&by, &row)| {
                sum ^ multiply(by, coefficient(row, column))
            })
        };
        here.iter().map(share).chain(line.iter().copied()).collect()
    });
    Some(solved.collect())
}

/// A lost piece as coefficients of the same sources.
fn express(piece: Piece, here: &[usize], missing: &[usize], solved: &[Vec<u8>]) -> Vec<u8> {
    let weight = |column| match piece {
        Piece::Data(at) => u8::from(at == column),
        Piece::Parity(row) => coefficient(row, column),
    };
    let mut row = vec![0; here.len() + missing.len()];
    for (cell, &column) in row.iter_mut().zip(here) {
        *cell = weight(column);
    }
    for (&column, line) in missing.iter().zip(solved) {
        for (cell, &by) in row.iter_mut().zip(line) {
            *cell ^= multiply(weight(column), by);
        }
    }
    row
}

/// Combines buffers of different lengths: range by range between their ends, those that reach so far.
fn combine_ragged(
    kernel: Kernel,
    rows: &[Vec<u8>],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    mode: Mode,
) {
    let lengths = sources.iter().map(|source| source.len());
    let mut ends: Vec<usize> = lengths.chain(outputs.iter().map(|to| to.len())).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    for end in ends {
        let reaching: Vec<usize> = (0..sources.len())
            .filter(|&source| sources[source].len() >= end)
            .collect();
        let cut: Vec<&[u8]> = reaching
            .iter()
            .map(|&at| &sources[at][start..end])
            .collect();
        let (mut chosen, mut buffers) = (Vec::new(), Vec::new());
        for (row, output) in rows.iter().zip(outputs.iter_mut()) {
            if output.len() >= end {
                chosen.push(reaching.iter().map(|&at| row[at]).collect::<Vec<u8>>());
                buffers.push(&mut output[start..end]);
            }
        }
        let chosen: Vec<&[u8]> = chosen.iter().map(Vec::as_slice).collect();
        gf256::combine(kernel, &chosen, &cut, &mut buffers, mode);
        start = end;
    }
}

fn wrong(context: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, context)
}

#[cfg(test)]
mod tests;
