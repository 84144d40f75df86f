// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the rules of the tree: each is a function from a tree to findings, with a sample that
//! breaks it in its tests.
//! Out: findings as `path:line: what is wrong`.

mod pages;
mod sources;

use crate::tree::Tree;

/// All findings.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let rules = [
        sources::headers,
        sources::lengths,
        sources::ascii,
        sources::leftovers,
        sources::unsafe_code,
        sources::bare_matches,
        sources::blobs,
        sources::own_paths,
        pages::links,
        pages::named_pages,
        pages::targets,
        pages::variables,
    ];
    rules.iter().flat_map(|rule| rule(tree)).collect()
}

/// Whether `path` holds tests only.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_tree_is_tidy() {
        let tree = Tree::read().unwrap();
        let findings = check(&tree);
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}
