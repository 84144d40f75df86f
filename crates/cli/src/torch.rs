// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a program with `torch` said of the tensors in its checkpoint.
//! In: the trees that `backstay.torch` stores beside them. Out: types, dimensions in memory's order, small tensors.
//! Invariants: nothing that a tree says is believed before it is checked.
//! Format: docs/format/torch.md, trees.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The tree of a `Checkpointer`.
pub(crate) const CHECKPOINTER: &str = "backstay.torch";
/// The tree of a `Shelf`, which says what tensors there are.
pub(crate) const SHELF: &str = "backstay.tensors";
/// What each process of a `Writer` says of what it saved.
pub(crate) const WRITER: &str = "backstay.torch.dcp.items";
/// Variables with names that begin like this are Backstay's own, and no tensors.
pub(crate) const OURS: &str = "backstay.";

const MAGIC: &[u8] = b"BSTREE01";

/// What is known of the tensors of a checkpoint, by the names of their variables.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Their dimensions as they follow each other in memory, from the slowest to the fastest.
    pub(crate) orders: BTreeMap<String, Vec<usize>>,
    /// Types as torch calls them, of tensors that may be stored as another.
    pub(crate) types: BTreeMap<String, String>,
    /// Tensors that are in the tree itself.
    pub(crate) values: BTreeMap<String, Small>,
    /// Variables that are other objects, as bytes.
    pub(crate) objects: BTreeSet<String>,
}

impl Told {
    /// With what another process says.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.orders.extend(other.orders);
        self.types.extend(other.types);
        self.values.extend(other.values);
        self.objects.extend(other.objects);
        self
    }
}

/// A tensor that is in a tree, row-major.
#[derive(Debug, PartialEq)]
pub(crate) struct Small {
    pub(crate) r#type: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// A tree: its root word, and the bytes that words of it refer to.
struct Tree<'a> {
    root: Value,
    blobs: Vec<&'a [u8]>,
}

impl<'a> Tree<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (header, mut rest) = rest.split_at_checked(length)?;
        let mut header: Value = serde_json::from_slice(header).ok()?;
        let mut blobs = Vec::new();
        for length in header.get("blobs")?.as_array()? {
            let (blob, after) = rest.split_at_checked(usize::try_from(length.as_u64()?).ok()?)?;
            blobs.push(blob);
            rest = after;
        }
        let root = header.get_mut("tree")?.take();
        Some(Self { root, blobs })
    }

    /// A tensor word, with its bytes.
    fn small(&self, word: &Value) -> Option<Small> {
        let [blob, kind, shape] = &**word.get("$tensor")?.as_array()? else {
            return None;
        };
        Some(Small {
            r#type: kind.as_str()?.to_owned(),
            shape: items(shape)?
                .iter()
                .map(Value::as_u64)
                .collect::<Option<_>>()?,
            bytes: self
                .blobs
                .get(usize::try_from(blob.as_u64()?).ok()?)?
                .to_vec(),
        })
    }
}

/// What is in a list, or a tuple.
fn items(word: &Value) -> Option<&Vec<Value>> {
    let list = word.get("$tuple").or_else(|| word.get("$size"));
    list.unwrap_or(word).as_array()
}

fn order(word: &Value) -> Option<Vec<usize>> {
    let place = |word: &Value| usize::try_from(word.as_u64()?).ok();
    items(word)?.iter().map(place).collect()
}

/// What the tree of a `Checkpointer` says; nothing where these bytes are none.
pub(crate) fn of_checkpointer(bytes: &[u8]) -> Option<Told> {
    let tree = Tree::read(bytes)?;
    let orders = tree.root.get("orders")?.as_object()?;
    let orders = orders
        .iter()
        .map(|(name, word)| Some((name.clone(), order(word)?)));
    Some(Told {
        orders: orders.collect::<Option<_>>()?,
        ..Told::default()
    })
}

/// What the tree of a `Shelf` says; nothing where these bytes are none.
pub(crate) fn of_shelf(bytes: &[u8]) -> Option<Told> {
    let tree = Tree::read(bytes)?;
    let mut told = Told::default();
    for one in items(&tree.root)? {
        let name = one.get("name")?.as_str()?.to_owned();
        if let Some(value) = one.get("value") {
            told.values.insert(name, tree.small(value)?);
            continue;
        }
        let kind = one.get("dtype")?.as_str()?.to_owned();
        told.orders.insert(name.clone(), order(one.get("order")?)?);
        told.types.insert(name, kind);
    }
    Some(told)
}

