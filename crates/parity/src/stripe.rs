// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which extents of a group share parity, who encodes it, and who holds it.
//! In from: extents that wait on each member, with lengths. Out to: whoever moves and encodes them.
//! Invariants: every extent is in exactly one stripe; a member has at most one part in a stripe, an
//! extent or a parity; a stripe has one holder for each parity; the same input gives the same stripes.
//!
//! # The rule
//!
//! A group of `n` members with `m` parities has stripes of up to `k = n - m` extents. Each member's
//! extents wait by length, the longest first. Extents are alike if the same power of two is the
//! largest one that they reach: one is less than twice as long as the other.
//!
//! | step | what | why |
//! |---|---|---|
//! | 1 | members whose next extent is alike to the longest of all that wait, those with most such extents first | like lengths share parity; a long queue does not remain alone at the end |
//! | 2 | if they are fewer than `k`: other members, those with most bytes waiting first | a shorter extent needs no more parity |
//! | 3 | parity goes to the members without an extent that hold the fewest bytes of it | parity is spread |
//! | 4 | the extents are gathered and encoded by the contributor that would then have gathered the fewest bytes | so is the work |
//!
//! What is equal is decided by column, counted from the number of the round: so rounds of few stripes
//! do not always burden the same members.
//!
//! # What parity costs
//!
//! A stripe's parity is as long as its longest extent. Never more than a copy: each parity of all
//! stripes together has at most as many bytes as all extents. With extents of one length it is the
//! least possible: as many stripes as the longest queue has extents, or as all extents over `k`. With
//! lengths that differ, and no member with more than a `k`-th of the extents that are alike, it is at
//! most `2 / k` of all bytes and three of the longest extent: an extent is at least half as long as the
//! parity over its like, and each length may leave one stripe that is not full.
//!
//! `Partner` is a ring: each extent is a stripe of its own, and its copy goes to the next column. So a
//! member sends to one other and receives from one other, whatever the round.

use super::code::COLUMNS_MAX;
use super::group::Scheme;
use backstay_base::error::{Error, ErrorKind, Result};
use std::cmp::Reverse;

/// Bytes of a member that wait for protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What the caller calls it.
    pub id: usize,
    /// Bytes.
    pub length: u64,
}

/// A member's part of a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contribution {
    /// Whose it is.
    pub column: usize,
    /// What.
    pub extent: Extent,
}

/// Extents that share parity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripe {
    /// By column, ascending.
    pub contributions: Vec<Contribution>,
    /// Columns that hold parity; the index is the row.
    pub holders: Vec<usize>,
    /// The contributor that gathers the other extents, encodes, and sends parity.
    pub gatherer: usize,
}

impl Stripe {
    /// Bytes of each of its parities.
    pub fn parity_length(&self) -> u64 {
        let lengths = self.contributions.iter().map(|part| part.extent.length);
        lengths.max().unwrap_or(0)
    }

    /// Bytes that its gatherer receives.
    pub fn gathered_bytes(&self) -> u64 {
        let others = self.contributions.iter();
        let others = others.filter(|part| part.column != self.gatherer);
        others.map(|part| part.extent.length).sum()
    }
}

