// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the maximum of every count a reader accepts.
//! Invariants: a number above its limit is an error before anything is allocated for it.
//! Format: docs/format/store.md, section "Limits".

/// Major version of the store format. A reader refuses any other major version.
pub const STORE_VERSION_MAJOR: u16 = 1;
/// Minor version of the store format. A reader accepts any minor version of its major one.
pub const STORE_VERSION_MINOR: u16 = 0;
/// Major version of the messages that are sent in frames. A reader refuses any other major version.
pub const MESSAGE_VERSION_MAJOR: u16 = 2;
/// Minor version of these messages. A reader accepts any minor version of its major one.
pub const MESSAGE_VERSION_MINOR: u16 = 0;

/// Largest incarnation, checkpoint number and root sequence: they travel as signed 64-bit values.
pub const COUNTER_MAX: u64 = (1 << 63) - 1;
/// Longest name of a variable, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest name of a job or a node, in bytes of UTF-8.
pub const LABEL_BYTES_MAX: usize = 128;
/// Most dimensions of a variable.
pub const DIMENSIONS_MAX: usize = 8;
/// Most variables on one rank.
pub const VARIABLES_MAX: usize = 1 << 20;
/// Longest path of a protected file, in bytes.
pub const FILE_PATH_BYTES_MAX: usize = 4095;
/// All permissions of a file that are kept.
pub const FILE_MODE_MAX: u32 = 0o777;
/// Most stretches that a node wrote of a file that several nodes write.
pub const PART_STRETCHES_MAX: u32 = 1 << 24;
/// Most stretches of a protected file between its holes.
pub const FILE_STRETCHES_MAX: usize = 1 << 16;
/// Most ranks of a job.
pub const RANKS_MAX: u32 = 1 << 24;
/// Most revisions a store retains, pinned ones included.
pub const REVISIONS_MAX: usize = 64;
/// Smallest unit of change tracking, in bytes.
pub const BLOCK_BYTES_MIN: u32 = 1 << 10;
/// Largest unit of change tracking, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 1 << 18;
/// Unit of change tracking where nothing else is asked for, in bytes.
pub const BLOCK_BYTES_DEFAULT: u32 = 1 << 14;
/// Smallest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u32 = 1 << 18;
/// Largest segment, in bytes: an address has 16 bits for the offset in units of 64 bytes.
pub const SEGMENT_BYTES_MAX: u32 = 1 << 22;
/// Most segments of one store (4 TiB of full segments).
pub const SEGMENTS_MAX: u64 = 1 << 20;
/// Largest variable on one rank, in bytes.
pub const VARIABLE_BYTES_MAX: u64 = 1 << 44;
/// Entries of a full tree page.
pub const FANOUT: usize = 32;
/// Greatest height of a tree: 32^7 blocks are more than `VARIABLE_BYTES_MAX` needs.
pub const HEIGHT_MAX: u8 = 7;
/// Block size of the streams that the store keeps for itself, in bytes.
pub const INTERNAL_BLOCK_BYTES: u32 = 1 << 10;
/// Largest stream that the store keeps for itself (descriptors, tables), in bytes.
pub const INTERNAL_STREAM_BYTES_MAX: u64 = 1 << 30;

/// Most members of a redundancy group.
pub const GROUP_MEMBERS_MAX: usize = 32;
/// Most parity extents of a stripe.
pub const PARITY_MAX: usize = 8;
/// Most stripes that one record of a stripe log adds or removes, and most things of any other list of a
/// message without a limit of its own.
pub const STRIPES_MAX: u32 = 1 << 24;
/// Most bytes of one record of a stripe log, and so of all the stripes of a group; it travels in parts.
pub const RECORD_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of an address of an agent, as text.
pub const ENDPOINT_BYTES_MAX: usize = 255;
/// Most bytes of a superblock or root slot in a record or a message.
pub const CARRIED_BYTES_MAX: u32 = 16 << 10;
/// Most bytes of the text of a report.
pub const REPORT_BYTES_MAX: usize = 4096;

/// Most files of predecessors that an archive store refers to.
pub const ARCHIVE_FILES_MAX: usize = 16;
/// Longest name of a file of an archive, in bytes.
pub const FILE_NAME_BYTES_MAX: usize = 128;
/// Longest encoding scheme of an archived segment, in bytes.
pub const SCHEME_BYTES_MAX: usize = 32;
/// Most pieces of an archived segment, and most runs of it with a base: one for each unit of addresses.
pub const SEGMENT_PIECES_MAX: u32 = 1 << 16;
/// Most bytes of an archived segment as it is stored, its header included.
pub const STORED_BYTES_MAX: u32 = 1 << 23;
/// Most stores that a catalog names.
pub const CATALOG_STORES_MAX: u32 = 1 << 16;
/// Most sets of ranks that a catalog has.
pub const CATALOG_RANK_SETS_MAX: u32 = 1 << 20;
/// Most starts of the job that a catalog remembers.
pub const CATALOG_STARTS_MAX: u32 = 1 << 10;
/// Most checkpoints that a catalog lists.
pub const CATALOG_CHECKPOINTS_MAX: u32 = 1 << 12;
/// Smallest slot of a catalog, in bytes.
pub const CATALOG_SLOT_BYTES_MIN: u32 = 1 << 16;
/// Largest slot of a catalog, in bytes.
pub const CATALOG_SLOT_BYTES_MAX: u32 = 1 << 28;
