// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the page of a file on shared storage that says that another file goes on from it.
//! Invariants: zeros as long as none does; once it is written, the file's writer uses no space again.
//! Format: docs/format/archive.md, section "Heir".

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::ids::StoreId;
use crate::limits::LABEL_BYTES_MAX;

const HEIR: &str = "heir of an archive file";
const HEIR_MAGIC: [u8; 8] = *b"BKSTHEIR";
/// Where the page stands in an archive store and in a catalog.
pub const HEIR_OFFSET: u64 = 8192;
/// Bytes of the page.
pub const HEIR_BYTES: usize = 4096;

/// Who goes on from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heir {
    /// The store or catalog that it goes on from; zeros where that was not whole yet.
    pub of: StoreId,
    /// The epoch of the file that goes on.
    pub epoch: u32,
    /// The host that writes it.
    pub host: String,
}

impl Heir {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(HEIR, HEIR_MAGIC);
        body.raw(&self.of.0).u32(self.epoch).u32(0).text(&self.host);
        body.finish(self, Self::decode)
    }

    /// The heir that `bytes` name.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body: Decoder<'_> = open(HEIR, HEIR_MAGIC, bytes)?;
        let of = StoreId(body.array("store id")?);
        let epoch = body.u32_in("epoch", 1, u32::MAX)?;
        body.zeros("reserved", 4)?;
        let host = body.text("host", LABEL_BYTES_MAX)?;
        body.end()?;
        Ok(Self { of, epoch, host })
    }
}
