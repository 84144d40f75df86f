// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: hosts, files of hosts, and which of them a start takes.
//! In from: host files and host options of Open MPI, PRRTE and Hydra, lists of a scheduler.
//! Out to: a host file in the form of the launcher.
//! Invariants: the order of hosts is kept; a spare takes the place of the one it replaces; pure.

use std::collections::BTreeMap;

/// One host and how many ranks it takes; none if nobody said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name or address.
    pub name: String,
    /// Ranks it takes.
    pub slots: Option<u32>,
}

impl Host {
    /// A host with so many slots.
    pub fn new(name: &str, slots: Option<u32>) -> Self {
        let name = name.to_owned();
        Self { name, slots }
    }
}

/// How a launcher writes hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `name slots=N`: Open MPI, PRRTE.
    Slots,
    /// `name:N`: Hydra (MPICH, Intel MPI).
    Colon,
}

/// Reads a host file of either form; comments and empty lines are left out, a name twice is added up.
pub fn parse(text: &str) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let (name, mut slots) = name_and_slots(first);
        for word in words {
            if let Some(("slots", count)) = word.split_once('=') {
                slots = count.parse().ok();
            }
        }
        add(&mut hosts, Host::new(name, slots));
    }
    hosts
}

/// Reads `a,b:2,c`.
pub fn parse_list(text: &str) -> Vec<Host> {
    let mut hosts = Vec::new();
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let (name, slots) = name_and_slots(word);
        add(&mut hosts, Host::new(name, slots));
    }
    hosts
}

fn name_and_slots(word: &str) -> (&str, Option<u32>) {
    match word.rsplit_once(':') {
        Some((name, count)) if count.parse::<u32>().is_ok() => (name, count.parse().ok()),
        _ => (word, None),
    }
}

fn add(hosts: &mut Vec<Host>, host: Host) {
    let Some(known) = hosts.iter_mut().find(|known| known.name == host.name) else {
        hosts.push(host);
        return;
    };
    known.slots = Some(
        known
            .slots
            .unwrap_or(1)
            .saturating_add(host.slots.unwrap_or(1)),
    );
}

/// A host file.
pub fn write(hosts: &[Host], form: Form) -> String {
    let mut text = String::new();
    for host in hosts {
        text += &host.name;
        if let Some(slots) = host.slots {
            text += match form {
                Form::Slots => " slots=",
                Form::Colon => ":",
            };
            text += &slots.to_string();
        }
        text.push('\n');
    }
    text
}

/// What a start needs of its hosts.
#[derive(Clone, Debug, Default)]
pub struct Need {
    /// Ranks in all, if it is known.
    pub ranks: Option<u32>,
    /// Fewer hosts than these are refused.
    pub min_hosts: usize,
    /// Fewer hosts may take more ranks each.
    pub shrink: bool,
}

/// The hosts of one start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// In order.
    pub hosts: Vec<Host>,
    /// (gone, the spare in its place).
    pub replaced: Vec<(String, String)>,
    /// Gone, and nothing in their place.
    pub missing: Vec<String>,
}

