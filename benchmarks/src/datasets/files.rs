// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checkpoints of a case in files: what programs in other languages read, and what saves
//! running it again.
//! In from: `datasets`. Out to: FOLDER/CASE/manifest.json and a file of bytes for each checkpoint.
//! Invariants: equal bytes of several ranks stand once; a manifest of other code is not read.

use super::{Case, State, Variable, When};
use crate::Outcome;
use backstay::{ElementType, VariableDescriptor};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use twox_hash::XxHash3_128;

/// What makes the bytes.
const SOURCES: [&str; 10] = [
    include_str!("mod.rs"),
    include_str!("number.rs"),
    include_str!("grid.rs"),
    include_str!("heat.rs"),
    include_str!("blast.rs"),
    include_str!("atoms.rs"),
    include_str!("flow.rs"),
    include_str!("mesh.rs"),
    include_str!("network.rs"),
    include_str!("plume.rs"),
];

/// All checkpoints of a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// Name of the case.
    pub case: String,
    /// Digest of the code, and of what it was asked for.
    pub code: String,
    /// In the order in which they were taken.
    pub checkpoints: Vec<Checkpoint>,
}

/// One checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Which of the course, from 0.
    pub place: usize,
    /// Whether it is the one close behind that.
    pub close: bool,
    /// Steps made before.
    pub step: u64,
    /// File of its bytes, in the folder of the manifest.
    pub file: String,
    /// Variables of each rank.
    pub ranks: Vec<Vec<Stored>>,
}

/// A variable of a rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub element: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
}

impl Checkpoint {
    /// When it was taken.
    pub fn when(&self) -> When {
        When {
            place: self.place,
            close: self.close,
            step: self.step,
        }
    }

    /// Its variables, from the folder of the manifest.
    pub fn read(&self, folder: &Path) -> Outcome<State> {
        let bytes = fs::read(folder.join(&self.file))?;
        let variable = |stored: &Stored| -> Outcome<Variable> {
            let start = usize::try_from(stored.offset)?;
            let end = start + usize::try_from(stored.length)?;
            let found = bytes.get(start..end);
            let mut elements = ElementType::ALL.into_iter();
            Ok(Variable {
                descriptor: VariableDescriptor {
                    name: stored.name.clone(),
                    element: elements
                        .find(|element| element.name() == stored.element)
                        .ok_or("no such element type")?,
                    shape: stored.shape.clone(),
                    slab: None,
                    file: None,
                },
                bytes: found.ok_or("the file is short")?.to_vec(),
            })
        };
        let rank = |variables: &Vec<Stored>| variables.iter().map(variable).collect();
        self.ranks.iter().map(rank).collect()
    }
}

/// The case's checkpoints in `folder`; runs the program if they are not there.
pub fn prepare(case: &Case, folder: &Path, quick: bool, ranks: usize) -> Outcome<Manifest> {
    let path = folder.join("manifest.json");
    let code = code(quick, ranks);
    if let Ok(text) = fs::read_to_string(&path) {
        let found: Manifest = serde_json::from_str(&text)?;
        if found.code == code && found.case == case.name {
            return Ok(found);
        }
    }
    fs::create_dir_all(folder)?;
    let mut manifest = Manifest {
        case: case.name.to_owned(),
        code,
        checkpoints: Vec::new(),
    };
    case.run(quick, ranks, |when, state| -> Outcome<()> {
        let suffix = if when.close { "-close" } else { "" };
        let file = format!("{}{suffix}.bin", when.place);
        let (bytes, ranks) = lay_out(&state);
        fs::write(folder.join(&file), bytes)?;
        manifest.checkpoints.push(Checkpoint {
            place: when.place,
            close: when.close,
            step: when.step,
            file,
            ranks,
        });
        Ok(())
    })?;
    fs::write(&path, serde_json::to_string(&manifest)? + "\n")?;
    Ok(manifest)
}

fn code(quick: bool, ranks: usize) -> String {
    let digest = XxHash3_128::oneshot(SOURCES.concat().as_bytes());
    format!("{digest:032x}, quick {quick}, {ranks} ranks")
}

fn lay_out(state: &State) -> (Vec<u8>, Vec<Vec<Stored>>) {
    let mut bytes: Vec<u8> = Vec::new();
    let mut known: HashMap<(u128, usize), usize> = HashMap::new();
    let mut store = |variable: &Variable| {
        let content = &variable.bytes;
        let key = (XxHash3_128::oneshot(content), content.len());
        let offset = *known.entry(key).or_insert_with(|| {
            let offset = bytes.len();
            bytes.extend_from_slice(content);
            offset
        });
        Stored {
            name: variable.descriptor.name.clone(),
            element: variable.descriptor.element.name().to_owned(),
            shape: variable.descriptor.shape.clone(),
            offset: offset as u64,
            length: content.len() as u64,
        }
    };
    let ranks = state
        .iter()
        .map(|variables| variables.iter().map(&mut store).collect())
        .collect();
    (bytes, ranks)
}
