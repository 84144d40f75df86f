// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans of segments: every block once, in the order of the page, within limits, and back again.

use backstay_archive::aggregate::{
    Block, Content, Merge, Options, Piece, RankBlocks, Segment, VariableBlocks, lags, plan,
};
use backstay_base::ErrorKind;
use backstay_format::Address;
use backstay_format::{ElementType, VariableDescriptor};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A variable with the bytes of its blocks.
#[derive(Debug, Clone)]
struct Variable {
    descriptor: VariableDescriptor,
    block_bytes: u32,
    blocks: Vec<Block>,
}

impl Variable {
    /// All blocks, or those whose number `keep` has.
    fn new(name: &str, element: ElementType, shape: &[u64], block_bytes: u32) -> Self {
        let descriptor = VariableDescriptor {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            slab: None,
            file: None,
        };
        let length = descriptor.length_bytes().unwrap();
        let size = u64::from(block_bytes);
        let block = |index: u64| Block {
            index,
            length: u32::try_from((length - index * size).min(size)).unwrap(),
        };
        let blocks = (0..length.div_ceil(size)).map(block).collect();
        Self {
            descriptor,
            block_bytes,
            blocks,
        }
    }
}

type Job = Vec<Vec<Variable>>;

/// Calls `with` with what a plan takes.
fn planned<T>(job: &Job, with: impl FnOnce(&[RankBlocks<'_>]) -> T) -> T {
    let variables: Vec<Vec<VariableBlocks<'_>>> = job
        .iter()
        .map(|rank| rank.iter().map(blocks_of).collect())
        .collect();
    let ranks: Vec<RankBlocks<'_>> = variables
        .iter()
        .map(|variables| RankBlocks { variables })
        .collect();
    with(&ranks)
}

fn blocks_of(variable: &Variable) -> VariableBlocks<'_> {
    VariableBlocks {
        part: None,
        descriptor: &variable.descriptor,
        block_bytes: variable.block_bytes,
        blocks: &variable.blocks,
    }
}

fn piece_name(job: &Job, piece: &Piece) -> String {
    let variable = &job[piece.rank as usize][piece.variable as usize];
    let name = &variable.descriptor.name;
    format!("{name}{}.{}", piece.rank, piece.block.index)
}

/// Each segment as names of variable, rank and block.
fn spelled(job: &Job, options: Options) -> Vec<String> {
    planned(job, |ranks| {
        let spell = |segment: Segment<'_>| {
            let names = segment.pieces.iter().map(|piece| piece_name(job, piece));
            names.collect::<Vec<_>>().join(" ")
        };
        plan(ranks, options).unwrap().map(spell).collect()
    })
}

fn options(merge: Merge, group_size: usize, small_bytes: u64) -> Options {
    Options {
        merge,
        group_size,
        segment_bytes: 1 << 18,
        small_bytes,
    }
}

/// Two kinds of arrays whose lengths differ by rank, a step and a number.
fn example() -> Job {
    let f64 = ElementType::F64;
    let i32 = ElementType::I32;
    let rank = |first: u64, second: u64| {
        vec![
            Variable::new("a", f64, &[first], 1024),
            Variable::new("b", f64, &[second], 1024),
            Variable::new("n", i32, &[], 1024),
            Variable::new("s", f64, &[], 1024),
        ]
    };
    vec![rank(256, 128), rank(128, 300), rank(384, 128)]
}

#[test]
fn order_is_that_of_the_page() {
    let cases = [
        (
            Merge::Concatenate,
            32,
            1024,
            vec![
                "a0.0 a0.1 a1.0 a2.0 a2.1 a2.2",
                "b0.0 b1.0 b1.1 b1.2 b2.0",
                "n0.0 n1.0 n2.0",
                "s0.0 s1.0 s2.0",
            ],
        ),
        (
            Merge::Interleave,
            32,
            1024,
            vec![
                "a0.0 a1.0 a2.0 a0.1 a2.1 a2.2",
                "b0.0 b1.0 b2.0 b1.1 b1.2",
                "n0.0 n1.0 n2.0",
                "s0.0 s1.0 s2.0",
            ],
        ),
        (
            Merge::Concatenate,
            2,
            3400,
            vec![
                "b0.0 b1.0 b1.1 b1.2",
                "n0.0 n1.0",
                "a0.0 a0.1 a1.0 s0.0 s1.0",
                "n2.0",
                "a2.0 a2.1 a2.2 b2.0 s2.0",
            ]
            .into_iter()
            .collect(),
        ),
        (
            Merge::None,
            32,
            1024,
            vec![
                "a0.0 a0.1",
                "b0.0",
                "n0.0",
                "s0.0",
                "a1.0",
                "b1.0 b1.1 b1.2",
                "n1.0",
                "s1.0",
                "a2.0 a2.1 a2.2",
                "b2.0",
                "n2.0",
                "s2.0",
            ],
        ),
    ];
    for (merge, group_size, small_bytes, wanted) in cases {
        let found = spelled(&example(), options(merge, group_size, small_bytes));
        assert_eq!(
            found, wanted,
            "{merge} by {group_size}, small {small_bytes}"
        );
    }
}