/// Chooses hosts: the wanted ones without those in `gone`, filled up from spares.
pub fn place(
    wanted: &[Host],
    spares: &[Host],
    gone: &BTreeMap<String, String>,
    need: &Need,
) -> Result<Placed, String> {
    let is_wanted = |spare: &&Host| wanted.iter().all(|host| host.name != spare.name);
    let mut free = spares
        .iter()
        .filter(|spare| !gone.contains_key(&spare.name))
        .filter(is_wanted);
    let (mut hosts, mut replaced, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for host in wanted {
        if !gone.contains_key(&host.name) {
            hosts.push(host.clone());
        } else if let Some(spare) = free.next() {
            hosts.push(Host::new(&spare.name, host.slots.or(spare.slots)));
            replaced.push((host.name.clone(), spare.name.clone()));
        } else {
            missing.push(host.name.clone());
        }
    }
    if hosts.len() < need.min_hosts.max(1) {
        return Err(format!(
            "{} of {} hosts are left, and at least {} are asked for",
            hosts.len(),
            wanted.len(),
            need.min_hosts.max(1)
        ));
    }
    fit(&mut hosts, need)?;
    Ok(Placed {
        hosts,
        replaced,
        missing,
    })
}

/// Sees that all ranks find a slot, with more slots for each host if that is allowed.
fn fit(hosts: &mut [Host], need: &Need) -> Result<(), String> {
    let slots: Option<u32> = hosts.iter().map(|host| host.slots).sum();
    let (Some(ranks), Some(slots)) = (need.ranks, slots) else {
        return Ok(());
    };
    if slots >= ranks {
        return Ok(());
    }
    if !need.shrink {
        return Err(format!(
            "{ranks} ranks do not fit on the {} hosts that are left, which have {slots} slots: give spares, or \
             --shrink to put more ranks on each",
            hosts.len()
        ));
    }
    // One more on each in turn, from the first, until all have a place.
    for turn in 0..(ranks - slots) as usize {
        let count = hosts.len();
        if let Some(slots) = &mut hosts[turn % count].slots {
            *slots += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(placed: &Placed) -> String {
        write(&placed.hosts, Form::Colon).replace('\n', " ")
    }

    fn gone(names: &[&str]) -> BTreeMap<String, String> {
        let pair = |name: &&str| ((*name).to_owned(), "no answer".to_owned());
        names.iter().map(pair).collect()
    }

    #[test]
    fn host_files_of_both_forms_are_read_and_written() {
        let text = "# all\na slots=2 max_slots=4\n\nb:3\nc   # the last\na\n";
        let hosts = parse(text);
        assert_eq!(
            hosts,
            [
                Host::new("a", Some(3)),
                Host::new("b", Some(3)),
                Host::new("c", None)
            ]
        );
        assert_eq!(write(&hosts, Form::Slots), "a slots=3\nb slots=3\nc\n");
        assert_eq!(write(&hosts, Form::Colon), "a:3\nb:3\nc\n");
        for form in [Form::Slots, Form::Colon] {
            assert_eq!(parse(&write(&hosts, form)), hosts);
        }
        assert_eq!(
            parse_list("a:2,b"),
            [Host::new("a", Some(2)), Host::new("b", None)]
        );
        assert!(parse("").is_empty() && parse_list(" , ").is_empty());
    }

    #[test]
    fn a_spare_takes_the_place_of_the_dead() {
        let (wanted, spares) = (parse("a:2\nb:2\nc:2"), parse("s\nt:9\nb"));
        let need = Need {
            ranks: Some(6),
            ..Need::default()
        };
        let placed = place(&wanted, &spares, &gone(&["b", "s"]), &need).expect("placed");
        assert_eq!(names(&placed), "a:2 t:2 c:2 ");
        assert_eq!(placed.replaced, [("b".to_owned(), "t".to_owned())]);
        assert!(placed.missing.is_empty());
    }

    #[test]
    fn ranks_without_a_slot_are_refused_or_crowded_in() {
        let wanted = parse("a:2\nb:2\nc:2");
        let mut need = Need {
            ranks: Some(6),
            ..Need::default()
        };
        let refused = place(&wanted, &[], &gone(&["a"]), &need).expect_err("no room");
        assert!(
            refused.contains("6 ranks") && refused.contains("--shrink"),
            "{refused}"
        );
        need.shrink = true;
        let placed = place(&wanted, &[], &gone(&["a"]), &need).expect("shrunk");
        assert_eq!(names(&placed), "b:3 c:3 ");
        assert_eq!(placed.missing, ["a"]);
        need.ranks = Some(7);
        let placed = place(&wanted, &[], &gone(&["a"]), &need).expect("shrunk");
        assert_eq!(names(&placed), "b:4 c:3 ");
        need.min_hosts = 3;
        let refused = place(&wanted, &[], &gone(&["a"]), &need).expect_err("too few");
        assert!(refused.contains("2 of 3 hosts"), "{refused}");
        place(&wanted, &[], &gone(&["a", "b", "c"]), &Need::default()).expect_err("none");
    }
}
