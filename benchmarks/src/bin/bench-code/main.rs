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

use backstay_bench::figures::{Better, Figure, Figures, say};
use backstay_bench::job::cpu_seconds;
use backstay_bench::options::Options;
use backstay_bench::{MIB, Outcome, size_f64};
use backstay_parity::code::{Code, Piece, Plan, coefficient};
use backstay_parity::gf256::Kernel;
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
    let data_bytes = if options.quick { 64 * MIB } else { 512 * MIB };
    for shape in &SHAPES {
        for mib in [1, 4] {
            for place in ["memory", "cache"] {
                let all = data_bytes / (shape.data * mib * MIB);
                let (count, passes) = if place == "memory" {
                    (all, 1)
                } else {
                    (1, all)
                };
                let mut stripes = Stripes::new(shape, mib * MIB, count);
                let mut operations = operations(shape, isal.as_ref().ok())?;
                for round in 0..ROUNDS {
                    for operation in &mut operations {
                        operation.measure(&mut stripes, round, passes)?;
                    }
                }
                let id = format!("code.{}.{place}.{mib}mib", shape.id);
                let name = format!("{}, {mib} MiB pieces, {place}", shape.name);
                report(&id, &name, &operations, &mut figures);
            }
        }
    }
    say(&figures.table());
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// Stripes in memory: by stripe, then by piece.
struct Stripes {
    shape: &'static Shape,
    data: Vec<Vec<Vec<u8>>>,
    copies: Vec<Vec<Vec<u8>>>,
    parity: Vec<Vec<Vec<u8>>>,
    rebuilt: Vec<Vec<Vec<u8>>>,
}

impl Stripes {
    fn new(shape: &'static Shape, length: usize, count: usize) -> Self {
        let mut random = Seeded::new(1);
        let mut buffers = |pieces: usize| -> Vec<Vec<Vec<u8>>> {
            let mut piece = |_| {
                let words = (0..length / 8).flat_map(|_| random.next_u64().to_le_bytes());
                words.collect::<Vec<u8>>()
            };
            let stripe = |_| (0..pieces).map(&mut piece).collect();
            (0..count).map(stripe).collect()
        };
        Self {
            shape,
            data: buffers(shape.data),
            copies: buffers(shape.data),
            parity: buffers(shape.parities),
            rebuilt: buffers(shape.parities),
        }
    }

    fn data_bytes(&self) -> f64 {
        size_f64(self.data.len() * self.shape.data * self.data[0][0].len())
    }

    fn copy(&mut self) {
        for (from, to) in self
            .data
            .iter()
            .flatten()
            .zip(self.copies.iter_mut().flatten())
        {
            to.copy_from_slice(from);
            black_box(to);
        }
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

    /// Encodes as pieces arrive from other members: one after the other.
    fn accumulate(&mut self, code: Code) -> Outcome<()> {
        for (data, parity) in self.data.iter().zip(&mut self.parity) {
            let mut rows: Vec<(usize, &mut [u8])> =
                slices_mut(parity).into_iter().enumerate().collect();
            for (column, piece) in data.iter().enumerate() {
                match column {
                    0 => code.encode(&[(0, piece)], &mut rows)?,
                    _ => code.accumulate(&[(column, piece)], &mut rows)?,
                }
            }
        }
        Ok(())
    }

    fn rebuild(&mut self, plan: &Plan) -> Outcome<()> {
        for ((data, parity), rebuilt) in self.data.iter().zip(&self.parity).zip(&mut self.rebuilt) {
            let sources = left(self.shape, data, parity);
            plan.fill(&sources, &mut slices_mut(rebuilt))?;
        }
        Ok(())
    }

    fn isal_encode(&mut self, isal: &Isal, tables: &Tables) -> Outcome<()> {
        for (data, parity) in self.data.iter().zip(&mut self.parity) {
            isal.encode(tables, &slices(data), &mut slices_mut(parity))?;
        }
        Ok(())
    }

    fn isal_rebuild(&mut self, isal: &Isal, tables: &Tables) -> Outcome<()> {
        for ((data, parity), rebuilt) in self.data.iter().zip(&self.parity).zip(&mut self.rebuilt) {
            let sources = left(self.shape, data, parity);
            isal.encode(tables, &sources, &mut slices_mut(rebuilt))?;
        }
        Ok(())
    }

    /// That what was rebuilt is what was lost; the buffers are spoilt for the next one.
    fn check(&mut self) -> Outcome<()> {
        for (data, rebuilt) in self.data.iter().zip(&mut self.rebuilt) {
            if data[..self.shape.parities] != rebuilt[..] {
                return Err("what was rebuilt differs".into());
            }
            for buffer in rebuilt {
                buffer.fill(0);
            }
        }
        Ok(())
    }
}

type Work<'a> = Box<dyn FnMut(&mut Stripes) -> Outcome<()> + 'a>;

/// What is timed.
struct Operation<'a> {
    id: String,
    name: String,
    reach: Option<f64>,
    /// Rounds that it takes part in.
    rounds: usize,
    /// Whether lost pieces are there afterwards.
    rebuilds: bool,
    work: Work<'a>,
    /// CPU seconds a data byte.
    costs: Vec<f64>,
}

