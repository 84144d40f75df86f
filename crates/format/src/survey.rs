// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a node has, as a restart sees it: its stores, their revisions, and what stripe logs
//! say of their groups.
//! Invariants: a reader allocates nothing that the bytes it has do not pay for.
//! Format: docs/format/agent.md.

use crate::agent::{put_checkpoint, take_checkpoint, take_flag, take_list, take_small};
use crate::bytes::{Decoder, Encoder, FormatError};
use crate::ids::{CheckpointId, StoreId};
use crate::limits::{
    COUNTER_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, PARITY_MAX, RANKS_MAX, REPORT_BYTES_MAX,
    REVISIONS_MAX,
};
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedMember {
    /// Its store.
    pub store: StoreId,
    /// Its node.
    pub node: String,
    /// What fails together with it.
    pub domain: String,
    /// The life that its root was last opened in.
    pub incarnation: u64,
    /// Which of its roots this was: each one that is written has the next.
    pub sequence: u64,
    /// The checkpoints of its root, oldest first.
    pub checkpoints: Vec<CheckpointId>,
}

/// What of a store could not be read just now: nothing is known of it, so it is not lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedUnread {
    /// It is the root, or what is needed to come to it: there may be newer checkpoints than those listed, which
    /// are those of the other root slot. Otherwise some part of what is listed.
    pub root: bool,
    /// Why.
    pub why: String,
}

/// What a node has, as a restart sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The store; zeros where even that could not be read.
    pub store: StoreId,
    /// Which run of the job it is of.
    pub run: u32,
    /// The life that its root was last opened in.
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
    pub revisions: Vec<SurveyedRevision>,
    /// What protects it.
    pub group: Option<SurveyedGroup>,
    /// The composition before, as long as it protects stores of groups that have not recorded since.
    pub former: Option<SurveyedGroup>,
}

impl Survey {
    /// Least bytes: of an empty store without a group.
    pub(crate) const BYTES_MIN: usize = 52;

    /// Appends its bytes.
    pub(crate) fn put(&self, body: &mut Encoder) {
        let survey = self;
        body.raw(&survey.store.0)
            .u32(survey.run)
            .u64(survey.incarnation)
            .u64(survey.sequence)
            .u64(survey.length_bytes)
            .u8(u8::from(survey.rebuilt));
        let unread = survey.unread.as_ref();
        body.u8(unread.map_or(0, |unread| 1 + u8::from(unread.root)));
        if let Some(unread) = unread {
            body.text(&unread.why);
        }
        body.count(survey.revisions.len());
        let mut former: Arc<[u32]> = Arc::default();
        for revision in &survey.revisions {
            put_checkpoint(body, revision.checkpoint);
            body.u8(u8::from(revision.complete))
                .u32(revision.world_size);
            // Nearly always the ranks of the revision before.
            let same = revision.ranks == former;
            body.u8(u8::from(same));
            if !same {
                body.count(revision.ranks.len());
                for rank in &*revision.ranks {
                    body.u32(*rank);
                }
            }
            former = Arc::clone(&revision.ranks);
        }
        for group in [&survey.group, &survey.former] {
            body.u8(u8::from(group.is_some()));
            let Some(group) = group else { continue };
            body.u64(group.epoch)
                .u64(group.round)
                .u8(group.parity)
                .u8(group.pieces_max);
            put_checkpoint(body, group.protected);
            body.count(group.members.len());
            for member in &group.members {
                body.raw(&member.store.0)
                    .text(&member.node)
                    .text(&member.domain)
                    .u64(member.incarnation)
                    .u64(member.sequence);
                body.count(member.checkpoints.len());
                for id in &member.checkpoints {
                    put_checkpoint(body, *id);
                }
            }
        }
    }