/// What one process of a `Writer` says; nothing where these bytes are none of that.
pub(crate) fn of_writer(bytes: &[u8]) -> Option<Told> {
    let root: Value = serde_json::from_slice(bytes).ok()?;
    if root.get("format")?.as_u64()? != 1 {
        return None;
    }
    let mut told = Told::default();
    for item in root.get("items")?.as_array()? {
        let tensor = item.get("fqn")?.as_str()?;
        let variable = item.get("variable").map_or(Some(tensor), Value::as_str);
        let Some(kind) = item.get("dtype") else {
            told.objects.extend(variable.map(str::to_owned));
            continue;
        };
        let kind = kind.as_str()?.to_owned();
        let Some(variable) = variable.map(str::to_owned) else {
            told.values
                .extend(empty(item, kind).map(|small| (tensor.to_owned(), small)));
            continue;
        };
        if let Some(word) = item.get("order") {
            told.orders.insert(variable.clone(), order(word)?);
        }
        told.types.insert(variable, kind);
    }
    Some(told)
}

/// A tensor without elements, which no variable has.
fn empty(item: &Value, r#type: String) -> Option<Small> {
    let size = item.get("size")?.as_array()?;
    let shape: Vec<u64> = size.iter().map(Value::as_u64).collect::<Option<_>>()?;
    shape.contains(&0).then(|| Small {
        r#type,
        shape,
        bytes: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(header: &str, blobs: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u64::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(blobs);
        bytes
    }

    #[test]
    fn orders_types_and_small_tensors_are_read() {
        let bytes = tree(
            r#"{"tree": {"version": 1, "orders": {"model/w": [0, 2, 1]}}, "blobs": []}"#,
            b"",
        );
        let told = of_checkpointer(&bytes).unwrap();
        assert_eq!(told.orders["model/w"], [0, 2, 1]);

        let bytes = tree(
            r#"{"tree": [{"name": "w", "dtype": "bool", "shape": [2], "order": {"$tuple": [0]}},
                {"name": "s", "value": {"$tensor": [1, "int64", []]}}], "blobs": [1, 8]}"#,
            b"x\x05\0\0\0\0\0\0\0",
        );
        let told = of_shelf(&bytes).unwrap();
        assert_eq!((&*told.types["w"], &*told.orders["w"]), ("bool", &[0][..]));
        let small = &told.values["s"];
        assert_eq!(
            (&*small.r#type, &*small.shape, small.bytes[0]),
            ("int64", &[][..], 5)
        );
        assert_eq!(small.bytes.len(), 8);
    }

    #[test]
    fn what_a_writer_saved_is_told_apart() {
        let said = br#"{"format":1,"flattened":true,"items":[{"fqn":"a"},
            {"fqn":"w","variable":"w#1","dtype":"float32","size":[2,2],"order":[1,0]},
            {"fqn":"none","variable":null,"dtype":"bool","size":[0,3]},
            {"fqn":"shard","variable":null,"dtype":"bool","size":[1]}]}"#;
        let told = of_writer(said).unwrap();
        assert!(told.objects.contains("a") && told.objects.len() == 1);
        assert_eq!(
            (&*told.types["w#1"], &*told.orders["w#1"]),
            ("float32", &[1, 0][..])
        );
        assert_eq!(
            (&*told.values["none"].shape, told.values.len()),
            (&[0, 3][..], 1)
        );
        assert!(of_writer(br#"{"format":2,"items":[]}"#).is_none());
        assert!(of_writer(br#"{"format":1,"items":[{"fqn":"w","dtype":5}]}"#).is_none());
    }

    #[test]
    fn lengths_beyond_the_bytes_are_no_tree() {
        let good = tree(r#"{"tree": {"orders": {}}, "blobs": [4]}"#, b"four");
        assert!(of_checkpointer(&good).is_some());
        for end in 0..good.len() {
            assert!(of_checkpointer(&good[..end]).is_none(), "{end}");
        }
        for wrong in [
            r#"{"tree": {"orders": {"w": ["x"]}}, "blobs": []}"#,
            r#"{"tree": {"orders": {"w": [-1]}}, "blobs": []}"#,
            r#"{"tree": 5, "blobs": []}"#,
            r#"{"tree": {"orders": {}}, "blobs": [18446744073709551615]}"#,
        ] {
            assert!(of_checkpointer(&tree(wrong, b"")).is_none(), "{wrong}");
        }
        let beyond =
            r#"{"tree": [{"name": "s", "value": {"$tensor": [1, "int64", []]}}], "blobs": [0]}"#;
        assert!(of_shelf(&tree(beyond, b"")).is_none());
    }
}