impl<'a> Operation<'a> {
    fn new(id: &str, name: String, work: impl FnMut(&mut Stripes) -> Outcome<()> + 'a) -> Self {
        Self {
            id: id.to_owned(),
            name,
            reach: None,
            rounds: ROUNDS,
            rebuilds: id.starts_with("rebuild"),
            work: Box::new(work),
            costs: Vec::new(),
        }
    }

    fn measure(&mut self, stripes: &mut Stripes, round: usize, passes: usize) -> Outcome<()> {
        if round >= self.rounds {
            return Ok(());
        }
        let start = cpu_seconds();
        for _ in 0..passes {
            (self.work)(stripes)?;
        }
        let spent = cpu_seconds() - start;
        self.costs
            .push(spent / stripes.data_bytes() / size_f64(passes));
        if self.rebuilds {
            stripes.check()?;
        }
        Ok(())
    }
}

/// All that is timed in turn; memcpy is the first.
fn operations<'a>(shape: &'static Shape, isal: Option<&'a Isal>) -> Outcome<Vec<Operation<'a>>> {
    let mut all = vec![Operation::new("memcpy", "memcpy".to_owned(), |stripes| {
        stripes.copy();
        Ok(())
    })];
    let best = Kernel::best();
    let mut others: Vec<Kernel> = Kernel::ALL.into_iter().collect();
    others.retain(|&kernel| kernel != best && kernel.is_available());
    for kernel in [best].into_iter().chain(others) {
        let (code, plan) = coder(shape, kernel)?;
        let name = kernel.name();
        let mut pair = [
            Operation::new("encode", format!("encode, {name}"), move |stripes| {
                stripes.encode(code)
            }),
            Operation::new("rebuild", format!("rebuild, {name}"), move |stripes| {
                stripes.rebuild(&plan)
            }),
        ];
        for (operation, reach) in pair.iter_mut().zip(shape.reach) {
            if kernel == best {
                operation.reach = reach;
            } else {
                operation.id = format!("{}.{name}", operation.id);
                // To compare with; the naive one is slow.
                operation.rounds = if kernel == Kernel::Naive { 1 } else { 3 };
            }
        }
        all.extend(pair);
        if kernel == best {
            let name = format!("encode one by one, {name}");
            let work = move |stripes: &mut Stripes| stripes.accumulate(code);
            all.push(Operation::new("accumulate", name, work));
        }
    }
    if let Some(isal) = isal {
        let [encode, rebuild] = isal_tables(isal, shape)?;
        let (names, work) = (["encode.isal", "rebuild.isal"], "ISA-L");
        all.push(Operation::new(
            names[0],
            format!("encode, {work}"),
            move |stripes| stripes.isal_encode(isal, &encode),
        ));
        all.push(Operation::new(
            names[1],
            format!("rebuild, {work}"),
            move |stripes| stripes.isal_rebuild(isal, &rebuild),
        ));
    }
    Ok(all)
}

/// A code, and the plan that rebuilds its first data pieces.
fn coder(shape: &Shape, kernel: Kernel) -> Outcome<(Code, Plan)> {
    let code = Code::with_kernel(shape.parities, kernel)?;
    let columns: Vec<usize> = (0..shape.data).collect();
    let present = (shape.parities..shape.data).map(Piece::Data);
    let present: Vec<Piece> = present
        .chain((0..shape.parities).map(Piece::Parity))
        .collect();
    let lost: Vec<Piece> = (0..shape.parities).map(Piece::Data).collect();
    let plan = code.plan(&columns, &present, &lost)?;
    Ok((code, plan))
}

fn report(id: &str, name: &str, operations: &[Operation<'_>], figures: &mut Figures) {
    let Some((memcpy, others)) = operations.split_first() else {
        return;
    };
    let rates: Vec<f64> = memcpy.costs.iter().map(|cost| 1e-9 / cost).collect();
    figures.push(Figure::shown(
        format!("{id}.memcpy"),
        format!("{name}: memcpy"),
        "GB/s",
        Better::Higher,
        &rates,
    ));
    for operation in others {
        let pairs = operation.costs.iter().zip(&memcpy.costs);
        let ratios: Vec<f64> = pairs.map(|(cost, copy)| copy / cost).collect();
        let mut figure = Figure::shown(
            format!("{id}.{}", operation.id),
            format!("{name}: {} / memcpy", operation.name),
            "ratio",
            Better::Higher,
            &ratios,
        );
        figure.reach = operation.reach;
        figures.push(figure);
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
