// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay export`: a variable as .npy, a checkpoint as .npz or .safetensors, its files as files.

mod parts;
mod tensors;

use crate::output::{Failure, complain, counted, human_bytes, print_json, progress, result};
use crate::select::{self, Places};
use crate::view::{CheckpointView, short};
use crate::{interrupt, npy};
use backstay::{ElementType, ErrorKind};
use backstay_base::io::parts::split_part;
use backstay_format::StoredFile;
use backstay_inspect::{Array, Checkpoint, StoredPart, StoredVariable, Stores, Wanted, file_name};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes a variable, or a whole checkpoint, to a file that numpy or safetensors reads; or its files to a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    places: Places,
    /// Which checkpoint: its number, or NUMBER.INCARNATION as `ls` shows it. By default the newest
    /// complete one.
    #[arg(long, short, value_name = "N[.I]", value_parser = select::parse_checkpoint)]
    checkpoint: Option<Wanted>,
    /// Only this variable.
    #[arg(long, short)]
    variable: Option<String>,
    /// Only this rank's part, as it is.
    #[arg(long, short)]
    rank: Option<u32>,
    /// The file to write: NAME.npy for one array, NAME.npz or NAME.safetensors for several; with --files a
    /// folder.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Write the files of the checkpoint, protected and routed ones, under their names. Arrays are left out;
    /// without this files are.
    #[arg(long)]
    files: bool,
    /// Write a file of safetensors, also where the name of the file does not end so: weights, to be shared.
    #[arg(long, conflicts_with = "files")]
    safetensors: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Exported {
    file: String,
    checkpoint: CheckpointView,
    arrays: Vec<ArrayView>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ArrayView {
    name: String,
    variable: String,
    r#type: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    rank: Option<u32>,
    ranks: usize,
}

/// An array to be written, and whose it is.
struct Piece<'a> {
    variable: &'a StoredVariable,
    /// The rank, where it is not a global array.
    rank: Option<u32>,
    array: Array<'a>,
}

pub(crate) fn run(args: &ExportArgs) -> ExitCode {
    match export(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    if args.files {
        return export_files(args);
    }
    let extension = args
        .output
        .extension()
        .and_then(|extension| extension.to_str());
    if args.safetensors || extension == Some("safetensors") {
        return tensors::export(args);
    }
    let single = match extension {
        Some("npy") if args.variable.is_none() => {
            let message = "a .npy file holds one array: give --variable, or -o FILE.npz";
            return Err(Failure::usage(message));
        }
        Some("npy") => true,
        Some("npz") => false,
        _ => {
            let path = args.output.display();
            let message = format!("-o {path}: the name ends in none of .npy, .npz, .safetensors");
            return Err(Failure::usage(message));
        }
    };
    let stores = args.places.open()?;
    let checkpoint = select::choose(&stores, args.checkpoint)?;
    let variables = variables_of(args, &stores, &checkpoint)?;
    let pieces = array_pieces(args, &stores, &checkpoint, &variables)?;
    interrupt::watch()?;
    let total = pieces.iter().map(|piece| piece.array.length_bytes()).sum();
    let bar = progress("exporting", total, true);
    let mut advance = |bytes| bar.inc(bytes);
    let names = if single {
        let [piece] = &*pieces else {
            return Err(several(&pieces));
        };
        npy::write_npy(&args.output, &piece.array, &mut advance)?;
        vec![piece.variable.name.clone()]
    } else {
        let names = names(&pieces)?;
        let named = names
            .iter()
            .cloned()
            .zip(pieces.iter().map(|piece| piece.array.clone()));
        npy::write_npz(&args.output, &named.collect::<Vec<_>>(), &mut advance)?;
        names
    };
    bar.finish_and_clear();
    report(args, &stores, &checkpoint, &pieces, names);
    Ok(())
}

fn variables_of(
    args: &ExportArgs,
    stores: &Stores,
    checkpoint: &Checkpoint,
) -> Result<Vec<StoredVariable>, Failure> {
    if args.rank.is_none() && !checkpoint.is_complete() {
        return Err(select::incomplete(checkpoint));
    }
    Ok(stores.variables(checkpoint, args.rank, &mut |_| {})?)
}

/// The arrays that are asked for; files are none.
fn array_pieces<'a>(
    args: &ExportArgs,
    stores: &'a Stores,
    checkpoint: &Checkpoint,
    variables: &'a [StoredVariable],
) -> Result<Vec<Piece<'a>>, Failure> {
    let mut wanted = chosen(args, checkpoint, variables)?;
    let is_file = |variable: &&StoredVariable| {
        let mut parts = variable.parts.iter();
        parts.any(|part| part.descriptor.file.is_some())
    };
    if args.variable.is_some() && wanted.iter().any(is_file) {
        let message = "that is a file: give --files, and a folder with -o";
        return Err(Failure::usage(message));
    }
    wanted.retain(|variable| !is_file(variable));
    let mut pieces = Vec::new();
    for variable in wanted {
        pieces_of(args, stores, checkpoint, variable, &mut pieces)?;
    }
    Ok(pieces)
}

