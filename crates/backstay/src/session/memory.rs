// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: looks at the program's memory before it is touched, so that memory which was freed,
//! shortened or closed is an error that names the variable, and does not end the program.
//! In from: `session::checkpoint`, `session::restore`. Out to: `track::mappings`.
//! Invariants: no byte is touched; where nothing can be known (no /proc), all is taken for good.

use super::Session;
use super::variable::Registered;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_store::track::mappings::{Access, Look, Mappings, Obstacle};
use std::cell::OnceCell;
use std::ops::Range;

/// The mappings of this process, opened when they are asked for.
#[derive(Debug, Default)]
pub(super) struct MemoryLook {
    mappings: OnceCell<Option<Mappings>>,
    /// Why the memory must not be touched at all.
    refused: Option<Error>,
}

impl Session {
    /// The checkpoints and restores to come fail with `wrong`, on all ranks, until there is none.
    pub(crate) fn refuse(&mut self, wrong: Option<Error>) {
        self.memory.refused = wrong;
    }
}

impl MemoryLook {
    /// That every byte of all `variables` may be read or written.
    pub(super) fn check<'a>(
        &self,
        variables: impl Iterator<Item = &'a Registered>,
        access: Access,
    ) -> Result<()> {
        if let Some(wrong) = &self.refused {
            return Err(wrong.again());
        }
        let Some(mut look) = self.look() else {
            return Ok(());
        };
        for variable in variables {
            let name = || format!("variable {:?}", variable.descriptor.name);
            check(&mut look, &variable.region.addresses(), access, name)?;
        }
        Ok(())
    }

    /// That every byte of a buffer of the program's may be written.
    pub(super) fn check_buffer(&self, bytes: &Range<usize>, variable: &str) -> Result<()> {
        let name = || format!("the buffer for variable {variable:?}");
        self.look().map_or(Ok(()), |mut look| {
            check(&mut look, bytes, Access::Write, name)
        })
    }

    fn look(&self) -> Option<Look<'_>> {
        let open = || {
            let told = |reason| notice::info(&format!("memory is not looked at first: {reason}"));
            Mappings::open().map_err(told).ok()
        };
        let mappings = self.mappings.get_or_init(open).as_ref();
        mappings.map(Mappings::look)
    }
}

fn check(
    look: &mut Look<'_>,
    bytes: &Range<usize>,
    access: Access,
    name: impl Fn() -> String,
) -> Result<()> {
    let (length, start, end) = (bytes.len(), bytes.start, bytes.end);
    let place = || format!("{}: {length} bytes from {start:#x} to {end:#x}", name());
    let context = match look.check(bytes, access) {
        Ok(()) | Err(Obstacle::Unknown(_)) => return Ok(()),
        Err(Obstacle::Unmapped(at)) => format!(
            "{}: its memory is not there from {at:#x} on (freed, unmapped or shortened); protect it \
             again where it lies now and as long as it is, or unprotect it",
            place()
        ),
        Err(Obstacle::Forbidden(at)) => {
            let verb = match access {
                Access::Read => "read",
                Access::Write => "written",
            };
            format!(
                "{}: its memory may not be {verb} from {at:#x} on; allow that (mprotect), or unprotect \
                 it",
                place()
            )
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
