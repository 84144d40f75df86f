// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: `status --watch`: looks every second, and draws the dashboard on a terminal; elsewhere it prints lines.
//! In from: snapshots, keys, signals. Out to: the terminal, which is as before at the end, however it comes.
//! Invariants: looks take no lock; a terminal that goes away ends the command; without a terminal, or on a dumb one,
//! nothing but lines is printed.

use super::EVERY;
use super::course::Course;
use super::dashboard::{Theme, draw};
use super::look::Snapshot;
use super::show;
use crate::interrupt;
use crate::output::{Failure, redraw};
use crate::select::Places;
use crate::terminal::{has_colours, is_dumb};
use crate::view::utc;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How long a signal waits to be seen.
const NAP: Duration = Duration::from_millis(100);

/// Why it ends.
enum End {
    /// Somebody pressed a key.
    Key,
    /// A signal, or Ctrl-C as a key, which is one where keys are not read one by one.
    Signal(u8),
}

/// Shows it until interrupted.
pub(super) fn watch(places: &Places) -> Result<(), Failure> {
    let first = Snapshot::take(places)?;
    first.refuse_nothing()?;
    if std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !is_dumb() {
        return on_terminal(places, first);
    }
    as_lines(places, first)
}

fn on_terminal(places: &Places, first: Snapshot) -> Result<(), Failure> {
    interrupt::watch()?;
    let started = ratatui::try_init();
    let mut terminal = started.map_err(|error| Failure::output("the terminal", &error))?;
    let ended = looks(&mut terminal, places, first);
    let restored = ratatui::try_restore();
    // Nobody sees what a terminal that is gone cannot show.
    let ended = ended?;
    restored.map_err(|error| Failure::output("the terminal", &error))?;
    match ended {
        End::Key => Ok(()),
        End::Signal(number) => Err(Failure::interrupted(number, "interrupted")),
    }
}

fn looks(terminal: &mut DefaultTerminal, places: &Places, first: Snapshot) -> Result<End, Failure> {
    let theme = Theme {
        has_colours: has_colours(),
    };
    let lost = |error: std::io::Error| Failure::output("the terminal", &error);
    let mut course = Course::default();
    course.take(None, &first);
    let mut shown = first;
    loop {
        let due = Instant::now() + EVERY;
        terminal
            .draw(|frame| draw(frame, &shown, &course, theme))
            .map_err(lost)?;
        while let Some(left) = due.checked_duration_since(Instant::now()) {
            if let Some(number) = interrupt::came() {
                return Ok(End::Signal(number));
            }
            if !event::poll(left.min(NAP)).map_err(lost)? {
                continue;
            }
            match event::read().map_err(lost)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(End::Signal(2));
                    }
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(End::Key),
                    _ => {}
                },
                Event::Resize(..) => {
                    terminal
                        .draw(|frame| draw(frame, &shown, &course, theme))
                        .map_err(lost)?;
                }
                _ => {}
            }
        }
        let mut now = Snapshot::take(places)?;
        now.take_rates(&shown);
        course.take(Some(&shown), &now);
        shown = now;
    }
}

fn as_lines(places: &Places, first: Snapshot) -> Result<(), Failure> {
    let mut shown = first;
    loop {
        let mut lines = vec![utc(shown.taken_unix_ns)];
        lines.extend(show::lines(&shown));
        lines.extend(shown.unreadable().map(str::to_owned));
        if !redraw(&lines) {
            return Ok(());
        }
        std::thread::sleep(EVERY);
        let mut now = Snapshot::take(places)?;
        now.take_rates(&shown);
        shown = now;
    }
}