/// A file to be written, and under which name.
struct FilePiece<'a> {
    name: PathBuf,
    part: &'a StoredPart,
    file: &'a StoredFile,
}

#[derive(Debug, Serialize)]
struct ExportedFiles {
    folder: String,
    checkpoint: CheckpointView,
    files: Vec<FileView>,
}

#[derive(Debug, Serialize)]
struct FileView {
    name: String,
    variable: String,
    rank: u32,
    bytes: u64,
}

fn export_files(args: &ExportArgs) -> Result<(), Failure> {
    let stores = args.places.open()?;
    let checkpoint = select::choose(&stores, args.checkpoint)?;
    let variables = variables_of(args, &stores, &checkpoint)?;
    let parts = variables.iter().flat_map(|variable| &variable.parts);
    let pieces = file_pieces(args, parts);
    if pieces.is_empty() {
        let id = short(checkpoint.id);
        let message = format!("checkpoint {id} has no such files");
        return Err(Failure::new(ErrorKind::VariableMismatch, message));
    }
    interrupt::watch()?;
    let total = pieces
        .iter()
        .map(|piece| piece.part.stream.length_bytes)
        .sum();
    let bar = progress("exporting", total, true);
    for FilePiece { name, part, file } in &pieces {
        let to = (&*args.output, &**name);
        stores.write_file(checkpoint.id, (part, file), to, &mut |bytes| bar.inc(bytes))?;
    }
    let joined = joined(args, &pieces)?;
    bar.finish_and_clear();
    let folder = args.output.display().to_string();
    if args.json {
        let view = |piece: &FilePiece<'_>| FileView {
            name: match whole_of(&piece.name) {
                Some(whole) if joined.contains(&args.output.join(whole)) => whole.display(),
                _ => piece.name.display(),
            }
            .to_string(),
            variable: piece.part.descriptor.name.clone(),
            rank: piece.part.rank,
            bytes: piece.file.length_bytes,
        };
        print_json(&ExportedFiles {
            folder,
            checkpoint: CheckpointView::new(&stores, &checkpoint),
            files: pieces.iter().map(view).collect(),
        });
        return Ok(());
    }
    let is_joined = |piece: &&FilePiece<'_>| {
        let whole = whole_of(&piece.name).map(|whole| args.output.join(whole));
        whole.is_some_and(|whole| joined.contains(&whole))
    };
    let count = pieces.iter().filter(|piece| !is_joined(piece)).count() + joined.len();
    let (id, count) = (short(checkpoint.id), counted(count, "file"));
    result(&format!(
        "{folder}: checkpoint {id}, {count}, {}",
        human_bytes(total)
    ));
    Ok(())
}

/// The name of the file that this is the name of a part of.
fn whole_of(name: &Path) -> Option<&Path> {
    let (whole, _) = split_part(name.as_os_str().as_bytes())?;
    Some(Path::new(OsStr::from_bytes(whole)))
}

/// Files that were put together of their parts: not where only one rank's were asked for, or one part by its name.
fn joined(args: &ExportArgs, pieces: &[FilePiece<'_>]) -> Result<Vec<PathBuf>, Failure> {
    let is_asked = |wanted: &String| {
        let mut wholes = pieces.iter().map(|piece| whole_of(&piece.name));
        wholes.all(|whole| whole == Some(Path::new(wanted)))
    };
    if args.rank.is_some() || !args.variable.as_ref().is_none_or(is_asked) {
        return Ok(Vec::new());
    }
    let exported = pieces.iter();
    let exported = exported.map(|piece| (args.output.join(&piece.name), piece.file));
    parts::join(&exported.collect::<Vec<_>>())
}

/// The files of these parts under their names; where ranks have one of the same name, with their rank.
fn file_pieces<'a>(
    args: &ExportArgs,
    parts: impl Iterator<Item = &'a StoredPart>,
) -> Vec<FilePiece<'a>> {
    let mut pieces = Vec::new();
    let mut count: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for part in parts {
        let (Some(name), Some(file)) = (file_name(part), part.descriptor.file.as_ref()) else {
            continue;
        };
        let is_it = |wanted: &String| {
            let path = Path::new(wanted);
            *wanted == part.descriptor.name || path == name || whole_of(&name) == Some(path)
        };
        if args.variable.as_ref().is_none_or(is_it) {
            *count.entry(name.clone()).or_default() += 1;
            pieces.push(FilePiece { name, part, file });
        }
    }
    for piece in &mut pieces {
        if count.get(&piece.name).is_some_and(|&count| count > 1) {
            piece
                .name
                .as_mut_os_string()
                .push(format!(".rank{}", piece.part.rank));
        }
    }
    pieces
}

