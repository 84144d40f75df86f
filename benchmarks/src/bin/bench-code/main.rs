// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How fast parity is made and lost pieces are rebuilt on one core, beside memcpy of the same buffers.
//!
//! What is counted: a stripe of `k` data pieces of `length` bytes has `k * length` data bytes, whether
//! it is encoded, or pieces of it are rebuilt; memcpy copies the same pieces to as many other buffers.
//! A ratio is data bytes a second over bytes that memcpy copies a second, that is the time of memcpy
//! over the time of the code, both in CPU seconds, in turn within each round.
//!
//! Two places where the bytes are: `memory`, so many stripes that no cache holds them; `cache`, one
//! stripe again and again, which the last-level cache holds.

use backstay::redundancy::code::{Code, Piece, Plan, coefficient};
use backstay::redundancy::gf256::Kernel;
use backstay_bench::figures::{Better, Figure, Figures, median, say};
use backstay_bench::job::cpu_seconds;
use backstay_bench::options::Options;
use backstay_bench::{MIB, Outcome, size_f64};
use backstay_testkit::isal::{Isal, Tables};
use backstay_testkit::seeded::Seeded;
use std::hint::black_box;

const ROUNDS: usize = 9;

/// A code, by its numbers of data and parity pieces.
struct Shape {
    id: &'static str,
    name: &'static str,
    data: usize,
    parities: usize,
    /// Ratios to reach: encoding, rebuilding.
    reach: [Option<f64>; 2],
}

const SHAPES: [Shape; 2] = [
    Shape {
        id: "rs_8_2",
        name: "RS 8+2",
        data: 8,
        parities: 2,
        reach: [Some(1.2), Some(1.0)],
    },
    Shape {
        id: "xor_7_1",
        name: "XOR 7+1",
        data: 7,
        parities: 1,
        reach: [Some(1.0), None],
    },
];

