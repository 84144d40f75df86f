// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that give names to files and take them.
//! In from: `answer`. Out to: the agent, which does it and knows what it means; the kernel.
//! Invariants: folders are made and removed where the program says; links to routed names, and such as routed names, are
//! refused.

use crate::answer::{Answers, Reply};
use crate::kernel::{self, Call};
use crate::proc::{Seen, number};
use crate::table::Name;
use backstay_route::message::{FIRST_ROUTED, Kind, Message, SECOND_ROUTED};
use backstay_route::place::{Routed, absolute};
use rustix::fs::{CWD, RenameFlags, lstat, renameat_with, rmdir};
use rustix::io::Errno;

/// A name of a call.
struct Given {
    path: Vec<u8>,
    seen: Seen,
    routed: Option<Routed>,
}

impl Given {
    fn is_folder(&self) -> bool {
        self.seen.is_folder(&self.path)
    }

    /// The routed name, if it is not that of a folder.
    fn file(&self) -> Option<&Routed> {
        let routed = self.routed.as_ref()?;
        (lstat(&routed.live).is_ok() || !self.is_folder()).then_some(routed)
    }
}

impl Answers {
    fn given(&self, call: &Call, name: Name) -> Option<Given> {
        let path = self.path(call, name)?;
        let seen = Seen::new(call, name);
        let routed = self.places.file(&path, &seen);
        Some(Given { path, seen, routed })
    }

    fn ask(&self, call: &Call, message: &Message<'_>) -> Result<(), Errno> {
        if !kernel::is_waiting(self.listener(), call) {
            return Err(Errno::SRCH);
        }
        let (process, _) = self.process(call)?;
        process.lock().ask(message)
    }

    pub(crate) fn rename(&self, call: &Call, from: Name, to: Name, flags: Option<usize>) -> Reply {
        let names = (self.given(call, from), self.given(call, to));
        let (Some(from), Some(to)) = names else {
            return Reply::GoOn;
        };
        let flags = flags.map_or(0, |at| number(call, at));
        let first = from.file();
        let second = to.routed.as_ref();
        // A folder that is renamed takes no file's name.
        let second = second.filter(|_| first.is_some() || !from.is_folder());
        let second = second.and_then(|_| to.file());
        if first.is_none() && second.is_none() {
            return self.rename_folder(call, &from, &to, flags);
        }
        let is_first = if first.is_some() { FIRST_ROUTED } else { 0 };
        let is_second = if second.is_some() { SECOND_ROUTED } else { 0 };
        let name = |given: &Given, routed: Option<&Routed>| match routed {
            Some(routed) => Some(routed.name.clone()),
            None => absolute(&given.path, &given.seen),
        };
        let (Some(first), Some(second)) = (name(&from, first), name(&to, second)) else {
            return Reply::Failed(Errno::NOENT);
        };
        let message = Message {
            kind: Kind::Rename,
            id: is_first | is_second,
            value: flags,
            first: &first,
            second: &second,
        };
        self.ask(call, &message).into()
    }

    /// A rename of what is not routed: of a folder, what is routed in it goes with it.
    fn rename_folder(&self, call: &Call, from: &Given, to: &Given, flags: i32) -> Reply {
        let first = self.places.folder(&from.path, &from.seen);
        let second = self.places.folder(&to.path, &to.seen);
        let (Some(first), Some(second)) = (first, second) else {
            return Reply::GoOn;
        };
        if !kernel::is_waiting(self.listener(), call) {
            return Reply::GoOn;
        }
        let flags = RenameFlags::from_bits_retain(flags.cast_unsigned());
        let (from, to) = (&first.name[..], &second.name[..]);
        if let Err(error) = renameat_with(CWD, from, CWD, to, flags) {
            return Reply::Failed(error);
        }
        let message = Message {
            kind: Kind::RenameFolder,
            id: 0,
            value: 0,
            first: from,
            second: to,
        };
        self.ask(call, &message).into()
    }

    pub(crate) fn remove(&self, call: &Call, name: Name, flags: Option<usize>) -> Reply {
        let flags = flags.map_or(0, |at| number(call, at));
        if flags & libc::AT_REMOVEDIR != 0 {
            return self.remove_folder(call, name);
        }
        let Some(given) = self.given(call, name) else {
            return Reply::GoOn;
        };
        let Some(routed) = given.file() else {
            return Reply::GoOn;
        };
        let message = Message::named(Kind::Remove, 0, 0, &routed.name);
        self.ask(call, &message).into()
    }

    /// A folder that has routed files is not empty.
    pub(crate) fn remove_folder(&self, call: &Call, name: Name) -> Reply {
        let place = self
            .path(call, name)
            .and_then(|path| self.places.folder(&path, &Seen::new(call, name)));
        match place {
            Some(place) if kernel::is_waiting(self.listener(), call) => match rmdir(&place.live) {
                Err(error @ (Errno::NOTEMPTY | Errno::EXIST)) => Reply::Failed(error),
                _ => Reply::GoOn,
            },
            _ => Reply::GoOn,
        }
    }

    /// Links are refused: a name would have two places.
    pub(crate) fn link(&self, call: &Call, names: &[Name]) -> Reply {
        let mut given = names.iter().filter_map(|name| self.given(call, *name));
        if given.any(|given| given.file().is_some()) {
            Reply::Failed(Errno::PERM)
        } else {
            Reply::GoOn
        }
    }
}
