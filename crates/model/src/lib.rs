// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to take which checkpoint: the mathematics of Backstay's planner.
//!
//! Purpose: from failure rates, costs and a pattern of levels to the expected efficiency, to the
//! best pattern, and to the decision whether a checkpoint is due now.
//! In from: the command line and the engine's schedule (plain numbers, SI units).
//! Out to: the same; nothing here reads a clock, a file or the engine.
//! Invariants: no unsafe code, no panic on any input, every duration is in seconds and every rate
//! in failures per second.
//!
//! The exact model is section V of "Design and Modeling of a Non-blocking Checkpointing System"
//! (Sato et al., SC 2012), written out precisely in [`markov`]; [`simulate`] plays the same rules
//! by Monte Carlo and shares no code with it.
#![forbid(unsafe_code)]

mod number;
pub mod error;
pub mod levels;
pub mod markov;
pub mod cases;
pub mod young_daly;
pub mod differential;
pub mod human;
pub mod optimize;
pub mod advice;
pub mod posterior;
pub mod schedule;
pub mod random;
pub mod simulate;

pub use error::ModelError;
pub use levels::{Case, Completion, LEVELS_MAX, Mode, Transfer};
pub use markov::{Solution, solve};
