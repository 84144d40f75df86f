// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay timeline`: what happened to a job, as lines, JSON or a picture.
//!
//! Purpose: starts, checkpoints, levels and drains over one time.
//! In from: `metrics.json` and `archive.json` beside a store. Out to: standard output, an SVG file.
//! Invariants: a start that was not closed ends where it was last heard of; nothing is drawn that was not written down.

use crate::output::{Failure, draw, human_bytes, print_json, result, results};
use crate::select::Places;
use crate::view::utc;
use backstay::ErrorKind;
use backstay_archive::drain::PastDrain;
use backstay_inspect::{StoreGlance, glance_stores};
use backstay_metrics::{Event, What};
use backstay_picture::{Axis, Heading, Key, Lane, Lanes, Marker, Scale, Swatch};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shows what happened to a job: starts, restores, checkpoints and what protects them, drains; the last 256 events and
/// the last 64 drains, as the node wrote them down.
#[derive(Debug, clap::Args)]
pub(crate) struct TimelineArgs {
    #[command(flatten)]
    places: Places,
    /// Draw it.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct View {
    job: String,
    node: String,
    events: Vec<Event>,
    drains: Vec<PastDrain>,
    picture: Option<String>,
}

pub(crate) fn run(args: &TimelineArgs) -> ExitCode {
    match timeline(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn timeline(args: &TimelineArgs) -> Result<(), Failure> {
    let mut view = look(&args.places)?;
    if let Some(path) = &args.svg {
        draw(path, picture(&view).draw())?;
        view.picture = Some(path.display().to_string());
    }
    if args.json {
        print_json(&view);
    } else if let Some(picture) = &view.picture {
        result(&format!(
            "{picture}: job {} on node {}",
            view.job, view.node
        ));
    } else {
        results(&lines(&view));
    }
    Ok(())
}

/// What one node of the job wrote down: that of rank 0, where it is here, which knows of drains.
fn look(places: &Places) -> Result<View, Failure> {
    let found = places.find()?;
    let (stores, _) = glance_stores(&found.paths);
    let wanted = found.job.as_deref();
    let mut stores: Vec<StoreGlance> = stores
        .into_iter()
        .filter(|store| wanted.is_none_or(|job| job == store.job))
        .collect();
    let mut jobs: Vec<&str> = stores.iter().map(|store| &*store.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    if let [first, second, ..] = &*jobs {
        let message =
            format!("there are stores of several jobs ({first:?}, {second:?}); give --job");
        return Err(Failure::new(ErrorKind::InvalidArgument, message));
    }
    let known = |store: &StoreGlance| store.metrics.as_ref().map_or(0, |m| m.events.len());
    stores.sort_by_key(|store| (store.archive.is_some(), known(store)));
    let chosen = stores.pop().filter(|store| known(store) > 0);
    let Some(chosen) = chosen else {
        let message = "no store here has a metrics.json with events: a job writes it as it runs";
        return Err(Failure::named("nothing there", message));
    };
    Ok(View {
        job: chosen.job,
        node: chosen.node,
        events: chosen.metrics.map(|m| m.events).unwrap_or_default(),
        drains: chosen.archive.map(|a| a.history).unwrap_or_default(),
        picture: None,
    })
}

/// A line for each, in the order of time.
fn lines(view: &View) -> Vec<String> {
    let events = view
        .events
        .iter()
        .map(|event| (event.at_unix_ns, words(event)));
    let drains = view.drains.iter().map(|drain| {
        let seconds = seconds(drain.began_unix_ns, drain.ended_unix_ns);
        let number = drain.checkpoint.number;
        let text = if drain.failed {
            format!("checkpoint {number} did not get to the archive: its drain failed after {seconds:.1} s")
        } else {
            let stored = human_bytes(drain.stored);
            format!("checkpoint {number} in the archive, {seconds:.1} s, {stored} stored")
        };
        (drain.ended_unix_ns, text)
    });
    let mut all: Vec<(u64, String)> = events.chain(drains).collect();
    all.sort();
    let head = format!("job {}, as node {} wrote it down", view.job, view.node);
    let line = |(at, text): (u64, String)| format!("{}  {text}", utc(at));
    std::iter::once(head)
        .chain(all.into_iter().map(line))
        .collect()
}

fn words(event: &Event) -> String {
    let Event {
        number, seconds, ..
    } = event;
    match event.what {
        What::Start => "a start begins".to_owned(),
        What::Restore => format!("checkpoint {number} restored in {seconds:.2} s"),
        What::Checkpoint => format!("checkpoint {number}, blocked {:.0} ms", 1e3 * seconds),
        What::CheckpointFailed => "a checkpoint failed".to_owned(),
        What::Protected => format!("checkpoint {number} is protected"),
        What::Close => "closed cleanly".to_owned(),
        What::Finish => "finished".to_owned(),
        What::Other => "something that this version does not know".to_owned(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time for people to read")]
fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// From when to when, and a colour.
type Spans = Vec<(f64, f64, usize)>;
/// When, how it is marked, and a colour.
type Points = Vec<(f64, Marker, usize)>;

/// Numbers of colours.
const STARTS: usize = 4;
const NODE: usize = 0;
const PROTECTED: usize = 2;
const ARCHIVE: usize = 1;
const WRONG: usize = 3;

fn picture(view: &View) -> Lanes {
    let times = view.events.iter().map(|event| event.at_unix_ns);
    let drains = view.drains.iter();
    let first = times.clone().chain(drains.clone().map(|d| d.began_unix_ns));
    let first = first.min().unwrap_or(0);
    let last = times.chain(drains.map(|d| d.ended_unix_ns)).max();
    let long = seconds(first, last.unwrap_or(first)).max(1.0);
    let (unit, each) = match long {
        long if long < 180.0 => ("seconds", 1.0),
        long if long < 3.0 * 3600.0 => ("minutes", 60.0),
        long if long < 3.0 * 86400.0 => ("hours", 3600.0),
        _ => ("days", 86400.0),
    };
    let at = |unix_ns: u64| seconds(first, unix_ns) / each;
    let point = |what: What, marker: Marker, colour: usize| -> Points {
        let events = view.events.iter().filter(|event| event.what == what);
        events
            .map(|event| (at(event.at_unix_ns), marker, colour))
            .collect()
    };
    let lane = |name: &str, spans: Spans, points: Vec<Points>| Lane {
        name: name.to_owned(),
        spans,
        points: points.concat(),
    };
    let (starts, killed) = starts(&view.events, &at);
    let drained = view.drains.iter().filter(|drain| !drain.failed);
    let drained = drained.map(|d| (at(d.began_unix_ns), at(d.ended_unix_ns), ARCHIVE));
    let failed = view.drains.iter().filter(|drain| drain.failed);
    let failed = failed.map(|d| (at(d.ended_unix_ns), Marker::Cross, WRONG));
    let lanes = vec![
        lane(
            "starts",
            starts,
            vec![killed, point(What::Restore, Marker::Triangle, NODE)],
        ),
        lane(
            "checkpoints",
            Vec::new(),
            vec![
                point(What::Checkpoint, Marker::Dot, NODE),
                point(What::CheckpointFailed, Marker::Cross, WRONG),
            ],
        ),
        lane(
            "protected",
            Vec::new(),
            vec![point(What::Protected, Marker::Dot, PROTECTED)],
        ),
        lane("drains", drained.collect(), vec![failed.collect()]),
    ];
    Lanes {
        heading: heading(view, first),
        x: Axis::new(
            &format!("{unit} since then"),
            Scale::Linear,
            0.0,
            long / each,
        ),
        lanes,
    }
}

fn heading(view: &View, first: u64) -> Heading {
    let key = |text: &str, marker: Marker, colour: usize| Key {
        text: text.to_owned(),
        swatch: Swatch::Point(marker),
        colour: Some(colour),
    };
    Heading {
        title: format!("Job {}", view.job),
        source: format!("as node {} wrote it down, from {} on", view.node, utc(first)),
        key: vec![
            key("restored", Marker::Triangle, NODE),
            key("killed, or failed", Marker::Cross, WRONG),
        ],
        note: "A bar is a start, and a drain from its beginning to its end. That a checkpoint is protected is noted at \
               the next one."
            .to_owned(),
    }
}

/// From when to when starts ran, and where those ended that were not closed, as far as they were heard of.
fn starts(events: &[Event], at: &impl Fn(u64) -> f64) -> (Spans, Points) {
    let (mut spans, mut killed) = (Vec::new(), Vec::new());
    let begins = |event: &Event| event.what == What::Start;
    let runs: Vec<&[Event]> = events.chunk_by(|_, next| !begins(next)).collect();
    for (number, run) in runs.iter().enumerate() {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        spans.push((at(first.at_unix_ns), at(last.at_unix_ns), STARTS));
        let is_closed = matches!(last.what, What::Close | What::Finish);
        // The last one may run.
        if !is_closed && number + 1 < runs.len() {
            killed.push((at(last.at_unix_ns), Marker::Cross, WRONG));
        }
    }
    (spans, killed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(second: u64, what: What, number: u64) -> Event {
        Event {
            at_unix_ns: second * 1_000_000_000,
            what,
            number,
            ..Event::default()
        }
    }

    #[test]
    fn starts_end_where_they_were_last_heard_of() {
        let events = [
            event(10, What::Start, 0),
            event(20, What::Checkpoint, 1),
            event(40, What::Start, 0),
            event(41, What::Restore, 1),
            event(60, What::Finish, 0),
        ];
        let (spans, killed) = starts(&events, &|ns| seconds(10_000_000_000, ns));
        assert_eq!(spans, [(0.0, 10.0, STARTS), (30.0, 50.0, STARTS)]);
        assert_eq!(killed, [(10.0, Marker::Cross, WRONG)]);
    }
}
