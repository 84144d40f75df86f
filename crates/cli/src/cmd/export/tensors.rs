// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay export --safetensors`: the arrays of a checkpoint as tensors. What a program with `torch` said of its
//! tensors is followed: names, types, the order of dimensions.

use super::{ArrayView, ExportArgs, Exported, Piece, array_pieces, variables_of};
use crate::interrupt;
use crate::output::{Failure, counted, human_bytes, print_json, progress, result};
use crate::safetensors::{Content, Tensor, shape_of, type_of, type_of_torch, write};
use crate::select;
use crate::torch::{self, Told};
use crate::view::{CheckpointView, short};
use backstay::{ElementType, ErrorKind};
use backstay_inspect::{Array, Checkpoint, StoredVariable, Stores};
use std::collections::BTreeSet;

/// More bytes than this has no tree that says what tensors there are.
const TREE_BYTES_MAX: u64 = 1 << 30;

pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let stores = args.places.open()?;
    let checkpoint = select::choose(&stores, args.checkpoint)?;
    let variables = variables_of(args, &stores, &checkpoint)?;
    let mut told = told(&stores, &checkpoint, &variables)?;
    let mut pieces = array_pieces(args, &stores, &checkpoint, &variables)?;
    if args.variable.is_none() {
        pieces.retain(|Piece { variable, .. }| {
            !variable.name.starts_with(torch::OURS) && !told.objects.contains(&variable.name)
        });
    }
    let mut tensors = Vec::with_capacity(pieces.len());
    let mut views = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let name = name_of(&piece);
        let (variable, rank, parts) = (piece.variable, piece.rank, piece.variable.parts.len());
        let element = piece.array.element().name();
        let tensor = tensor_of(piece, name, &told)?;
        let ranks = if rank.is_some() { 1 } else { parts };
        views.push(view(&tensor, &variable.name, (element, rank, ranks)));
        tensors.push(tensor);
    }
    if args.variable.is_none() {
        for (name, small) in std::mem::take(&mut told.values) {
            let tensor = small_tensor(name, small)?;
            views.push(view(&tensor, torch::SHELF, ("bytes", Some(0), 1)));
            tensors.push(tensor);
        }
    }
    sort(&mut tensors, &mut views)?;
    interrupt::watch()?;
    let total = tensors
        .iter()
        .map(|tensor| tensor.content.length_bytes())
        .sum();
    let bar = progress("exporting", total, true);
    write(&args.output, &tensors, &mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    report(args, &stores, &checkpoint, views, total);
    Ok(())
}

/// What the program said of its tensors, if it is one with `torch`.
fn told(
    stores: &Stores,
    checkpoint: &Checkpoint,
    variables: &[StoredVariable],
) -> Result<Told, Failure> {
    type Read = fn(&[u8]) -> Option<Told>;
    let trees: [(&str, Read); 3] = [
        (torch::CHECKPOINTER, torch::of_checkpointer),
        (torch::SHELF, torch::of_shelf),
        (torch::WRITER, torch::of_writer),
    ];
    let mut all = Told::default();
    for (name, read) in trees {
        let Some(variable) = variables.iter().find(|variable| variable.name == name) else {
            continue;
        };
        for part in &variable.parts {
            let array = Array::of_part(stores, checkpoint.id, part);
            let mut bytes = Vec::new();
            if array.length_bytes() <= TREE_BYTES_MAX {
                array.read(&mut |piece| {
                    bytes.extend_from_slice(piece);
                    Ok(())
                })?;
            }
            let told = read(&bytes).ok_or_else(|| {
                let message = format!(
                    "{name:?} is not as this version of backstay.torch writes it: export with --variable, \
                     or as .npz"
                );
                Failure::new(ErrorKind::VariableMismatch, message)
            })?;
            all = all.and(told);
        }
    }
    Ok(all)
}

/// The variable's; with the rank where several ranks have one.
fn name_of(piece: &Piece<'_>) -> String {
    match piece.rank {
        Some(rank) if piece.variable.parts.len() > 1 => {
            format!("{}.rank{rank}", piece.variable.name)
        }
        _ => piece.variable.name.clone(),
    }
}

