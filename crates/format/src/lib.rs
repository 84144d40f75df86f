// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the bytes Backstay keeps, and the nouns its stages share.
//! In: values of the engine, or bytes somebody handed us. Out: bytes, or values that were checked.
//! Invariants: little-endian; a reader checks magic, version, length, checksum and every count
//! before it uses one; no I/O, no unsafe code; constants here are frozen per format version.
//! Format: docs/format/store.md; `wire` and `mac`: docs/format/wire.md; `archive`, `archived`, `catalog`
//! and `heir`: docs/format/archive.md; `scheme`: docs/format/codec.md; `part`: docs/format/part.md.
#![forbid(unsafe_code)]

pub mod limits;
pub mod width;
pub mod bytes;
mod check;
mod message;
pub mod hash;
pub mod fingerprint;
pub mod ids;
pub mod element;
pub mod geometry;
pub mod superblock;
pub mod segment;
pub mod stream;
pub mod page;
pub mod part;
pub mod rank_root;
pub mod descriptor;
pub mod file;
pub mod lineage;
pub mod root;
pub mod stripe;
pub mod agent;
pub mod record_part;
pub mod survey;
pub mod local;
pub mod drain;
pub mod merge;
pub mod archive;
pub mod archived;
pub mod catalog;
pub mod heir;
pub mod wire;
pub mod mac;
pub mod scheme;

pub use archive::{
    ArchiveFile, ArchiveRoot, ArchiveSuperblock, ArchiveTable, TableEntry, TablePlace,
};
pub use archived::{BaseRun, SegmentHeader, SegmentPiece};
pub use bytes::{Decoder, Encoder, FRAME_HEAD_BYTES, FormatError};
pub use catalog::{
    CatalogCheckpoint, CatalogPart, CatalogStart, CatalogState, CatalogStore, CatalogSuperblock,
    RankRange,
};
pub use descriptor::{Slab, VariableDescriptor};
pub use element::ElementType;
pub use file::{StoredFile, Stretch};
pub use fingerprint::{Fingerprint, FingerprintKey, Fingerprinter, KeyedFingerprint};
pub use geometry::Geometry;
pub use hash::{Digest, Digester};
pub use heir::Heir;
pub use ids::{Address, CheckpointId, SegmentId, StoreId};
pub use lineage::Lineage;
pub use merge::Merge;
pub use page::{BlockRef, Page};
pub use part::{PartMap, PartStretch};
pub use rank_root::{RankEntry, RankRoot};
pub use root::{RevisionEntry, RootSlot};
pub use scheme::Scheme;
pub use segment::{SegmentClass, SegmentRecord};
pub use stream::StreamRoot;
pub use stripe::{Extent, Member, Round, Stripe, StripeId, StripeLogHead, StripePiece};
pub use superblock::Superblock;