fn chosen<'a>(
    args: &ExportArgs,
    checkpoint: &Checkpoint,
    variables: &'a [StoredVariable],
) -> Result<Vec<&'a StoredVariable>, Failure> {
    let Some(name) = &args.variable else {
        return Ok(variables.iter().collect());
    };
    let found = variables.iter().find(|variable| variable.name == *name);
    found.map(|variable| vec![variable]).ok_or_else(|| {
        let names: Vec<&str> = variables.iter().map(|v| &*v.name).take(32).collect();
        let id = short(checkpoint.id);
        let message = format!("checkpoint {id} has no variable {name:?}; it has {names:?}");
        Failure::new(ErrorKind::VariableMismatch, message)
    })
}

/// A global array whole; else each rank's part by itself.
fn pieces_of<'a>(
    args: &ExportArgs,
    stores: &'a Stores,
    checkpoint: &Checkpoint,
    variable: &'a StoredVariable,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(), Failure> {
    let slabs = variable
        .parts
        .iter()
        .filter(|part| part.descriptor.slab.is_some())
        .count();
    if args.rank.is_none() && slabs == variable.parts.len() {
        let array = Array::of_slabs(stores, checkpoint.id, variable).map_err(|error| {
            let advice = "--rank R exports one rank's part as it is";
            Failure::new(error.kind(), format!("{error}; {advice}"))
        })?;
        pieces.push(Piece {
            variable,
            rank: None,
            array,
        });
        return Ok(());
    }
    for part in &variable.parts {
        let array = Array::of_part(stores, checkpoint.id, part);
        pieces.push(Piece {
            variable,
            rank: Some(part.rank),
            array,
        });
    }
    Ok(())
}

fn several(pieces: &[Piece<'_>]) -> Failure {
    let ranks: Vec<u32> = pieces
        .iter()
        .filter_map(|piece| piece.rank)
        .take(16)
        .collect();
    let message = format!(
        "the variable is not declared as slabs of a global array, ranks {ranks:?} have one each: give \
         --rank, or -o FILE.npz for all of them"
    );
    Failure::usage(message)
}

/// What the arrays are called in a .npz file.
fn names(pieces: &[Piece<'_>]) -> Result<Vec<String>, Failure> {
    let mut names = Vec::with_capacity(pieces.len());
    let mut seen = BTreeSet::new();
    for piece in pieces {
        let name = match piece.rank {
            Some(rank) => format!("{}.rank{rank}", piece.variable.name),
            None => piece.variable.name.clone(),
        };
        if !seen.insert(name.clone()) {
            let message = format!("two arrays would be named {name:?}: export them one by one");
            return Err(Failure::new(ErrorKind::VariableMismatch, message));
        }
        names.push(name);
    }
    Ok(names)
}

fn report(
    args: &ExportArgs,
    stores: &Stores,
    checkpoint: &Checkpoint,
    pieces: &[Piece<'_>],
    names: Vec<String>,
) {
    let is_bf16 = |piece: &&Piece<'_>| piece.array.element() == ElementType::Bf16;
    let bf16: BTreeSet<&str> = pieces
        .iter()
        .filter(is_bf16)
        .map(|p| &*p.variable.name)
        .collect();
    let say = |name: &str| {
        format!("{name:?} is bfloat16, which numpy does not have: written as uint16, bit for bit")
    };
    let notes: Vec<String> = bf16.into_iter().map(say).collect();
    for text in &notes {
        complain(text);
    }
    let total = pieces.iter().map(|piece| piece.array.length_bytes()).sum();
    let (path, count) = (args.output.display(), names.len());
    if !args.json {
        let id = short(checkpoint.id);
        result(&format!(
            "{path}: checkpoint {id}, {}, {}",
            counted(count, "array"),
            human_bytes(total)
        ));
        return;
    }
    let view = |(piece, name): (&Piece<'_>, String)| ArrayView {
        name,
        variable: piece.variable.name.clone(),
        r#type: piece.array.element().name(),
        dtype: npy::dtype(piece.array.element()),
        shape: piece.array.shape().to_vec(),
        bytes: piece.array.length_bytes(),
        rank: piece.rank,
        ranks: if piece.rank.is_some() {
            1
        } else {
            piece.variable.parts.len()
        },
    };
    print_json(&Exported {
        file: path.to_string(),
        checkpoint: CheckpointView::new(stores, checkpoint),
        arrays: pieces.iter().zip(names).map(view).collect(),
        notes,
    });
}
