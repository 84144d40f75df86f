// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the programs whose checkpoints compression is measured with, and keeps these in files:
//! FOLDER/CASE/manifest.json says what stands where. `--path` names the folder.

use backstay_bench::datasets::{CASES, files};
use backstay_bench::figures::{columns, say};
use backstay_bench::options::Options;
use backstay_bench::{MIB, Outcome, size_f64};
use std::time::Instant;

const RANKS: usize = 32;

fn main() -> Outcome<()> {
    let options = Options::from_arguments()?;
    let mut rows = vec![
        ["case", "seconds", "MiB a checkpoint", "steps"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for case in CASES {
        let start = Instant::now();
        let folder = options.path.join(case.name);
        let manifest = files::prepare(&case, &folder, options.quick, RANKS)?;
        let seconds = start.elapsed().as_secs_f64();
        let sizes = manifest.checkpoints.iter().map(|checkpoint| {
            let all = checkpoint.ranks.iter().flatten();
            all.map(|stored| stored.length).sum::<u64>()
        });
        let most = sizes.max().and_then(|bytes| usize::try_from(bytes).ok());
        let steps = manifest.checkpoints.iter().map(|c| c.step.to_string());
        rows.push(vec![
            case.name.to_owned(),
            format!("{seconds:.1}"),
            format!("{:.1}", size_f64(most.unwrap_or(0)) / size_f64(MIB)),
            steps.collect::<Vec<_>>().join(" "),
        ]);
    }
    say(&columns(&rows));
    Ok(())
}
