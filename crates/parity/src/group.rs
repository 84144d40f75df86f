// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which members protect each other, and against how many losses.
//! In from: members in an order that all ranks share, the scheme of the configuration. Out to:
//! `stripe` (columns), and to people (what is less than they asked for).
//! Invariants: every member is in exactly one group; no two members of a group share a failure domain;
//! sizes differ by at most one; the same input gives the same groups.
//!
//! # The rule
//!
//! With `n` members, the wanted size `s`, `m` parities, and `d` members in the fullest failure domain
//! (a member without a domain is one of its own):
//!
//! | step | what | why |
//! |---|---|---|
//! | 1 | at least `n / 32` groups, rounded up | a code has 32 columns |
//! | 2 | at least `d` groups | members of one domain need different groups |
//! | 3 | `n / s` groups, rounded up, as far as each keeps `m + 1` members | a larger group is better than less protection |
//! | 4 | members in order: fullest domain first, then by first mention, then as given | what shares a domain stands side by side |
//! | 5 | dealt in turn to the groups, like cards | neighbours get different groups, sizes differ by at most one |
//! | 6 | a group of `g` has `min(m, g - 1)` parities | one member has to hold data |
//!
//! A member's place in its group is its **column**. Step 5 also separates members that were named one
//! after the other, which often share what no map of domains names.
//!
//! Some cases, size 8:
//!
//! | members | scheme | groups | protected against |
//! |---|---|---|---|
//! | 8 nodes | XOR | 8 | 1 loss |
//! | 9 nodes | 2 parities | 5 + 4 | 2 losses |
//! | 4 nodes, size 2 | 2 parities | 4 | 2 losses: more than 2 to a group |
//! | 2 nodes | 2 parities | 2 | 1 loss: less than asked |
//! | 2 racks of 4 | XOR | 2 + 2 + 2 + 2 | 1 loss, also of a rack |
//! | racks of 3 and 1 | XOR | 2 + 1 + 1 | 1 loss in the group of 2; nothing for the others |
//! | 4 nodes in one rack | XOR | 1 + 1 + 1 + 1 | nothing |

use super::code::COLUMNS_MAX;
use backstay_base::error::{Error, ErrorKind, Result};

/// How members protect each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Not at all.
    None,
    /// Each extent is copied to the next member of the group.
    Partner,
    /// One parity piece over the extents of all other members.
    Xor,
    /// As many parity pieces as named.
    ReedSolomon {
        /// Losses that a group survives.
        parities: usize,
    },
}

impl Scheme {
    /// Losses that a group survives.
    pub const fn parities(self) -> usize {
        match self {
            Self::None => 0,
            Self::Partner | Self::Xor => 1,
            Self::ReedSolomon { parities } => parities,
        }
    }

    /// What a group of `size` members can have of it.
    #[must_use]
    pub fn within(self, size: usize) -> Self {
        match (self, size) {
            (_, 0 | 1) | (Self::ReedSolomon { parities: 0 }, _) => Self::None,
            (Self::ReedSolomon { parities }, _) => Self::ReedSolomon {
                parities: parities.min(size - 1),
            },
            _ => self,
        }
    }
}

/// Who is to protect others and to be protected: a node, or a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// Its name, for people.
    pub name: &'a str,
    /// What is lost together with it; by itself, if none is named.
    pub domain: Option<&'a str>,
}

/// Members that protect each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Places in the list of members; a member's index here is its column.
    pub members: Vec<usize>,
    /// What protects them: what was asked for, or what a group of this size can have.
    pub scheme: Scheme,
    /// Why that is less than was asked for, if it is.
    pub shortfall: Option<String>,
}

impl Group {
    /// Losses that it survives.
    pub fn parities(&self) -> usize {
        self.scheme.parities()
    }
}

