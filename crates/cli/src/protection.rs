// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what protects a checkpoint, for people and as JSON, the same in every command.
//! Invariants: less than was asked for is never left out; keys are listed in docs/reference/cli.md.

use crate::output::complain;
use crate::view::IdView;
use backstay_inspect::{Checkpoint, Group, Protection, Safety, Stores};
use serde::Serialize;
use std::collections::BTreeSet;

/// What protects a checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct ProtectionView {
    state: &'static str,
    redundant: bool,
    scheme: Option<&'static str>,
    losses: u8,
    losses_asked: u8,
    groups: Vec<usize>,
    less_than_asked: Vec<String>,
    text: String,
}

/// A redundancy group.
#[derive(Debug, Serialize)]
pub(crate) struct GroupView {
    job: String,
    scheme: &'static str,
    losses: u8,
    losses_asked: u8,
    epoch: u64,
    round: u64,
    protected: IdView,
    members: Vec<MemberView>,
    stripes: u64,
    bytes_data: u64,
    bytes_parity: u64,
}

#[derive(Debug, Serialize)]
struct MemberView {
    column: usize,
    node: String,
    domain: String,
    store: String,
    path: Option<String>,
}

impl ProtectionView {
    pub(crate) fn new(stores: &Stores, checkpoint: &Checkpoint) -> Self {
        let found = stores.protection(checkpoint);
        let safe = found.safety == Safety::Protected;
        Self {
            state: match found.safety {
                Safety::NodeOnly => "node only",
                Safety::Encoding => "in encoding",
                Safety::Protected => "protected",
                Safety::Archived => "archive",
            },
            redundant: found.redundant,
            scheme: scheme(stores, &found),
            losses: if safe { found.losses } else { 0 },
            losses_asked: found.asked,
            text: sentence(stores, &found),
            groups: found.groups,
            less_than_asked: found.short,
        }
    }
}

impl GroupView {
    pub(crate) fn new(stores: &Stores, group: &Group) -> Self {
        let members = group.members.iter().enumerate();
        let members = members.map(|(column, member)| MemberView {
            column,
            node: member.node.clone(),
            domain: member.domain.clone(),
            store: member.store.to_string(),
            path: member.here.map(|at| stores.path(at).display().to_string()),
        });
        let (bytes_data, bytes_parity) = group.bytes();
        Self {
            job: group.job.clone(),
            scheme: group.scheme(),
            losses: group.losses(),
            losses_asked: group.asked(),
            epoch: group.epoch(),
            round: group.round(),
            protected: group.protected().into(),
            members: members.collect(),
            stripes: group.stripes(),
            bytes_data,
            bytes_parity,
        }
    }
}

fn scheme(stores: &Stores, found: &Protection) -> Option<&'static str> {
    let schemes = found.groups.iter().map(|&at| &stores.groups()[at]);
    // A group of two says less about its scheme than a larger one.
    let largest = schemes.max_by_key(|group| group.members.len());
    largest.map(Group::scheme)
}

/// What protects a checkpoint, in some words.
pub(crate) fn short_sentence(stores: &Stores, checkpoint: &Checkpoint) -> String {
    sentence(stores, &stores.protection(checkpoint))
}

fn sentence(stores: &Stores, found: &Protection) -> String {
    let mut text = match found.safety {
        Safety::NodeOnly => "node only".to_owned(),
        Safety::Encoding => "node only, in encoding".to_owned(),
        Safety::Archived => "archive".to_owned(),
        Safety::Protected => {
            let sizes: Vec<usize> = found
                .groups
                .iter()
                .map(|&at| stores.groups()[at].members.len())
                .collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            let nodes = match (least, most) {
                (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
                (Some(least), _) => least.to_string(),
                (None, _) => "no".to_owned(),
            };
            let each = match sizes.len() {
                0 | 1 => String::new(),
                count => format!(" in each of {count} groups"),
            };
            let scheme = scheme(stores, found).unwrap_or("none");
            format!(
                "protected: any {} of {nodes} nodes{each} ({scheme})",
                found.losses
            )
        }
    };
    if !found.short.is_empty() {
        text += ", LESS THAN ASKED";
    }
    text
}

/// Says what is less than was asked for, each reason once.
pub(crate) fn say_shortfalls(stores: &Stores, checkpoints: &[Checkpoint]) {
    let all = checkpoints
        .iter()
        .map(|checkpoint| stores.protection(checkpoint).short);
    let reasons: BTreeSet<String> = all.flatten().collect();
    for reason in reasons {
        complain(&format!("LESS PROTECTION THAN ASKED: {reason}"));
    }
}