#[test]
fn kinds_differ_by_name_type_and_class() {
    let f64 = ElementType::F64;
    let mut job = vec![
        vec![Variable::new("a", f64, &[64], 1024)],
        vec![Variable::new("a", ElementType::F32, &[64], 1024)],
        vec![Variable::new("a", f64, &[1], 1024)],
        vec![Variable::new("a", f64, &[], 1024)],
        vec![Variable::new("a", f64, &[2, 3], 1024)],
    ];
    let apart = spelled(&job, options(Merge::Concatenate, 32, 0));
    assert_eq!(apart, ["a1.0", "a2.0 a3.0", "a0.0 a4.0"]);
    job.truncate(1);
    planned(&job, |ranks| {
        let segment = plan(ranks, Options::default()).unwrap().next().unwrap();
        assert!(matches!(segment.content, Content::Kind(kind) if kind.name == "a"));
    });
}

#[test]
fn a_segment_is_cut_where_a_block_does_not_fit() {
    let job = vec![vec![Variable::new("a", ElementType::U8, &[600_000], 16384)]; 2];
    // 37 blocks a rank, of which the last has 10,176 bytes, a multiple of 64.
    let cases = [
        (Merge::Concatenate, vec![16, 16, 16, 16, 10]),
        (Merge::None, vec![16, 16, 5, 16, 16, 5]),
    ];
    for (merge, wanted) in cases {
        let lengths: Vec<usize> = planned(&job, |ranks| {
            let segments = plan(ranks, options(merge, 2, 0)).unwrap();
            segments.map(|segment| segment.pieces.len()).collect()
        });
        assert_eq!(lengths, wanted, "{merge}");
    }
}

#[test]
fn lags_are_strides_and_the_way_to_the_next_rank() {
    let f64 = ElementType::F64;
    let cases = [
        (vec![8, 16, 32], Merge::Concatenate, vec![32, 512, 4096]),
        (vec![8, 16, 32], Merge::Interleave, vec![32, 512, 128]),
        (vec![4096], Merge::Concatenate, vec![4096]),
        (vec![1000, 3], Merge::Concatenate, vec![3, 3000]),
        (vec![2, 2, 2, 2, 512], Merge::None, vec![512, 1024, 2048]),
        (vec![], Merge::Concatenate, vec![8]),
        (vec![9, 1, 1], Merge::None, vec![]),
    ];
    for (shape, merge, wanted) in cases {
        let job = vec![vec![Variable::new("a", f64, &shape, 1024)]; 3];
        planned(&job, |ranks| {
            let segment = plan(ranks, options(merge, 32, 0)).unwrap().next().unwrap();
            assert_eq!(lags(&segment, ranks), wanted, "{shape:?} {merge}");
        });
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let good = Variable::new("a", ElementType::U8, &[5000], 1024);
    let with = |change: &dyn Fn(&mut Variable)| {
        let mut variable = good.clone();
        change(&mut variable);
        vec![vec![variable]]
    };
    let block = |index, length| Block { index, length };
    let jobs: [(&str, Job); 9] = [
        ("long", with(&|v| v.blocks[0].length = 1025)),
        ("short", with(&|v| v.blocks[0].length = 1023)),
        ("empty", with(&|v| v.blocks[0].length = 0)),
        ("beyond", with(&|v| v.blocks.push(block(5, 1024)))),
        ("far", with(&|v| v.blocks = vec![block(u64::MAX, 1024)])),
        ("order", with(&|v| v.blocks.swap(0, 1))),
        ("twice", with(&|v| v.blocks[1].index = 0)),
        ("block", with(&|v| v.block_bytes = 0)),
        ("names", vec![vec![good.clone(), good.clone()]]),
    ];
    for (what, job) in jobs {
        let refused = planned(&job, |ranks| plan(ranks, Options::default()).map(|_| ()));
        let kind = refused.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::InvalidArgument), "{what}");
    }
    let huge = |element, shape: &[u64]| {
        let mut variable = good.clone();
        variable.descriptor.element = element;
        variable.descriptor.shape = shape.to_vec();
        vec![vec![variable]]
    };
    let overflows = huge(ElementType::F64, &[u64::MAX, u64::MAX]);
    assert!(planned(&overflows, |ranks| plan(ranks, Options::default()).is_err()));
    for (segment_bytes, group_size) in [(0, 1), (1 << 17, 1), (u32::MAX, 1), (1 << 22, 0)] {
        let wrong = Options {
            segment_bytes,
            group_size,
            ..Options::default()
        };
        assert!(plan(&[], wrong).is_err(), "{segment_bytes} {group_size}");
    }
    let most = Options {
        group_size: usize::MAX,
        small_bytes: u64::MAX,
        ..Options::default()
    };
    assert_eq!(spelled(&example(), most).len(), 2);
    assert_eq!(plan(&[], Options::default()).unwrap().count(), 0);
    assert_eq!(spelled(&vec![vec![]; 3], Options::default()).len(), 0);
}

const NAMES: [(&str, ElementType); 5] = [
    ("a", ElementType::F64),
    ("b", ElementType::F32),
    ("c", ElementType::F64),
    ("d", ElementType::Bytes),
    ("e", ElementType::I32),
];