/// Forms groups of about `size` members. All ranks must name the members in the same order.
pub fn form(members: &[Candidate<'_>], size: usize, scheme: Scheme) -> Result<Vec<Group>> {
    check(size, scheme)?;
    let domains = Domains::of(members);
    let count = match scheme {
        // Nobody needs anybody else.
        Scheme::None => members.len(),
        _ => group_count(members.len(), size, scheme.parities(), domains.fullest()),
    };
    let mut groups = vec![Vec::new(); count];
    for (turn, place) in domains.in_order().enumerate() {
        groups[turn % count].push(place);
    }
    Ok(groups
        .into_iter()
        .map(|places| {
            let granted = scheme.within(places.len());
            Group {
                shortfall: (granted.parities() < scheme.parities())
                    .then(|| reason(&places, members, &domains, scheme)),
                members: places,
                scheme: granted,
            }
        })
        .collect())
}

fn check(size: usize, scheme: Scheme) -> Result<()> {
    let wrong = |context| Err(Error::new(ErrorKind::Configuration, context));
    if scheme == Scheme::None {
        return Ok(());
    }
    if !(2..=COLUMNS_MAX).contains(&size) {
        return wrong(format!("groups of {size} members, not 2 to {COLUMNS_MAX}"));
    }
    match scheme.parities() {
        0 => wrong("Reed-Solomon with 0 parities protects nothing".to_owned()),
        parities if parities >= COLUMNS_MAX => {
            wrong(format!("{parities} parities, not 1 to {}", COLUMNS_MAX - 1))
        }
        _ => Ok(()),
    }
}

/// Steps 1 to 3 of the rule.
fn group_count(members: usize, size: usize, parities: usize, fullest: usize) -> usize {
    let wanted = members.div_ceil(size);
    let protected = members / (parities + 1);
    let least = members.div_ceil(COLUMNS_MAX).max(fullest);
    wanted.min(protected).max(least)
}

/// The members by failure domain: the fullest first, then by first mention.
struct Domains<'a> {
    /// A domain's name, none where a member is one of its own; and its members.
    lists: Vec<(Option<&'a str>, Vec<usize>)>,
}

impl<'a> Domains<'a> {
    fn of(members: &[Candidate<'a>]) -> Self {
        let mut lists: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
        let mut known = std::collections::BTreeMap::new();
        for (place, member) in members.iter().enumerate() {
            let at = match member.domain {
                Some(domain) => *known.entry(domain).or_insert(lists.len()),
                None => lists.len(),
            };
            if at == lists.len() {
                lists.push((member.domain, Vec::new()));
            }
            lists[at].1.push(place);
        }
        lists.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        Self { lists }
    }

    fn fullest(&self) -> usize {
        self.lists.first().map_or(0, |(_, places)| places.len())
    }

    /// Step 4 of the rule.
    fn in_order(&self) -> impl Iterator<Item = usize> {
        self.lists.iter().flat_map(|(_, places)| places).copied()
    }
}

/// Why a group has less than was asked for.
fn reason(
    places: &[usize],
    members: &[Candidate<'_>],
    domains: &Domains<'_>,
    scheme: Scheme,
) -> String {
    let names: Vec<&str> = places.iter().map(|&place| members[place].name).collect();
    let names = names.join(", ");
    let (size, wanted) = (places.len(), scheme.parities());
    let has = match size - 1 {
        0 => "nothing protects it".to_owned(),
        1 => "it survives 1 loss".to_owned(),
        losses => format!("it survives {losses} losses"),
    };
    let all = members.len();
    let why = match domains.lists.first() {
        // Enough members, but too many of them fail together.
        Some((Some(domain), together)) if all > wanted && together.len() > 1 => {
            let count = together.len();
            format!("{count} of all {all} members are in the failure domain {domain}")
        }
        _ if all > wanted => format!("{all} members need groups of at most {COLUMNS_MAX}"),
        _ => format!("there are {all} members in all"),
    };
    format!("group of {size} ({names}): {has}, {wanted} asked for; {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 40] = {
        let mut names = ["node"; 40];
        names[0] = "a";
        names[1] = "b";
        names[2] = "c";
        names[3] = "d";
        names
    };

    /// One member for each letter, which is its domain; `-` is a member without one.
    fn members(domains: &str) -> Vec<Candidate<'_>> {
        let domain = |at| Some(&domains[at..=at]).filter(|domain| *domain != "-");
        (0..domains.len())
            .map(|at| Candidate {
                name: NAMES[at],
                domain: domain(at),
            })
            .collect()
    }

    const RS_2: Scheme = Scheme::ReedSolomon { parities: 2 };
    const RS_3: Scheme = Scheme::ReedSolomon { parities: 3 };

    /// Domains, wanted size, scheme; sizes of the groups and their parities.
    type Case = (&'static str, usize, Scheme, &'static [(usize, usize)]);
    const CASES: [Case; 26] = [
        ("", 8, Scheme::Xor, &[]),
        ("-", 8, Scheme::Xor, &[(1, 0)]),
        ("--", 8, Scheme::Xor, &[(2, 1)]),
        ("--", 8, Scheme::Partner, &[(2, 1)]),
        ("--", 8, RS_2, &[(2, 1)]),
        ("---", 8, RS_2, &[(3, 2)]),
        ("---", 2, Scheme::Xor, &[(3, 1)]),
        ("----", 4, RS_2, &[(4, 2)]),
        ("----", 2, RS_2, &[(4, 2)]),
        ("-----", 4, RS_2, &[(5, 2)]),
        ("-----", 4, Scheme::Xor, &[(3, 1), (2, 1)]),
        ("------", 4, RS_2, &[(3, 2), (3, 2)]),
        ("-------", 8, RS_2, &[(7, 2)]),
        ("--------", 8, Scheme::Xor, &[(8, 1)]),
        ("---------", 8, RS_2, &[(5, 2), (4, 2)]),
        ("-----------------", 8, RS_3, &[(6, 3), (6, 3), (5, 3)]),
        (
            "--------------------",
            8,
            Scheme::Partner,
            &[(7, 1), (7, 1), (6, 1)],
        ),
        ("---", 8, Scheme::None, &[(1, 0), (1, 0), (1, 0)]),
        // Racks.
        (
            "aaaabbbb",
            8,
            Scheme::Xor,
            &[(2, 1), (2, 1), (2, 1), (2, 1)],
        ),
        ("aaab", 8, Scheme::Xor, &[(2, 1), (1, 0), (1, 0)]),
        ("baaa", 8, RS_2, &[(2, 1), (1, 0), (1, 0)]),
        ("aaaa", 8, Scheme::Xor, &[(1, 0), (1, 0), (1, 0), (1, 0)]),
        ("aabbccdd", 8, RS_3, &[(4, 3), (4, 3)]),
        ("abcdabcd", 4, RS_2, &[(4, 2), (4, 2)]),
        ("aab--", 8, Scheme::Xor, &[(3, 1), (2, 1)]),
        ("aaabbbcccddd", 8, RS_2, &[(4, 2), (4, 2), (4, 2)]),
    ];

    #[test]
    fn the_table_of_cases() {
        for (domains, size, scheme, expected) in CASES {
            let members = members(domains);
            let groups = form(&members, size, scheme).unwrap();
            let found: Vec<(usize, usize)> = groups
                .iter()
                .map(|group| (group.members.len(), group.parities()))
                .collect();
            assert_eq!(found, expected, "{domains:?} of {size}, {scheme:?}");
            for group in &groups {
                let less = group.parities() < scheme.parities();
                assert_eq!(group.shortfall.is_some(), less, "{group:?}");
            }
        }
    }

    #[test]
    fn one_to_twenty_nodes_are_as_protected_as_they_can_be() {
        for count in 1..=20 {
            let domains = "-".repeat(count);
            for scheme in [Scheme::Partner, Scheme::Xor, RS_2, RS_3] {
                let wanted = scheme.parities().min(count - 1);
                for group in form(&members(&domains), 8, scheme).unwrap() {
                    assert_eq!(group.parities(), wanted, "{count} nodes, {scheme:?}");
                    assert!(group.members.len() <= 8);
                }
            }
        }
    }

    #[test]
    fn more_than_a_code_has_columns_become_more_groups() {
        let domains = "-".repeat(40);
        let scheme = Scheme::ReedSolomon { parities: 31 };
        let groups = form(&members(&domains), 32, scheme).unwrap();
        assert_eq!(groups.len(), 2);
        assert!(groups.iter().all(|group| group.parities() == 19));
    }

    #[test]
    fn neighbours_are_in_different_groups() {
        let groups = form(&members("------"), 3, Scheme::Xor).unwrap();
        let places: Vec<&[usize]> = groups.iter().map(|group| &group.members[..]).collect();
        assert_eq!(places, [[0, 2, 4], [1, 3, 5]]);
    }

    #[test]
    fn a_shortfall_says_who_has_what_and_why() {
        let groups = form(&members("aaab"), 8, Scheme::Xor).unwrap();
        assert_eq!(groups[0].shortfall, None);
        assert_eq!(
            groups[1].shortfall.as_deref().unwrap(),
            "group of 1 (b): nothing protects it, 1 asked for; \
             3 of all 4 members are in the failure domain a"
        );
        let groups = form(&members("--"), 8, RS_3).unwrap();
        assert_eq!(
            groups[0].shortfall.as_deref().unwrap(),
            "group of 2 (a, b): it survives 1 loss, 3 asked for; there are 2 members in all"
        );
    }

    #[test]
    fn sizes_and_parities_that_no_code_has_are_refused() {
        let members = members("----");
        for (size, scheme) in [
            (1, Scheme::Xor),
            (33, Scheme::Xor),
            (8, Scheme::ReedSolomon { parities: 0 }),
            (8, Scheme::ReedSolomon { parities: 32 }),
        ] {
            let error = form(&members, size, scheme).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration);
        }
        assert!(form(&members, 0, Scheme::None).is_ok());
    }

    proptest! {
        #[test]
        fn groups_keep_their_promises(
            domains in "[-a-f]{0,40}",
            size in 2_usize..=32,
            parities in 1_usize..=6,
        ) {
            let members = members(&domains);
            let scheme = Scheme::ReedSolomon { parities };
            let groups = form(&members, size, scheme).unwrap();
            prop_assert_eq!(&groups, &form(&members, size, scheme).unwrap());
            let mut places: Vec<usize> =
                groups.iter().flat_map(|group| group.members.clone()).collect();
            places.sort_unstable();
            prop_assert_eq!(places, (0..members.len()).collect::<Vec<_>>());
            let sizes: Vec<usize> = groups.iter().map(|group| group.members.len()).collect();
            if let (Some(most), Some(least)) = (sizes.iter().max(), sizes.iter().min()) {
                prop_assert!(most - least <= 1 && *most <= COLUMNS_MAX);
                prop_assert!(*most <= size || *most <= 2 * parities + 1);
            }
            for group in &groups {
                let mut seen: Vec<&str> =
                    group.members.iter().filter_map(|&place| members[place].domain).collect();
                seen.sort_unstable();
                let all = seen.len();
                seen.dedup();
                prop_assert_eq!(seen.len(), all);
                prop_assert_eq!(group.parities(), parities.min(group.members.len() - 1));
                prop_assert_eq!(group.shortfall.is_some(), group.parities() < parities);
            }
        }
    }
}
