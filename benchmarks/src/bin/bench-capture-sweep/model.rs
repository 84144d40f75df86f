// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: when a differential checkpoint pays: the model of the paper beside what was measured.
//!
//! With `t_h` the time to hash a block and `t_w` the time in which all ranks together write one, `N`
//! blocks of which the share `n` changed cost `N (t_h + n t_w)`, and `N t_w` when written plainly. The
//! paper hashes changed blocks twice, `N (t_h (1 + n) + n t_w)`, so that its threshold is
//! `(1 - theta) / (1 + theta)` with `theta = t_h / t_w`; ours keeps the new hashes until the commit,
//! and its threshold is `1 - theta`.

use crate::{BLOCK_KIB, PERCENTS, ratios, value};
use backstay_bench::figures::{Better, Figure, Figures, columns, median, short};
use backstay_bench::ranks::Samples;
use backstay_bench::size_f64;

/// The model and the measurements for all block sizes of one storage.
pub(crate) fn show(storage: &str, samples: &Samples, figures: &mut Figures) -> String {
    let head = [
        "block",
        "t_h us",
        "t_w us",
        "theta",
        "pays below %",
        "hashed twice %",
        "measured %",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for kib in BLOCK_KIB {
        let setting = format!("sweep.{storage}.{kib}k.t1");
        let thetas = ratios(
            samples,
            &format!("{setting}.s0.wall"),
            &format!("{setting}.write.wall"),
        );
        let theta = median(&thetas).unwrap_or(f64::NAN);
        let blocks = blocks(samples, &setting, kib);
        let threshold = crossing(samples, &setting);
        let percent = |share: f64| short((share * 100.0).clamp(0.0, 100.0));
        rows.push(vec![
            format!("{kib} KiB"),
            short(value(samples, &format!("{setting}.s0.wall")) / blocks * 1e6),
            short(value(samples, &format!("{setting}.write.wall")) / blocks * 1e6),
            short(theta),
            percent(1.0 - theta),
            percent((1.0 - theta) / (1.0 + theta)),
            threshold.map_or_else(|| "always".to_owned(), percent),
        ]);
        let what = format!("{storage}, {kib} KiB: theta");
        let id = format!("{setting}.theta");
        figures.push(Figure::shown(id, what, "ratio", Better::Lower, &thetas));
        let what = format!("{storage}, {kib} KiB: share written below which it pays");
        let measured = [threshold.unwrap_or(1.0)];
        let id = format!("{setting}.threshold");
        figures.push(Figure::shown(id, what, "ratio", Better::Higher, &measured));
    }
    let curve = curve(samples, &format!("sweep.{storage}.16k.t1"));
    format!(
        "\nWhen a differential checkpoint pays on {storage}, against pwrite of all bytes and \
         fdatasync:\n\n{}\nAt 16 KiB a block, wall over that of the plain write:\n\n{curve}",
        columns(&rows)
    )
}

/// Blocks of a rank, from the bytes a rank holds: what is written plainly is all of them.
fn blocks(samples: &Samples, setting: &str, kib: usize) -> f64 {
    value(samples, &format!("{setting}.mib")) * 1024.0 / size_f64(kib)
}

/// Measured share written, and wall over that of the plain write, for each share that changed.
fn points(samples: &Samples, setting: &str) -> Vec<(f64, f64)> {
    let point = |percent: f64| {
        let id = |quantity: &str| format!("{setting}.s{percent}.{quantity}");
        let walls = ratios(samples, &id("wall"), &format!("{setting}.write.wall"));
        (
            value(samples, &id("written")),
            median(&walls).unwrap_or(f64::NAN),
        )
    };
    PERCENTS.map(point).to_vec()
}

/// The share of blocks written at which a checkpoint costs what the plain write costs; `None` where
/// it never does.
fn crossing(samples: &Samples, setting: &str) -> Option<f64> {
    let points = points(samples, setting);
    let first = points.first().filter(|(_, cost)| *cost >= 1.0);
    if first.is_some() {
        return Some(0.0);
    }
    points.windows(2).find_map(|pair| {
        let [(from, below), (to, above)] = [pair[0], pair[1]];
        (below < 1.0 && above >= 1.0).then(|| from + (to - from) * (1.0 - below) / (above - below))
    })
}

/// Measured against predicted cost for each share.
fn curve(samples: &Samples, setting: &str) -> String {
    let head = ["changed %", "blocks written %", "measured", "theta + n"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let points = points(samples, setting);
    let theta = points.first().map_or(f64::NAN, |(_, cost)| *cost);
    for (percent, (written, cost)) in PERCENTS.iter().zip(points) {
        rows.push(vec![
            short(*percent),
            short(written * 100.0),
            short(cost),
            short(theta + written),
        ]);
    }
    columns(&rows)
}