    /// The next survey of `body`.
    pub(crate) fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let store = StoreId(body.array("store id")?);
        let run = body.u32("run")?;
        let incarnation = body.u64_max("incarnation", COUNTER_MAX)?;
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let length_bytes = body.u64("length")?;
        let rebuilt = take_flag(body, "rebuilt")?;
        let unread = match take_small(body, "what could not be read", 0, 2)? {
            0 => None,
            what => Some(SurveyedUnread {
                root: what == 2,
                why: body.text("why it could not be read", REPORT_BYTES_MAX)?,
            }),
        };
        let most = u32::try_from(REVISIONS_MAX).unwrap_or(u32::MAX);
        let count = body.u32_in("revisions", 0, most)?;
        let mut revisions: Vec<SurveyedRevision> = Vec::new();
        let mut former: Arc<[u32]> = Arc::default();
        for _ in 0..count {
            let checkpoint = take_checkpoint(body)?;
            if revisions.last().is_some_and(|r| r.checkpoint >= checkpoint) {
                return Err(body.refuse("number", 8, "ascending checkpoints", checkpoint));
            }
            let complete = take_flag(body, "complete")?;
            let world_size = body.u32_in("ranks of the job", 1, RANKS_MAX)?;
            let ranks = take_ranks(body, world_size, &former)?;
            former = Arc::clone(&ranks);
            revisions.push(SurveyedRevision {
                checkpoint,
                complete,
                world_size,
                ranks,
            });
        }
        let group = take_optional_group(body, "group")?;
        let former = take_optional_group(body, "former composition")?;
        Ok(Self {
            store,
            run,
            incarnation,
            sequence,
            length_bytes,
            rebuilt,
            unread,
            revisions,
            group,
            former,
        })
    }
}

/// The ranks of a revision: those of the one before, or ascending ones that differ from them.
fn take_ranks(
    body: &mut Decoder<'_>,
    world_size: u32,
    former: &Arc<[u32]>,
) -> Result<Arc<[u32]>, FormatError> {
    let ranks = if take_flag(body, "same ranks")? {
        Arc::clone(former)
    } else {
        let ranks = take_list(body, "ranks", 4, |body| body.u32("rank"))?;
        if ranks == **former || ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(body.refuse("ranks", 0, "ascending, and others than before", "these"));
        }
        ranks.into()
    };
    match ranks.last() {
        Some(&last) if last >= world_size => {
            Err(body.refuse("rank", 4, format!("below {world_size}"), last))
        }
        _ => Ok(ranks),
    }
}

fn take_optional_group(
    body: &mut Decoder<'_>,
    field: &'static str,
) -> Result<Option<SurveyedGroup>, FormatError> {
    take_flag(body, field)?
        .then(|| take_group(body))
        .transpose()
}

fn take_group(body: &mut Decoder<'_>) -> Result<SurveyedGroup, FormatError> {
    let epoch = body.u64_max("epoch", COUNTER_MAX)?;
    let round = body.u64_max("round", COUNTER_MAX)?;
    let parity = take_small(body, "parity", 0, PARITY_MAX)?;
    let pieces_max = take_small(body, "pieces of a stripe", 0, GROUP_MEMBERS_MAX)?;
    let protected = take_checkpoint(body)?;
    let most = u32::try_from(GROUP_MEMBERS_MAX).unwrap_or(u32::MAX);
    let count = body.u32_in("members", 0, most)?;
    let member = |body: &mut Decoder<'_>| {
        let member = SurveyedMember {
            store: StoreId(body.array("store id")?),
            node: body.text("node", LABEL_BYTES_MAX)?,
            domain: body.text("domain", LABEL_BYTES_MAX)?,
            incarnation: body.u64_max("incarnation", COUNTER_MAX)?,
            sequence: body.u64_max("sequence", COUNTER_MAX)?,
            checkpoints: take_list(body, "checkpoints", 16, take_checkpoint)?,
        };
        if member.checkpoints.len() > REVISIONS_MAX {
            let expected = format!("at most {REVISIONS_MAX}");
            return Err(body.refuse("checkpoints", 0, expected, member.checkpoints.len()));
        }
        Ok(member)
    };
    let members = (0..count).map(|_| member(body)).collect::<Result<_, _>>()?;
    Ok(SurveyedGroup {
        epoch,
        round,
        parity,
        pieces_max,
        protected,
        members,
    })
}
