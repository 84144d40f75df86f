// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the variables that are protected, by name and by id.
//! In from: `session::protect`. Out to: capture and restore, which take them in the order of their names.
//! Invariants: a name has one variable, which keeps its id until it is unprotected; no id ever names another one, not
//! in another session of the process either.

use super::variable::Registered;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ids given in this process.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// A protected variable: what [`Session::protect`](super::Session::protect) returns, so that nothing has to be looked
/// up by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VariableId {
    slot: usize,
    number: u64,
}

#[derive(Debug)]
struct Slot {
    number: u64,
    variable: Registered,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Registry {
    slots: Vec<Option<Slot>>,
    /// Slots that nobody has.
    free: Vec<usize>,
    by_name: BTreeMap<String, usize>,
}

impl Registry {
    /// Puts a variable in the place of the one of its name, or beside the others.
    pub(super) fn insert(&mut self, variable: Registered) -> VariableId {
        let name = variable.descriptor.name.clone();
        if let Some(id) = self.id(&name) {
            self.slots[id.slot] = Some(Slot {
                number: id.number,
                variable,
            });
            return id;
        }
        let number = GIVEN.fetch_add(1, Ordering::Relaxed);
        let new = Some(Slot { number, variable });
        let slot = self.free.pop().unwrap_or(self.slots.len());
        match self.slots.get_mut(slot) {
            Some(free) => *free = new,
            None => self.slots.push(new),
        }
        self.by_name.insert(name, slot);
        VariableId { slot, number }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Registered> {
        let slot = self.by_name.remove(name)?;
        self.free.push(slot);
        self.slots[slot].take().map(|slot| slot.variable)
    }

    pub(super) fn id(&self, name: &str) -> Option<VariableId> {
        let slot = *self.by_name.get(name)?;
        let number = self.slots[slot].as_ref()?.number;
        Some(VariableId { slot, number })
    }

    pub(super) fn of_id(&mut self, id: VariableId) -> Option<&mut Registered> {
        let slot = self.slots.get_mut(id.slot)?.as_mut()?;
        (slot.number == id.number).then_some(&mut slot.variable)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Registered> {
        self.slots[*self.by_name.get(name)?]
            .as_ref()
            .map(|slot| &slot.variable)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Registered> {
        self.of_id(self.id(name)?)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// In the order of their names.
    pub(super) fn values(&self) -> impl Iterator<Item = &Registered> {
        let slots = self.by_name.values();
        slots.filter_map(|slot| self.slots[*slot].as_ref().map(|slot| &slot.variable))
    }

    /// In the order of their names.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Registered> {
        let mut slots: Vec<_> = self.slots.iter_mut().map(Option::as_mut).collect();
        let order = self.by_name.values();
        order.filter_map(move |slot| slots[*slot].take().map(|slot| &mut slot.variable))
    }
}
