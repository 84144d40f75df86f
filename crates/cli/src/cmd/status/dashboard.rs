// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a snapshot as a picture of the terminal: a bar for each level of each job, rates, what moved just now,
//! and a timeline.
//! In: the snapshot, and the course until it. Out: cells of a frame.
//! Invariants: pure: the clock is the snapshot's; what does not fit is counted, not cut in the middle of a number;
//! colours say nothing that the text does not.

use super::course::{Course, JobCourse, Level};
use super::look::{ArchiveView, JobView, Snapshot};
use super::show::{brief, last_drain, named, rate};
use crate::output::{counted, human_age, human_bytes, percent};
use crate::terminal::folded;
use crate::view::{short, utc};
use backstay::CheckpointId;
use backstay_inspect::share;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

/// From so many columns on the timeline stands beside the jobs.
const WIDE: u16 = 110;
const TIMELINE_COLUMNS: u16 = 40;
/// A bar is as many of the newest checkpoints.
const WINDOW: u64 = 10;
/// What moved so long ago is marked.
const FRESH_NS: u64 = 3_000_000_000;
/// Heights of a rate, lowest first.
const STEPS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];

/// Colours, where there are any.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theme {
    pub(super) has_colours: bool,
}

impl Theme {
    fn of(self, colour: Color) -> Style {
        if self.has_colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
    fn bad(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// How one level of a job stands.
struct Row {
    level: Level,
    name: &'static str,
    id: Option<CheckpointId>,
    /// Of the window, what this level has.
    has: f64,
    /// And what it will have when what is under way is done.
    under_way: f64,
    note: String,
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, course: &Course, theme: Theme) {
    let area = frame.area();
    let head = Rect {
        height: 1.min(area.height),
        ..area
    };
    frame.render_widget(Paragraph::new(head_line(snapshot, area.width)), head);
    let body = Rect {
        y: area.y + head.height,
        height: area.height.saturating_sub(head.height),
        ..area
    };
    if area.width >= WIDE {
        let left = Rect {
            width: body.width - TIMELINE_COLUMNS,
            ..body
        };
        let right = Rect {
            x: left.right(),
            width: TIMELINE_COLUMNS,
            ..body
        };
        panels(frame, left, snapshot, course, theme);
        timeline(frame, right, snapshot, course, theme);
    } else {
        let used = panels(frame, body, snapshot, course, theme);
        let rest = Rect {
            y: body.y + used,
            height: body.height - used,
            ..body
        };
        timeline(frame, rest, snapshot, course, theme);
    }
}

fn head_line(snapshot: &Snapshot, width: u16) -> Line<'static> {
    let (left, right) = (
        format!("backstay  {}", utc(snapshot.taken_unix_ns)),
        "* moved just now   q ends",
    );
    let room = usize::from(width).saturating_sub(left.len() + right.len());
    Line::from(format!("{left}{}{right}", " ".repeat(room))).style(Modifier::BOLD)
}

/// Draws jobs and archives from the top, as many as fit; rows that are used.
fn panels(
    frame: &mut Frame<'_>,
    area: Rect,
    snapshot: &Snapshot,
    course: &Course,
    theme: Theme,
) -> u16 {
    let inner = usize::from(area.width.saturating_sub(2));
    let none = JobCourse::default();
    let mut all: Vec<(String, Vec<Line<'static>>)> = Vec::new();
    for job in &snapshot.jobs {
        let course = course.jobs.get(&job.job).unwrap_or(&none);
        all.push((
            title(job),
            of_job(job, course, snapshot.taken_unix_ns, inner, theme),
        ));
    }
    for archive in &snapshot.archives {
        let title = format!(" archive of {} ", archive.job);
        all.push((title, of_archive(archive, snapshot.taken_unix_ns, inner)));
    }
    let mut used = 0;
    let count = all.len();
    for (at, (title, lines)) in all.into_iter().enumerate() {
        let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
        let last = u16::from(at + 1 < count);
        if used.max(1) > 1 && used + height + last > area.height {
            let text = format!(
                "and {} more, for which this terminal is too low",
                count - at
            );
            let line = Rect {
                y: area.y + used,
                height: 1.min(area.height - used),
                ..area
            };
            frame.render_widget(Paragraph::new(text), line);
            return used + line.height;
        }
        let height = height.min(area.height - used);
        let place = Rect {
            y: area.y + used,
            height,
            ..area
        };
        let block = Block::bordered().title(title);
        frame.render_widget(Paragraph::new(lines).block(block), place);
        used += height;
    }
    used
}

fn title(job: &JobView) -> String {
    let state = job.state();
    let sizes = job.stores.iter().filter_map(|store| store.metrics.as_ref());
    let sizes = sizes.max_by_key(|metrics| metrics.nodes);
    let sizes = sizes.map_or_else(String::new, |metrics| {
        let (nodes, ranks) = (
            counted(metrics.nodes, "node"),
            counted(metrics.ranks, "rank"),
        );
        format!("; {nodes}, {ranks}")
    });
    format!(" {}: {state}, start {}{sizes} ", job.job, job.incarnation)
}

#[expect(clippy::cast_precision_loss, reason = "an age for people to read")]
fn age(then_unix_ns: u64, now_unix_ns: u64) -> String {
    human_age(now_unix_ns.saturating_sub(then_unix_ns) as f64 / 1e9)
}

fn of_job(
    job: &JobView,
    course: &JobCourse,
    now_unix_ns: u64,
    width: usize,
    theme: Theme,
) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for row in rows(job, course) {
        let taken = row.id.and_then(|id| job.commits.get(&id));
        let old = |then: &u64| format!("{} old", age(*then, now_unix_ns));
        let old = taken.map_or_else(String::new, old);
        let fresh = course.has_moved(row.level, now_unix_ns.saturating_sub(FRESH_NS));
        lines.extend(row.lines(&old, fresh, width, theme));
    }
    for text in facts(job, course, now_unix_ns) {
        let folded = folded(&text, Some(width), 2);
        lines.extend(folded.into_iter().map(Line::from));
    }
    // That a drain is under way is shown already.
    let drain = job.archive.as_ref().filter(|_| job.ids.draining.is_none());
    if let Some(why) = drain.and_then(|drain| drain.why.clone()) {
        let folded = folded(&format!(" behind: {why}"), Some(width), 2);
        lines.extend(
            folded
                .into_iter()
                .map(|text| Line::from(text).style(theme.of(Color::Yellow))),
        );
    }
    lines
}

/// The levels that a job has.
fn rows(job: &JobView, course: &JobCourse) -> Vec<Row> {
    let newest = job.ids.node;
    let lag = |id: Option<CheckpointId>| match (newest, id) {
        (Some(newest), Some(id)) => newest.number.saturating_sub(id.number),
        (Some(newest), None) => newest.number,
        _ => 0,
    };
    let has = |lag: u64| share(WINDOW.saturating_sub(lag), WINDOW);
    let behind = |id: Option<CheckpointId>| match lag(id) {
        0 => "level".to_owned(),
        count => format!("{count} behind"),
    };
    let every = course.seconds_between();
    let mut rows = vec![Row {
        level: Level::Node,
        name: "node",
        id: newest,
        has: f64::from(u8::from(newest.is_some())),
        under_way: 0.0,
        note: every.map_or_else(String::new, |s| format!("one every {}", interval(s))),
    }];
    if job.ids.protected.is_some() || job.ids.encoding.is_some() {
        let ids = (job.ids.protected, job.ids.encoding);
        let encoding = ids.1.map(|id| format!("; {} encodes", short(id)));
        rows.push(Row {
            level: Level::Protected,
            name: "protected",
            id: ids.0,
            has: has(lag(ids.0)),
            under_way: ids.1.map_or(0.0, |id| has(lag(Some(id)))),
            note: behind(ids.0) + &encoding.unwrap_or_default(),
        });
    }
    if let Some(drain) = &job.archive {
        let done = share(
            drain.bytes_encoded.unwrap_or(0),
            drain.bytes_changed.unwrap_or(0),
        );
        let (is, will) = (
            has(lag(job.ids.archive)),
            job.ids.draining.map(|id| has(lag(Some(id)))),
        );
        let draining = job.ids.draining;
        let draining = draining.map(|id| format!("; {} drains, {}", short(id), percent(done)));
        rows.push(Row {
            level: Level::Archive,
            name: "archive",
            id: job.ids.archive,
            has: is,
            under_way: will.map_or(0.0, |will| is + (will - is).max(0.0) * done),
            note: behind(job.ids.archive) + &draining.unwrap_or_default(),
        });
    }
    rows
}

fn interval(seconds: f64) -> String {
    if seconds < 1.0 {
        brief(seconds)
    } else {
        human_age(seconds)
    }
}

impl Row {
    fn lines(&self, age: &str, fresh: bool, width: usize, theme: Theme) -> Vec<Line<'static>> {
        let columns = if width >= 70 { 20 } else { 10 };
        let mark = if fresh { "*" } else { " " };
        let front = format!("{mark}{:<10}", self.name);
        let back = format!(" {:<9} {:<11} {}", named(self.id), age, self.note);
        let (full, half) = (cells(self.has, columns), cells(self.under_way, columns));
        let half = half.max(full);
        let bar = [
            ("\u{2588}".repeat(full), theme.of(Color::Green)),
            ("\u{2592}".repeat(half - full), theme.of(Color::Yellow)),
            ("\u{b7}".repeat(columns - half), Style::new()),
        ];
        let room = width.saturating_sub(front.chars().count() + columns);
        let mut back = folded(&back, Some(room.max(10)), 1).into_iter();
        let style = if fresh {
            Style::new().add_modifier(Modifier::BOLD)
        } else {
            Style::new()
        };
        let mut spans = vec![Span::styled(front, style)];
        spans.extend(
            bar.into_iter()
                .map(|(text, style)| Span::styled(text, style)),
        );
        spans.push(Span::styled(back.next().unwrap_or_default(), style));
        let mut lines = vec![Line::from(spans)];
        let indent = " ".repeat(11 + columns);
        lines.extend(back.map(|text| Line::from(format!("{indent}{text}"))));
        lines
    }
}

/// So many of `columns`.
fn cells(share: f64, columns: usize) -> usize {
    let columns_f = f64::from(u32::try_from(columns).unwrap_or(0));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to the number of columns"
    )]
    let count = (share.clamp(0.0, 1.0) * columns_f).round() as usize;
    count.min(columns)
}