fn variable() -> impl Strategy<Value = Option<Variable>> {
    let length = prop_oneof![Just(0_u64), Just(1), 2..100_u64, 2..60_000_u64];
    let size = prop_oneof![Just(1024_u32), Just(4096), Just(16384), Just(1 << 18)];
    let changed = prop_oneof![Just(u64::MAX), any::<u64>()];
    (length, size, changed, any::<bool>()).prop_map(|(length, size, changed, there)| {
        let mut variable = Variable::new("", ElementType::U8, &[length], size);
        variable
            .blocks
            .retain(|block| changed >> (block.index % 64) & 1 == 1);
        variable.descriptor.shape = vec![length];
        there.then_some(variable)
    })
}

fn job() -> impl Strategy<Value = Job> {
    let rank = prop::collection::vec(variable(), NAMES.len()).prop_map(|variables| {
        let named = variables.into_iter().zip(NAMES);
        let named = named.filter_map(|(variable, (name, element))| {
            let mut variable = variable?;
            // As many elements as fit into the bytes that were drawn.
            let width = element.width_bytes();
            let elements = variable.descriptor.shape[0] / width;
            let kept: BTreeSet<u64> = variable.blocks.iter().map(|block| block.index).collect();
            variable = Variable::new(name, element, &[elements], variable.block_bytes);
            variable.blocks.retain(|block| kept.contains(&block.index));
            Some(variable)
        });
        named.collect()
    });
    prop::collection::vec(rank, 0..7)
}

fn any_options() -> impl Strategy<Value = Options> {
    let segment = prop_oneof![Just(1_u32 << 18), Just(300_001), Just(1 << 22)];
    let small = prop_oneof![Just(0_u64), 0..80_000_u64, Just(u64::MAX)];
    (0..3_usize, 1..8_usize, segment, small).prop_map(
        |(merge, group_size, segment_bytes, small_bytes)| Options {
            merge: Merge::ALL[merge],
            group_size,
            segment_bytes,
            small_bytes,
        },
    )
}

/// Bytes that say whose they are.
fn content(piece: &Piece, at: usize) -> u8 {
    let number = u64::from(piece.rank) * 131 + u64::from(piece.variable) * 31;
    let mixed = number + piece.block.index * 7 + at as u64;
    u8::try_from(1 + mixed % 255).unwrap()
}

fn check_segment(segment: &Segment<'_>, ranks: &[RankBlocks<'_>], options: Options) {
    let mut end = 0;
    for piece in &segment.pieces {
        assert_eq!(piece.offset % Address::UNIT_BYTES, 0);
        assert!(piece.offset - end < Address::UNIT_BYTES && piece.offset >= end);
        end = piece.offset + piece.block.length;
        let descriptor = ranks[piece.rank as usize].variables[piece.variable as usize].descriptor;
        assert_eq!(descriptor.element, segment.content.element());
        if let Content::Kind(kind) = segment.content {
            assert_eq!(descriptor.name, kind.name);
        }
        let group = match options.merge {
            Merge::None => 1,
            _ => options.group_size,
        };
        assert_eq!(
            piece.rank as usize / group,
            segment.first_rank as usize / group
        );
    }
    assert_eq!(end, segment.length);
    assert!(segment.length <= options.segment_bytes && segment.length > 0);
    for lag in lags(segment, ranks) {
        assert!(u64::from(lag) * segment.content.element().width_bytes() < u64::from(end));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_block_is_in_one_segment_and_comes_back(job in job(), options in any_options()) {
        let mut left: BTreeMap<(u32, u32, u64), u32> = BTreeMap::new();
        for (rank, variables) in (0..).zip(&job) {
            for (place, variable) in (0..).zip(variables) {
                for block in &variable.blocks {
                    left.insert((rank, place, block.index), block.length);
                }
            }
        }
        planned(&job, |ranks| {
            let mut decoded = Vec::new();
            let again: Vec<_> = plan(ranks, options).unwrap().collect();
            for (number, segment) in plan(ranks, options).unwrap().enumerate() {
                assert_eq!(&segment, &again[number]);
                check_segment(&segment, ranks, options);
                segment.gather(&mut decoded, |piece, place| {
                    for (at, byte) in place.iter_mut().enumerate() {
                        *byte = content(piece, at);
                    }
                    Ok(())
                }).unwrap();
                let pieces: u64 = segment.pieces.iter().map(|p| u64::from(p.block.length)).sum();
                let zeros = decoded.iter().map(|&byte| u64::from(byte == 0)).sum::<u64>();
                assert_eq!(zeros + pieces, u64::from(segment.length));
                for piece in &segment.pieces {
                    let key = (piece.rank, piece.variable, piece.block.index);
                    assert_eq!(left.remove(&key), Some(piece.block.length));
                    let bytes = piece.of(&decoded).unwrap();
                    assert!(bytes.iter().enumerate().all(|(at, &b)| b == content(piece, at)));
                }
            }
            assert_eq!(left.len(), 0, "blocks in no segment");
        });
    }
}
