// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a node has, as a restart sees it: its stores, their revisions, and what stripe logs
//! say of their groups.
//! Invariants: a reader allocates nothing that the bytes it has do not pay for; ranks that revisions share
//! are sent once, and are in memory once.
//! Format: docs/format/agent.md.

use crate::check::{Check, Checked, counter, list, refuse, text, within};
use crate::ids::{CheckpointId, StoreId};
use crate::limits::{
    GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, PARITY_MAX, RANKS_MAX, REPORT_BYTES_MAX, REVISIONS_MAX,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a store has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedRevision {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Known to be committed by every rank.
    pub complete: bool,
    /// Ranks of the job.
    pub world_size: u32,
    /// The ranks whose parts are here, ascending; shared with the revision before if they are the same.
    pub ranks: Arc<[u32]>,
}

/// What the stripe log of a store says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedGroup {
    /// Composition of the group.
    pub epoch: u64,
    /// Last round.
    pub round: u64,
    /// Losses covered.
    pub parity: u8,
    /// Most pieces of a stripe.
    pub pieces_max: u8,
    /// Newest protected checkpoint.
    pub protected: CheckpointId,
    /// The members by column: store, node, domain, and the checkpoints and ranks they had.
    pub members: Vec<SurveyedMember>,
}

/// What a stripe log knows of a member of its group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedMember {
    /// Its store.
    pub store: StoreId,
    /// Its node.
    pub node: String,
    /// What fails together with it.
    pub domain: String,
    /// The start that its root was last opened in.
    pub incarnation: u64,
    /// Which of its roots this was: each one that is written has the next.
    pub sequence: u64,
    /// The checkpoints of its root, oldest first.
    pub checkpoints: Vec<CheckpointId>,
}

/// What of a store could not be read just now: nothing is known of it, so it is not lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedUnread {
    /// It is the root, or what is needed to come to it: there may be newer checkpoints than those listed, which
    /// are those of the other root slot. Otherwise some part of what is listed.
    pub root: bool,
    /// Why.
    pub why: String,
}

/// What a node has, as a restart sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The store; zeros where even that could not be read.
    pub store: StoreId,
    /// Which run of the job it is of.
    pub run: u32,
    /// The start that its root was last opened in.
    pub incarnation: u64,
    /// Which of its roots this is.
    pub sequence: u64,
    /// Bytes of its file.
    pub length_bytes: u64,
    /// Made again from a group's parity, for reading only.
    pub rebuilt: bool,
    /// What of it could not be read.
    pub unread: Option<SurveyedUnread>,
    /// What it retains, oldest first.
    #[serde(with = "revisions")]
    pub revisions: Vec<SurveyedRevision>,
    /// What protects it.
    pub group: Option<SurveyedGroup>,
    /// The composition before, as long as it protects stores of groups that have not recorded since.
    pub former: Option<SurveyedGroup>,
}

impl Check for Survey {
    fn check(&self) -> Checked {
        counter("incarnation", self.incarnation)?;
        counter("sequence", self.sequence)?;
        if let Some(unread) = &self.unread {
            text("why it could not be read", &unread.why, REPORT_BYTES_MAX)?;
        }
        within("revisions", self.revisions.len(), 0, REVISIONS_MAX)?;
        let mut former: Option<&SurveyedRevision> = None;
        for revision in &self.revisions {
            if former.is_some_and(|former| former.checkpoint >= revision.checkpoint) {
                return refuse("number", "ascending checkpoints", revision.checkpoint);
            }
            revision.checkpoint.check()?;
            within("ranks of the job", revision.world_size, 1, RANKS_MAX)?;
            // Those that the revision before has were looked at there.
            let is_shared = former.is_some_and(|it| Arc::ptr_eq(&it.ranks, &revision.ranks));
            if !is_shared && revision.ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
                return refuse("ranks", "ascending", "these");
            }
            if let Some(&last) = revision.ranks.last() {
                within("rank", last, 0, revision.world_size.saturating_sub(1))?;
            }
            former = Some(revision);
        }
        let mut groups = [&self.group, &self.former].into_iter().flatten();
        groups.try_for_each(SurveyedGroup::check)
    }
}

impl Check for SurveyedGroup {
    fn check(&self) -> Checked {
        counter("epoch", self.epoch)?;
        counter("round", self.round)?;
        within("parity", self.parity, 0, PARITY_MAX)?;
        within("pieces of a stripe", self.pieces_max, 0, GROUP_MEMBERS_MAX)?;
        self.protected.check()?;
        list("members", &self.members, GROUP_MEMBERS_MAX)
    }
}

impl Check for SurveyedMember {
    fn check(&self) -> Checked {
        text("node", &self.node, LABEL_BYTES_MAX)?;
        text("domain", &self.domain, LABEL_BYTES_MAX)?;
        counter("incarnation", self.incarnation)?;
        counter("sequence", self.sequence)?;
        list("checkpoints", &self.checkpoints, REVISIONS_MAX)
    }
}

/// The revisions of a store as they are sent: nearly always with the ranks of the one before.
mod revisions {
    use super::SurveyedRevision;
    use crate::ids::CheckpointId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::sync::Arc;

    #[derive(Serialize, Deserialize)]
    struct Sent<Ranks> {
        checkpoint: CheckpointId,
        complete: bool,
        world_size: u32,
        ranks: Option<Ranks>,
    }

    pub(super) fn serialize<S: Serializer>(
        all: &[SurveyedRevision],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let mut former: &[u32] = &[];
        to.collect_seq(all.iter().map(|revision| {
            let before = std::mem::replace(&mut former, &revision.ranks);
            Sent {
                checkpoint: revision.checkpoint,
                complete: revision.complete,
                world_size: revision.world_size,
                ranks: (former != before).then_some(former),
            }
        }))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<SurveyedRevision>, D::Error> {
        let mut former: Arc<[u32]> = Arc::default();
        let all = Vec::<Sent<Vec<u32>>>::deserialize(from)?.into_iter();
        let revisions = all.map(|sent| {
            if let Some(ranks) = sent.ranks {
                former = ranks.into();
            }
            SurveyedRevision {
                checkpoint: sent.checkpoint,
                complete: sent.complete,
                world_size: sent.world_size,
                ranks: Arc::clone(&former),
            }
        });
        Ok(revisions.collect())
    }
}