/// Costs and rates, each a line that may be folded.
fn facts(job: &JobView, course: &JobCourse, now_unix_ns: u64) -> Vec<String> {
    let mut facts = Vec::new();
    let measured = job
        .stores
        .iter()
        .find_map(|store| Some((store, store.metrics.as_ref()?)));
    if let Some((store, metrics)) = measured
        && metrics.checkpoint.blocking_seconds.count > 0
    {
        let when = store.measured_unix_ns;
        let when = when.map(|then| format!(" (measured {} ago)", age(then, now_unix_ns)));
        facts.push(format!(
            " blocks {} (median), {} of the data change; {}, {} failed{}",
            brief(metrics.checkpoint.blocking_seconds.p50),
            percent(metrics.changed_share),
            counted(metrics.checkpoints, "checkpoint"),
            metrics.checkpoints_failed,
            when.unwrap_or_default()
        ));
    }
    let Some(drain) = &job.archive else {
        facts.push(" no archive is configured".to_owned());
        return facts;
    };
    if job.ids.draining.is_some() {
        let limit = drain
            .rate_limit_bytes
            .map(|limit| format!(", limited to {}/s", human_bytes(limit)));
        facts.push(format!(
            " drains {} of {} since {}{}{}",
            human_bytes(drain.bytes_encoded.unwrap_or(0)),
            human_bytes(drain.bytes_changed.unwrap_or(0)),
            human_age(drain.draining_seconds.unwrap_or(0.0)),
            drain
                .bytes_per_second
                .map_or_else(String::new, |r| format!(", {}", rate(r))),
            limit.unwrap_or_default()
        ));
    }
    if course.rates.iter().any(|&rate| rate > 0) {
        facts.push(format!(" {}", steps(course, 60)));
    }
    facts.extend(last_drain(drain).map(|last| format!(" last drain {last}")));
    facts
}

