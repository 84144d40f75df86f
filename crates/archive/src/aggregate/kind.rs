// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what makes variables of several ranks similar: name, element type and class.
//! In: descriptors, parts. Out: kinds, in the order in which a plan takes them.
//! Invariants: sizes and shapes do not matter, so ranks of different sizes merge.

use super::input::VariableBlocks;
use backstay_format::ElementType;
use std::cmp::Ordering;

/// Whether a variable is one element or many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A scalar, or an array of one element.
    Atomic,
    /// Any other array.
    Array,
}

/// Variables of one kind are similar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind<'a> {
    /// Name of the variable.
    pub name: &'a str,
    /// Type of its elements.
    pub element: ElementType,
    /// One element or many.
    pub class: Class,
}

impl<'a> Kind<'a> {
    /// The kind of a variable, or of a part of one.
    pub fn of(variable: &VariableBlocks<'a>) -> Self {
        let descriptor = variable.descriptor;
        if let Some(part) = variable.part {
            return Self {
                name: &part.name,
                element: part.element,
                class: Class::Array,
            };
        }
        let class = match descriptor.element_count() {
            Some(1) => Class::Atomic,
            _ => Class::Array,
        };
        Self {
            name: &descriptor.name,
            element: descriptor.element,
            class,
        }
    }

    fn key(&self) -> (&'a str, u8, Class) {
        (self.name, self.element.id(), self.class)
    }
}

impl Ord for Kind<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Kind<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
