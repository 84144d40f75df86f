// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: other compressors on the same variables, from their own libraries, by a script in Python.
//! In from: benchmarks/rivals. Out to: `variables`.

use backstay_bench::Outcome;
use backstay_bench::compression::report::Reached;
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

/// Decoded bytes a second on one core from which a compressor counts as fast, in 10^9.
pub(crate) const FAST_GB_S: f64 = 1.0;

/// What a compressor made of a variable.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rival {
    pub(crate) case: String,
    pub(crate) variable: String,
    pub(crate) bytes: u64,
    #[serde(flatten)]
    pub(crate) reached: Reached,
}

/// Runs the script over the checkpoints in `data`.
pub(crate) fn run(
    python: &Path,
    data: &Path,
    out: &Path,
    place: usize,
    quick: bool,
) -> Outcome<()> {
    let mut command = Command::new(python);
    command
        .args(["benchmarks/rivals/rivals.py"])
        .arg(data)
        .arg(out);
    command.args(["--place", &place.to_string()]);
    if quick {
        command.arg("--quick");
    }
    let status = command
        .status()
        .map_err(|error| format!("{}: {error}", python.display()))?;
    if status.success() {
        Ok(())
    } else {
        Err("rivals.py failed".into())
    }
}

/// What the script found.
pub(crate) fn read(path: &Path) -> Outcome<Vec<Rival>> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// The best of those that decode fast, and the best of all, for a variable of so many bytes.
pub(crate) fn best(
    rivals: &[Rival],
    case: &str,
    variable: &str,
    bytes: u64,
) -> [Option<Reached>; 2] {
    let mine =
        |rival: &&Rival| rival.case == case && rival.variable == variable && rival.bytes == bytes;
    let ratio = |one: &&Rival, other: &&Rival| one.reached.ratio.total_cmp(&other.reached.ratio);
    let found = |fast: bool| {
        let chosen = rivals.iter().filter(mine);
        let chosen = chosen.filter(|rival| !fast || rival.reached.decode_gb_s >= FAST_GB_S);
        chosen.max_by(ratio).map(|rival| rival.reached.clone())
    };
    [found(true), found(false)]
}