/// The rates of the last looks, as heights.
fn steps(course: &JobCourse, most: usize) -> String {
    let rates = course.rates.iter().rev().take(most).rev();
    let top = rates.clone().copied().max().unwrap_or(0).max(1);
    let height = |rate: &u64| match cells(share(*rate, top), STEPS.len()) {
        0 => ' ',
        step => STEPS[step - 1],
    };
    let drawn: String = rates.map(height).collect();
    format!("rate {} up to {}/s", drawn.trim_start(), human_bytes(top))
}

fn of_archive(archive: &ArchiveView, now_unix_ns: u64, width: usize) -> Vec<Line<'static>> {
    let when = archive.archived_unix_ns;
    let when = when.map(|then| format!(", archived {} ago", age(then, now_unix_ns)));
    let servers = match archive.servers.len() {
        0 => String::new(),
        count => format!("; {}", counted(count, "staging server")),
    };
    let text = format!(
        " newest {}{}; {}, {} stored{servers}; {}",
        named(archive.newest_id),
        when.unwrap_or_default(),
        counted(archive.checkpoints, "checkpoint"),
        human_bytes(archive.bytes_stored),
        archive.folder
    );
    folded(&text, Some(width), 1)
        .into_iter()
        .map(Line::from)
        .collect()
}