fn main() -> Outcome<()> {
    let options = Options::from_arguments()?;
    let mut figures = Figures::new("code");
    let isal = Isal::load();
    if let Err(why) = &isal {
        say(&format!("without ISA-L: {why}"));
    }
    say(&format!("kernel: {}", Kernel::best().name()));
    for shape in &SHAPES {
        for mib in [1, 4] {
            for place in ["memory", "cache"] {
                let data_bytes = if options.quick { 64 * MIB } else { 512 * MIB };
                let stripe_bytes = shape.data * mib * MIB;
                let count = match place {
                    "memory" => data_bytes / stripe_bytes,
                    _ => 1,
                };
                let passes = (data_bytes / stripe_bytes / count).max(1);
                let mut bench = Bench::new(shape, mib * MIB, count, isal.as_ref().ok())?;
                for _ in 0..ROUNDS {
                    bench.round(passes)?;
                }
                bench.report(
                    &format!("{}.{place}.{mib}mib", shape.id),
                    place,
                    mib,
                    &mut figures,
                );
            }
        }
    }
    say(&figures.table());
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// Stripes in memory, and what was measured on them.
struct Bench<'a> {
    shape: &'a Shape,
    /// By stripe, then by piece.
    data: Vec<Vec<Vec<u8>>>,
    copies: Vec<Vec<Vec<u8>>>,
    parity: Vec<Vec<Vec<u8>>>,
    rebuilt: Vec<Vec<Vec<u8>>>,
    ours: Coder,
    naive: Coder,
    isal: Option<(&'a Isal, [Tables; 2])>,
    /// CPU seconds a data byte: memcpy, then encoding and rebuilding of ours, the naive kernel, ISA-L.
    samples: [Vec<f64>; 7],
}

/// A code and the plan of what is lost.
struct Coder {
    code: Code,
    plan: Plan,
}

impl Coder {
    fn new(shape: &Shape, kernel: Kernel) -> Outcome<Self> {
        let code = Code::with_kernel(shape.parities, kernel)?;
        let columns: Vec<usize> = (0..shape.data).collect();
        let present = (shape.parities..shape.data).map(Piece::Data);
        let present: Vec<Piece> = present
            .chain((0..shape.parities).map(Piece::Parity))
            .collect();
        let lost: Vec<Piece> = (0..shape.parities).map(Piece::Data).collect();
        let plan = code.plan(&columns, &present, &lost)?;
        Ok(Self { code, plan })
    }
}

impl<'a> Bench<'a> {
    fn new(shape: &'a Shape, length: usize, count: usize, isal: Option<&'a Isal>) -> Outcome<Self> {
        let mut random = Seeded::new(1);
        let mut buffers = |pieces: usize| -> Vec<Vec<Vec<u8>>> {
            let mut piece = |_| {
                let words = (0..length / 8).flat_map(|_| random.next_u64().to_le_bytes());
                words.collect::<Vec<u8>>()
            };
            let stripe = |_| (0..pieces).map(&mut piece).collect();
            (0..count).map(stripe).collect()
        };
        let isal = match isal {
            Some(isal) => Some((isal, isal_tables(isal, shape)?)),
            None => None,
        };
        Ok(Self {
            shape,
            data: buffers(shape.data),
            copies: buffers(shape.data),
            parity: buffers(shape.parities),
            rebuilt: buffers(shape.parities),
            ours: Coder::new(shape, Kernel::best())?,
            naive: Coder::new(shape, Kernel::Naive)?,
            isal,
            samples: std::array::from_fn(|_| Vec::new()),
        })
    }

    fn data_bytes(&self) -> f64 {
        size_f64(self.data.len() * self.shape.data * self.data[0][0].len())
    }

    /// One of each, in turn.
    fn round(&mut self, passes: usize) -> Outcome<()> {
        self.measure(0, passes, |bench| {
            for (data, copies) in bench.data.iter().zip(&mut bench.copies) {
                for (from, to) in data.iter().zip(copies) {
                    to.copy_from_slice(from);
                    black_box(to);
                }
            }
            Ok(())
        })?;
        self.measure(1, passes, |bench| bench.encode(bench.ours.code))?;
        self.measure(2, passes, |bench| bench.rebuild(|bench| &bench.ours.plan))?;
        self.check()?;
        if self.isal.is_some() {
            self.measure(5, passes, Self::isal_encode)?;
            self.measure(6, passes, Self::isal_rebuild)?;
            self.check()?;
        }
        // Slow, and always the same: once is enough.
        if self.samples[3].is_empty() {
            self.measure(3, 1, |bench| bench.encode(bench.naive.code))?;
            self.measure(4, 1, |bench| bench.rebuild(|bench| &bench.naive.plan))?;
            self.check()?;
        }
        Ok(())
    }

    fn measure(
        &mut self,
        which: usize,
        passes: usize,
        mut work: impl FnMut(&mut Self) -> Outcome<()>,
    ) -> Outcome<()> {
        let start = cpu_seconds();
        for _ in 0..passes {
            work(self)?;
        }
        let spent = cpu_seconds() - start;
        self.samples[which].push(spent / self.data_bytes() / size_f64(passes));
        Ok(())
    }

    fn encode(&mut self, code: Code) -> Outcome<()> {
        for (data, parity) in self.data.iter().zip(&mut self.parity) {
            let pieces: Vec<(usize, &[u8])> = slices(data).into_iter().enumerate().collect();
            let mut rows: Vec<(usize, &mut [u8])> =
                slices_mut(parity).into_iter().enumerate().collect();
            code.encode(&pieces, &mut rows)?;
        }
        Ok(())
    }

    fn rebuild(&mut self, plan: impl Fn(&Self) -> &Plan) -> Outcome<()> {
        let plan = plan(self).clone();
        for ((data, parity), rebuilt) in self.data.iter().zip(&self.parity).zip(&mut self.rebuilt) {
            let sources = left(self.shape, data, parity);
            plan.fill(&sources, &mut slices_mut(rebuilt))?;
        }
        Ok(())
    }

    fn isal_encode(&mut self) -> Outcome<()> {
        let Some((isal, [tables, _])) = &self.isal else {
            return Ok(());
        };
        for (data, parity) in self.data.iter().zip(&mut self.parity) {
            isal.encode(tables, &slices(data), &mut slices_mut(parity))?;
        }
        Ok(())
    }

    fn isal_rebuild(&mut self) -> Outcome<()> {
        let Some((isal, [_, tables])) = &self.isal else {
            return Ok(());
        };
        for ((data, parity), rebuilt) in self.data.iter().zip(&self.parity).zip(&mut self.rebuilt) {
            let sources = left(self.shape, data, parity);
            isal.encode(tables, &sources, &mut slices_mut(rebuilt))?;
        }
        Ok(())
    }

    /// That what was rebuilt is what was lost; the buffers are spoilt for the next one.
    fn check(&mut self) -> Outcome<()> {
        for ((data, rebuilt), parity) in self
            .data
            .iter()
            .zip(&mut self.rebuilt)
            .zip(&mut self.parity)
        {
            if data[..self.shape.parities] != rebuilt[..] {
                return Err("what was rebuilt differs".into());
            }
            for buffer in rebuilt.iter_mut().chain(parity) {
                buffer.fill(0);
            }
        }
        Ok(())
    }

    fn report(&self, id: &str, place: &str, mib: usize, figures: &mut Figures) {
        let name = format!("{}, {mib} MiB pieces, {place}", self.shape.name);
        let rates: Vec<f64> = self.samples[0].iter().map(|cost| 1e-9 / cost).collect();
        figures.push(Figure::shown(
            format!("code.{id}.memcpy"),
            format!("{name}: memcpy"),
            "GB/s",
            Better::Higher,
            &rates,
        ));
        let names = ["encode", "rebuild"];
        let kinds = [
            ("", "", 1),
            ("_isal", " by ISA-L", 5),
            ("_naive", ", naive", 3),
        ];
        for (suffix, words, first) in kinds {
            for (which, operation) in names.iter().enumerate() {
                let costs = self.samples[first + which].iter();
                let ratios: Vec<f64> = match suffix {
                    "_naive" => costs
                        .map(|cost| median(&self.samples[0]).unwrap_or(0.0) / cost)
                        .collect(),
                    _ => costs
                        .zip(&self.samples[0])
                        .map(|(cost, copy)| copy / cost)
                        .collect(),
                };
                if ratios.is_empty() {
                    continue;
                }
                let mut figure = Figure::shown(
                    format!("code.{id}.{operation}{suffix}"),
                    format!("{name}: {operation}{words} / memcpy"),
                    "ratio",
                    Better::Higher,
                    &ratios,
                );
                if suffix.is_empty() {
                    figure.reach = self.shape.reach[which];
                }
                figures.push(figure);
            }
        }
    }
}

/// The pieces of a stripe that are not lost, in the order of a plan.
fn left<'a>(shape: &Shape, data: &'a [Vec<u8>], parity: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    let data = data.iter().skip(shape.parities);
    data.chain(parity).map(Vec::as_slice).collect()
}

/// What ISA-L encodes with, and what it rebuilds the first pieces with.
fn isal_tables(isal: &Isal, shape: &Shape) -> Outcome<[Tables; 2]> {
    let columns = 0..shape.data;
    let weights = |row| columns.clone().map(|at| coefficient(row, at)).collect();
    let unit = |row| columns.clone().map(|at| u8::from(at == row)).collect();
    let parity: Vec<Vec<u8>> = (0..shape.parities).map(weights).collect();
    let left: Vec<Vec<u8>> = (shape.parities..shape.data)
        .map(unit)
        .chain(parity.clone())
        .collect();
    let inverse = isal.inverse(&left)?.ok_or("ISA-L finds no inverse")?;
    let lost = isal.tables(&inverse[..shape.parities])?;
    Ok([isal.tables(&parity)?, lost])
}

fn slices(pieces: &[Vec<u8>]) -> Vec<&[u8]> {
    pieces.iter().map(Vec::as_slice).collect()
}

fn slices_mut(pieces: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    pieces.iter_mut().map(Vec::as_mut_slice).collect()
}