fn tensor_of<'a>(piece: Piece<'a>, name: String, told: &Told) -> Result<Tensor<'a>, Failure> {
    let variable = &*piece.variable.name;
    let element = piece.array.element();
    let wrong = |what: String| {
        let message = format!("{variable:?} {what}");
        Failure::new(ErrorKind::VariableMismatch, message)
    };
    let r#type = match told.types.get(variable) {
        None => type_of(element),
        Some(torch) => match type_of_torch(torch) {
            Some((_, width)) if width != element.width_bytes() => {
                return Err(wrong(format!(
                    "is told to be {torch}, and stored as {}",
                    element.name()
                )));
            }
            found => found.map(|(name, _)| name),
        },
    };
    let r#type = r#type.ok_or_else(|| {
        let kind = told.types.get(variable).map_or(element.name(), |name| &**name);
        wrong(format!("is {kind}, which safetensors has no type for: export others with --variable, or all as .npz"))
    })?;
    let order = told.orders.get(variable);
    let stored = stored_shape(&piece.array, told.types.contains_key(variable), order);
    let identity: Vec<usize> = (0..stored.len()).collect();
    let order = order.unwrap_or(&identity);
    let shape = shape_of(stored, order).ok_or_else(|| {
        let dimensions = stored.len();
        wrong(format!(
            "has {dimensions} dimensions, and its order is said to be {order:?}"
        ))
    })?;
    let content = if order.is_sorted() {
        Content::Array(piece.array)
    } else {
        Content::Permuted(piece.array, order.clone())
    };
    Ok(Tensor {
        name,
        r#type,
        shape,
        content,
    })
}

/// The tensor's dimensions as they are stored: elements that Backstay has no type for are bytes, which have one more.
fn stored_shape<'a>(array: &'a Array<'_>, is_told: bool, order: Option<&Vec<usize>>) -> &'a [u64] {
    let shape = array.shape();
    match shape.split_last() {
        Some((&1, tensor))
            if array.element() == ElementType::Bytes
                && order.map_or(is_told, |order| order.len() == tensor.len()) =>
        {
            tensor
        }
        _ => shape,
    }
}

fn small_tensor(name: String, small: torch::Small) -> Result<Tensor<'static>, Failure> {
    let elements = small
        .shape
        .iter()
        .try_fold(1_u64, |all, &extent| all.checked_mul(extent));
    let found = type_of_torch(&small.r#type);
    let (r#type, width) = found.ok_or_else(|| {
        let message = format!(
            "{name:?} is {}, which safetensors has no type for",
            small.r#type
        );
        Failure::new(ErrorKind::VariableMismatch, message)
    })?;
    let content = Content::Bytes(small.bytes);
    if elements.and_then(|count| count.checked_mul(width)) != Some(content.length_bytes()) {
        let message = format!(
            "{name:?} has {} bytes, and is told to be {} of {:?}",
            content.length_bytes(),
            small.r#type,
            small.shape
        );
        return Err(Failure::new(ErrorKind::Corrupt, message));
    }
    Ok(Tensor {
        name,
        r#type,
        shape: small.shape,
        content,
    })
}

/// In the order of their names, which have to differ.
fn sort(tensors: &mut [Tensor<'_>], views: &mut [ArrayView]) -> Result<(), Failure> {
    tensors.sort_by(|one, other| one.name.cmp(&other.name));
    views.sort_by(|one, other| one.name.cmp(&other.name));
    let mut seen = BTreeSet::new();
    for tensor in &*tensors {
        if !seen.insert(&*tensor.name) {
            let message = format!("two tensors would be named {:?}", tensor.name);
            return Err(Failure::new(ErrorKind::VariableMismatch, message));
        }
    }
    Ok(())
}

fn view(
    tensor: &Tensor<'_>,
    variable: &str,
    (element, rank, ranks): (&'static str, Option<u32>, usize),
) -> ArrayView {
    ArrayView {
        name: tensor.name.clone(),
        variable: variable.to_owned(),
        r#type: element,
        dtype: tensor.r#type,
        shape: tensor.shape.clone(),
        bytes: tensor.content.length_bytes(),
        rank,
        ranks,
    }
}

fn report(
    args: &ExportArgs,
    stores: &Stores,
    checkpoint: &Checkpoint,
    views: Vec<ArrayView>,
    total: u64,
) {
    let path = args.output.display();
    if !args.json {
        let (id, count) = (short(checkpoint.id), counted(views.len(), "tensor"));
        result(&format!(
            "{path}: checkpoint {id}, {count}, {}",
            human_bytes(total)
        ));
        return;
    }
    print_json(&Exported {
        file: path.to_string(),
        checkpoint: CheckpointView::new(stores, checkpoint),
        arrays: views,
        notes: Vec::new(),
    });
}