/// What happened, newest first; above it what cannot be looked at.
fn timeline(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, course: &Course, theme: Theme) {
    if area.height < 3 {
        return;
    }
    let width = usize::from(area.width.saturating_sub(2));
    let has_several = snapshot.jobs.len() > 1;
    let mut lines: Vec<Line<'static>> = Vec::new();
    for text in snapshot.unreadable() {
        let folded = folded(text, Some(width), 2).into_iter();
        lines.extend(folded.map(|text| Line::from(text).style(theme.bad())));
    }
    for event in course.events.iter().rev() {
        let clock = utc(event.at_unix_ns);
        // Of 2026-11-25T16:20:31Z.
        let clock = clock.get(11..19).unwrap_or(&clock);
        let job = if has_several {
            format!("{}: ", event.job)
        } else {
            String::new()
        };
        let text = format!("{clock}  {job}{}", event.text);
        let style = if event.is_bad {
            theme.bad()
        } else {
            Style::new()
        };
        let folded = folded(&text, Some(width), 10).into_iter();
        lines.extend(folded.map(|text| Line::from(text).style(style)));
    }
    if lines.is_empty() {
        lines.push(Line::from("nothing happened since you watch"));
    }
    let block = Block::bordered().title(" timeline (UTC) ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::super::look::sample;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// The picture of two looks, a second apart.
    fn drawn(
        columns: u16,
        rows: u16,
        snapshot: &Snapshot,
        has_colours: bool,
    ) -> Terminal<TestBackend> {
        let mut course = Course::default();
        let mut before = sample();
        before.taken_unix_ns -= 1_000_000_000;
        before.jobs[0].ids.node = Some(CheckpointId::new(2, 41));
        before.jobs[0].ids.archive = Some(CheckpointId::new(2, 37));
        course.take(None, &before);
        course.take(Some(&before), snapshot);
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        let theme = Theme { has_colours };
        terminal
            .draw(|frame| draw(frame, snapshot, &course, theme))
            .unwrap();
        terminal
    }

    #[test]
    fn a_job_that_drains_at_80_columns() {
        insta::assert_snapshot!(drawn(80, 22, &sample(), false).backend());
    }

    #[test]
    fn a_job_that_drains_at_120_columns() {
        insta::assert_snapshot!(drawn(120, 22, &sample(), false).backend());
    }

    #[test]
    fn a_narrow_and_low_terminal_is_not_drawn_beyond() {
        for (columns, rows) in [(40, 10), (20, 3), (1, 1), (80, 5), (109, 1), (200, 60)] {
            let terminal = drawn(columns, rows, &sample(), true);
            assert_eq!(terminal.size().unwrap(), (columns, rows).into());
        }
        let mut several = sample();
        for name in ["one", "two", "three"] {
            let mut job = sample().jobs.remove(0);
            name.clone_into(&mut job.job);
            several.jobs.push(job);
        }
        let text = drawn(80, 24, &several, false).backend().to_string();
        assert!(
            text.contains("more, for which this terminal is too low"),
            "{text}"
        );
    }

    #[test]
    fn without_colours_there_are_none_and_the_text_is_the_same() {
        let (plain, coloured) = (
            drawn(80, 22, &sample(), false),
            drawn(80, 22, &sample(), true),
        );
        let colours = |terminal: &Terminal<TestBackend>| {
            let cells = terminal.backend().buffer().content.iter();
            cells.filter(|cell| cell.fg != Color::Reset).count()
        };
        assert_eq!(colours(&plain), 0);
        assert!(colours(&coloured) > 20);
        assert_eq!(plain.backend().to_string(), coloured.backend().to_string());
    }

    #[test]
    fn bars_are_as_long_as_what_a_level_has() {
        assert_eq!(
            (cells(0.0, 20), cells(0.5, 20), cells(2.0, 20)),
            (0, 10, 20)
        );
        assert_eq!(cells(f64::NAN, 20), 0);
    }
}