/// Forms the stripes of one round from the extents that wait, by column. The scheme is the group's,
/// which its size allows.
pub fn form(queues: &[Vec<Extent>], scheme: Scheme, round: u64) -> Result<Vec<Stripe>> {
    let members = queues.len();
    if members > COLUMNS_MAX || scheme.within(members) != scheme {
        let context = format!("a group of {members} members with {scheme:?}");
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    match scheme {
        Scheme::None => Ok(Vec::new()),
        Scheme::Partner => Ok(ring(queues)),
        Scheme::Xor | Scheme::ReedSolomon { .. } => {
            Ok(Round::new(queues, scheme.parities(), round).stripes())
        }
    }
}

/// Each extent alone, its copy on the next member.
fn ring(queues: &[Vec<Extent>]) -> Vec<Stripe> {
    let mut stripes = Vec::new();
    for (column, queue) in queues.iter().enumerate() {
        let next = (column + 1) % queues.len();
        stripes.extend(queue.iter().map(|&extent| Stripe {
            contributions: vec![Contribution { column, extent }],
            holders: vec![next],
            gatherer: column,
        }));
    }
    stripes
}

/// Stripes in the making.
struct Round {
    members: Vec<Waiting>,
    parities: usize,
    /// The column that decides first among equals.
    first: usize,
}

/// One member's extents, the shortest first: the next one is at the end.
struct Waiting {
    extents: Vec<Extent>,
    bytes: u64,
    /// Bytes of parity that it holds from this round.
    held: u64,
    /// Bytes that it gathers in this round.
    gathered: u64,
}

impl Waiting {
    fn of(queue: &[Extent]) -> Self {
        let mut extents: Vec<Extent> = queue.iter().rev().copied().collect();
        extents.sort_by_key(|extent| extent.length);
        Self {
            bytes: extents.iter().map(|extent| extent.length).sum(),
            extents,
            held: 0,
            gathered: 0,
        }
    }

    fn next(&self) -> Option<Extent> {
        self.extents.last().copied()
    }

    /// How many extents are alike to those of `class`, or longer.
    fn count_of(&self, class: u32) -> usize {
        let shorter = |extent: &Extent| class_of(extent.length) < class;
        self.extents.len() - self.extents.partition_point(shorter)
    }

    fn take(&mut self) -> Option<Extent> {
        let extent = self.extents.pop()?;
        self.bytes -= extent.length;
        Some(extent)
    }
}

/// The number of bits of a length: alike are those with as many.
fn class_of(length: u64) -> u32 {
    u64::BITS - length.leading_zeros()
}

impl Round {
    fn new(queues: &[Vec<Extent>], parities: usize, round: u64) -> Self {
        let count = backstay_format::width::to_u64(queues.len());
        Self {
            members: queues.iter().map(|queue| Waiting::of(queue)).collect(),
            parities,
            first: backstay_format::width::to_usize(round % count.max(1)),
        }
    }

    fn stripes(mut self) -> Vec<Stripe> {
        let mut stripes = Vec::new();
        loop {
            let mut columns = self.contributors();
            if columns.is_empty() {
                return stripes;
            }
            columns.sort_unstable();
            let members = &mut self.members;
            let contributions: Vec<Contribution> = columns
                .iter()
                .filter_map(|&column| {
                    let extent = members[column].take()?;
                    Some(Contribution { column, extent })
                })
                .collect();
            let mut stripe = Stripe {
                holders: Vec::new(),
                gatherer: 0,
                contributions,
            };
            self.choose_holders(&mut stripe, &columns);
            self.choose_gatherer(&mut stripe);
            stripes.push(stripe);
        }
    }

    /// Where a column stands among equals.
    fn turn(&self, column: usize) -> usize {
        let count = self.members.len();
        (column + count - self.first) % count
    }

    /// Steps 1 and 2.
    fn contributors(&self) -> Vec<usize> {
        let most = self.members.len() - self.parities;
        let next = |column: usize| self.members[column].next();
        let waiting = (0..self.members.len()).filter_map(|column| Some((column, next(column)?)));
        let waiting: Vec<(usize, u64)> = waiting.map(|(at, extent)| (at, extent.length)).collect();
        let longest = waiting.iter().map(|&(_, length)| length).max();
        let class = class_of(longest.unwrap_or(0));
        let (mut alike, mut shorter): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|&(_, length)| class_of(length) == class);
        alike.sort_by_key(|&(column, length)| {
            let count = self.members[column].count_of(class);
            (Reverse(count), Reverse(length), self.turn(column))
        });
        shorter.sort_by_key(|&(column, _)| {
            let bytes = self.members[column].bytes;
            (Reverse(bytes), self.turn(column))
        });
        let chosen = alike.into_iter().chain(shorter).take(most);
        chosen.map(|(column, _)| column).collect()
    }

    /// Step 3.
    fn choose_holders(&mut self, stripe: &mut Stripe, contributors: &[usize]) {
        let length = stripe.parity_length();
        let others = (0..self.members.len()).filter(|column| !contributors.contains(column));
        let mut others: Vec<usize> = others.collect();
        others.sort_by_key(|&column| (self.members[column].held, self.turn(column)));
        others.truncate(self.parities);
        for &column in &others {
            self.members[column].held += length;
        }
        stripe.holders = others;
    }

    /// Step 4.
    fn choose_gatherer(&mut self, stripe: &mut Stripe) {
        let all: u64 = stripe
            .contributions
            .iter()
            .map(|part| part.extent.length)
            .sum();
        let then = |part: &&Contribution| {
            let gathered = self.members[part.column].gathered + all - part.extent.length;
            (gathered, self.turn(part.column))
        };
        if let Some(part) = stripe.contributions.iter().min_by_key(then) {
            stripe.gatherer = part.column;
        }
        self.members[stripe.gatherer].gathered += stripe.gathered_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(lengths: &[&[u64]]) -> Vec<Vec<Extent>> {
        let mut id = 0;
        let mut extent = |&length: &u64| {
            id += 1;
            Extent { id, length }
        };
        let mut queue = |lengths: &&[u64]| lengths.iter().map(&mut extent).collect();
        lengths.iter().map(&mut queue).collect()
    }

    fn columns(stripe: &Stripe) -> Vec<usize> {
        stripe
            .contributions
            .iter()
            .map(|part| part.column)
            .collect()
    }

    const RS_2: Scheme = Scheme::ReedSolomon { parities: 2 };

    #[test]
    fn full_queues_leave_each_member_out_in_turn() {
        let waiting = queues(&[&[4, 4, 4][..]; 4]);
        let stripes = form(&waiting, Scheme::Xor, 0).unwrap();
        let found: Vec<(Vec<usize>, Vec<usize>)> = stripes
            .iter()
            .map(|stripe| (columns(stripe), stripe.holders.clone()))
            .collect();
        let expected = [
            (vec![0, 1, 2], vec![3]),
            (vec![0, 1, 3], vec![2]),
            (vec![0, 2, 3], vec![1]),
            (vec![1, 2, 3], vec![0]),
        ];
        assert_eq!(found, expected);
        let gatherers: Vec<usize> = stripes.iter().map(|stripe| stripe.gatherer).collect();
        assert_eq!(gatherers, [0, 1, 2, 3]);
    }

    #[test]
    fn rounds_of_one_stripe_burden_members_in_turn() {
        let waiting = queues(&[&[4], &[4], &[4], &[4]]);
        let first_holders: Vec<usize> = (0..4)
            .map(|round| form(&waiting, Scheme::Xor, round).unwrap()[0].holders[0])
            .collect();
        assert_eq!(first_holders, [3, 0, 1, 2]);
    }

    #[test]
    fn like_lengths_meet() {
        let waiting = queues(&[&[1, 100, 10], &[90, 1, 11], &[]]);
        let stripes = form(&waiting, Scheme::Xor, 0).unwrap();
        let lengths: Vec<u64> = stripes.iter().map(Stripe::parity_length).collect();
        assert_eq!(lengths, [100, 11, 1]);
    }

    #[test]
    fn short_extents_do_not_part_long_ones() {
        let small: Vec<u64> = vec![40; 200];
        let waiting = queues(&[&[4096], &[4096], &small]);
        let stripes = form(&waiting, Scheme::Xor, 0).unwrap();
        assert_eq!(columns(&stripes[0]), [0, 1]);
        let parity: u64 = stripes.iter().map(Stripe::parity_length).sum();
        assert_eq!(parity, 4096 + 200 * 40);
    }

    #[test]
    fn a_long_queue_does_not_remain_alone() {
        let waiting = queues(&[&[100; 10], &[101; 5], &[101; 5]]);
        let stripes = form(&waiting, Scheme::Xor, 0).unwrap();
        let parity: u64 = stripes.iter().map(Stripe::parity_length).sum();
        assert_eq!((stripes.len(), parity), (10, 1010));
    }

    #[test]
    fn a_partner_is_the_next_member() {
        let waiting = queues(&[&[5, 6], &[], &[7]]);
        let stripes = form(&waiting, Scheme::Partner, 9).unwrap();
        let found: Vec<(Vec<usize>, Vec<usize>)> = stripes
            .iter()
            .map(|stripe| (columns(stripe), stripe.holders.clone()))
            .collect();
        assert_eq!(
            found,
            [(vec![0], vec![1]), (vec![0], vec![1]), (vec![2], vec![0])]
        );
    }

    #[test]
    fn a_scheme_that_the_group_cannot_have_is_refused() {
        assert!(form(&queues(&[&[1], &[1]]), RS_2, 0).is_err());
        assert!(form(&queues(&[&[1]]), Scheme::Xor, 0).is_err());
        assert!(form(&queues(&[&[1][..]; 33]), Scheme::Xor, 0).is_err());
        assert_eq!(form(&queues(&[&[1]]), Scheme::None, 0).unwrap(), []);
        assert_eq!(form(&[], Scheme::None, 0).unwrap(), []);
        assert_eq!(form(&queues(&[&[], &[]]), Scheme::Xor, 0).unwrap(), []);
    }

    /// Queues of a group, its parities, and a round.
    fn rounds(lengths: std::ops::Range<u64>) -> impl Strategy<Value = (Vec<Vec<u64>>, usize, u64)> {
        (2_usize..=12).prop_flat_map(move |members| {
            let queue = proptest::collection::vec(lengths.clone(), 0..20);
            let queues = proptest::collection::vec(queue, members);
            (queues, 1..members, 0..100_u64)
        })
    }

    fn formed(lengths: &[Vec<u64>], parities: usize, round: u64) -> Vec<Stripe> {
        let lengths: Vec<&[u64]> = lengths.iter().map(Vec::as_slice).collect();
        form(&queues(&lengths), Scheme::ReedSolomon { parities }, round).unwrap()
    }

    fn parity_bytes(stripes: &[Stripe]) -> u64 {
        stripes.iter().map(Stripe::parity_length).sum()
    }

    fn spread(of: impl Iterator<Item = (usize, u64)>, members: usize) -> u64 {
        let mut sums = vec![0; members];
        of.for_each(|(column, bytes)| sums[column] += bytes);
        sums.iter().max().unwrap() - sums.iter().min().unwrap()
    }

    proptest! {
        #[test]
        fn stripes_keep_their_promises((lengths, parities, round) in rounds(0..5000)) {
            let stripes = formed(&lengths, parities, round);
            prop_assert_eq!(&stripes, &formed(&lengths, parities, round));
            let members = lengths.len();
            let mut ids: Vec<usize> = Vec::new();
            for stripe in &stripes {
                let contributors = columns(stripe);
                prop_assert!((1..=members - parities).contains(&contributors.len()));
                prop_assert!(contributors.contains(&stripe.gatherer));
                prop_assert_eq!(stripe.holders.len(), parities);
                let mut all = [&contributors[..], &stripe.holders].concat();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), contributors.len() + parities);
                prop_assert!(all.iter().all(|&column| column < members));
                ids.extend(stripe.contributions.iter().map(|part| part.extent.id));
            }
            ids.sort_unstable();
            let count = lengths.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(ids, (1..=count).collect::<Vec<_>>());
            let all: u64 = lengths.iter().flatten().sum();
            prop_assert!(parity_bytes(&stripes) <= all);
        }

        #[test]
        fn extents_of_one_length_take_the_fewest_stripes((lengths, parities, round) in rounds(1..2)) {
            let stripes = formed(&lengths, parities, round);
            let longest = lengths.iter().map(Vec::len).max().unwrap_or(0);
            let count = lengths.iter().map(Vec::len).sum::<usize>();
            let least = count.div_ceil(lengths.len() - parities).max(longest);
            prop_assert_eq!(stripes.len(), least);
        }

        #[test]
        fn like_queues_are_burdened_alike(
            members in 2_usize..=12, count in 1_usize..40, parities in 1_usize..4, round in 0_u64..50,
        ) {
            let parities = parities.min(members - 1);
            let stripes = formed(&vec![vec![100; count]; members], parities, round);
            let holders = stripes.iter().flat_map(|stripe| stripe.holders.iter());
            prop_assert!(spread(holders.map(|&column| (column, 100)), members) <= 100);
            let gathered = stripes.iter().map(|stripe| (stripe.gatherer, stripe.gathered_bytes()));
            let most = 100 * (members - parities) as u64;
            prop_assert!(spread(gathered, members) <= most);
        }

        #[test]
        fn parity_of_mixed_lengths_is_bounded(
            members in 2_usize..=12,
            lengths in proptest::collection::vec(1_u64..5_000_000, 1..40),
            parities in 1_usize..4,
            round in 0_u64..50,
        ) {
            // Every member has the same lengths, so none has more than its share of any.
            let parities = parities.min(members - 1);
            let stripes = formed(&vec![lengths.clone(); members], parities, round);
            let all: u64 = lengths.iter().sum::<u64>() * members as u64;
            let longest = lengths.iter().max().unwrap();
            let width = (members - parities) as u64;
            prop_assert!(parity_bytes(&stripes) <= 2 * all / width + 3 * longest);
        }
    }
}
