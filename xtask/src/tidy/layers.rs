// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the layering of the engine: a stage never imports another stage, so that a block's path
//! can be read one module at a time, and only the composers know all of them.
//! Invariants: every module of the engine has one role; every allowed edge is there and is used.

use crate::rust;
use crate::tree::{Tree, extension};
use std::collections::BTreeSet;

const ENGINE: &str = "crates/engine/src/";

/// What a module of the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Puts stages together; no stage or service imports it.
    Composer,
    /// A step of a block's path; imports services, and another stage only by an allowed edge.
    Stage,
    /// What all use; imports services only.
    Service,
}

/// Every module of the engine, in the order of a block's path. A stage may be listed before it exists.
pub(crate) const MODULES: [(&str, Role); 24] = [
    ("session", Role::Composer),
    ("agent", Role::Composer),
    ("drain", Role::Composer),
    ("inspect", Role::Composer),
    ("region", Role::Stage),
    ("track", Role::Stage),
    ("store", Role::Stage),
    ("redundancy", Role::Stage),
    ("transport", Role::Stage),
    ("aggregate", Role::Stage),
    ("codec", Role::Stage),
    ("archive", Role::Stage),
    ("restart", Role::Stage),
    ("comm", Role::Service),
    ("io", Role::Service),
    ("config", Role::Service),
    ("error", Role::Service),
    ("clock", Role::Service),
    ("metrics", Role::Service),
    ("schedule", Role::Service),
    ("leave", Role::Service),
    ("notice", Role::Service),
    ("cpu", Role::Service),
    ("fanout", Role::Service),
];

/// An import of one stage by another that is allowed.
pub(crate) struct Edge {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    /// The only names it may import.
    pub(crate) names: &'static [&'static str],
    pub(crate) why: &'static str,
}

/// Every allowed edge. docs/architecture.md shows this table.
pub(crate) const ALLOWED: [Edge; 6] = [
    Edge {
        from: "session",
        to: "agent",
        names: &[
            "Agent",
            "AgentClient",
            "AgentSettings",
            "Ask",
            "Asker",
            "Coordinator",
            "CoordinatorThread",
            "NodeSeat",
            "RemoteDevice",
            "coordinate",
            "file_exposure",
            "local",
            "process",
            "quiesce",
            "remove_log",
            "restart",
            "scheme_numbers",
            "stores_in",
            "survey",
        ],
        why: "a session without an agent process runs the agent in a thread of its own",
    },
    Edge {
        from: "session",
        to: "drain",
        names: &[
            "ArchiveFound",
            "ArchiveNode",
            "ArchivePlan",
            "ArchiveThread",
            "ArchivedCheckpoint",
            "DrainSettings",
            "RunningLock",
            "STATUS_FILE",
            "fetch",
            "publish_secret",
            "self",
        ],
        why: "a session says what drains, and reads what the archive has",
    },
    Edge {
        from: "agent",
        to: "drain",
        names: &["ArchivePlan", "ArchiveThread", "DrainPoint"],
        why: "a node's agent is also its part in draining",
    },
    Edge {
        from: "inspect",
        to: "drain",
        names: &["ArchiveStatus", "STATUS_FILE", "fetch", "servers_in"],
        why: "tools look into archives as restarts do, and at drains",
    },
    Edge {
        from: "store",
        to: "region",
        names: &["Source", "Sink"],
        why: "where the store copies blocks from and to: two traits, no memory of the application",
    },
    Edge {
        from: "store",
        to: "track",
        names: &["Candidates"],
        why: "which blocks the store has to look at: a set, not how it was found",
    },
];

fn role(module: &str) -> Option<Role> {
    let found = MODULES.iter().find(|(name, _)| *name == module);
    found.map(|&(_, role)| role)
}

/// One import: of a module of the engine, at a line, and what it takes from it.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    module: String,
    rest: String,
    at: usize,
}

/// The rule.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let reexports = reexports(tree.text(&format!("{ENGINE}lib.rs")).unwrap_or_default());
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for (path, text) in tree.texts() {
        let Some(within) = path.strip_prefix(ENGINE).filter(|p| extension(p) == "rs") else {
            continue;
        };
        let own = within.split('/').next().unwrap_or(within);
        let own = own.trim_end_matches(".rs");
        if own == "lib" || super::is_test(path) {
            continue;
        }
        let Some(from) = role(own) else {
            findings.push(format!(
                "{path}:1: module {own} has no role in xtask's table"
            ));
            continue;
        };
        let code = rust::without_tests(&rust::code(text));
        for import in imports(&code, depth(within), &reexports) {
            if let Some(edge) = allowed(own, &import) {
                used.insert((edge.from, edge.to));
                continue;
            }
            if let Some(why) = refused(own, from, &import) {
                let line = rust::line_of(&code, import.at);
                findings.push(format!("{path}:{line}: {why}"));
            }
        }
    }
    let exists = |module: &str| {
        tree.has(&format!("{ENGINE}{module}")) || tree.has(&format!("{ENGINE}{module}.rs"))
    };
    for edge in &ALLOWED {
        if exists(edge.from) && !used.contains(&(edge.from, edge.to)) {
            let (from, to) = (edge.from, edge.to);
            findings.push(format!(
                "xtask: the allowed edge {from} -> {to} is not used"
            ));
        }
    }
    findings
}

fn allowed(own: &str, import: &Import) -> Option<&'static Edge> {
    let edge = ALLOWED
        .iter()
        .find(|edge| edge.from == own && edge.to == import.module)?;
    let mut names = import
        .rest
        .split(|c: char| c != '_' && !c.is_alphanumeric())
        .filter(|name| !name.is_empty());
    names.all(|name| edge.names.contains(&name)).then_some(edge)
}

fn refused(own: &str, from: Role, import: &Import) -> Option<String> {
    let to = &import.module;
    let what = role(to)?;
    if own == to {
        return None;
    }
    let rule = match (from, what) {
        (_, Role::Composer) => "only programs import a composer",
        (_, Role::Service) | (Role::Composer, _) => return None,
        (Role::Stage, Role::Stage) => "a stage never imports another stage",
        (Role::Service, Role::Stage) => "a service imports no stage",
    };
    Some(format!(
        "{own} imports {to}::{}: {rule}",
        import.rest.trim()
    ))
}

/// Modules between the crate's root and the one in the file `within` the engine.
fn depth(within: &str) -> usize {
    let folders = within.matches('/').count();
    if within.ends_with("/mod.rs") {
        folders
    } else {
        folders + 1
    }
}

/// Names that the crate's root takes from its modules: name, module.
fn reexports(lib: &str) -> Vec<(String, String)> {
    let code = rust::code(lib);
    let mut found = Vec::new();
    for at in rust::words(&code, "pub use").collect::<Vec<_>>() {
        let statement = &code[at + "pub use".len()..];
        let statement = &statement[..statement.find(';').unwrap_or(statement.len())];
        let Some((module, names)) = statement.split_once("::") else {
            continue;
        };
        for name in names.split(['{', '}', ',']).map(str::trim) {
            found.push((name.to_owned(), module.trim().to_owned()));
        }
    }
    found
}

/// What `code` takes from other modules of its crate, through `crate::` or enough `super::`.
fn imports(code: &str, depth: usize, reexports: &[(String, String)]) -> Vec<Import> {
    let mut found = Vec::new();
    for at in rust::words(code, "crate").collect::<Vec<_>>() {
        if let Some(rest) = code[at + "crate".len()..].trim_start().strip_prefix("::") {
            heads(rest, at, reexports, &mut found);
        }
    }
    for at in rust::words(code, "super").collect::<Vec<_>>() {
        if code[..at].trim_end().ends_with("::") {
            continue;
        }
        let (mut rest, mut steps) = (&code[at..], 0);
        while let Some(next) = rest.strip_prefix("super::") {
            (rest, steps) = (next, steps + 1);
        }
        if steps >= depth {
            heads(rest, at, reexports, &mut found);
        }
    }
    found
}

/// The modules at the front of a path, or of each path of a list in braces.
fn heads(rest: &str, at: usize, reexports: &[(String, String)], found: &mut Vec<Import>) {
    if !rest.starts_with('{') {
        return head(rest, at, reexports, found);
    }
    let list = &rest[1..rust::closing(rest) - 1];
    let mut depth = 0;
    let mut start = 0;
    for (index, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                head(list[start..index].trim(), at, reexports, found);
                start = index + 1;
            }
            _ => {}
        }
    }
    head(list[start..].trim(), at, reexports, found);
}

fn head(path: &str, at: usize, reexports: &[(String, String)], found: &mut Vec<Import>) {
    let length = path.find(|c: char| c != '_' && !c.is_alphanumeric());
    let (name, rest) = path.split_at(length.unwrap_or(path.len()));
    let rest = match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with('{') => rest[..rust::closing(rest)].to_owned(),
        Some(rest) => {
            let end = rest.find(|c: char| c != '_' && c != ':' && !c.is_alphanumeric());
            rest[..end.unwrap_or(rest.len())].to_owned()
        }
        None => String::new(),
    };
    let (module, rest) = match reexports.iter().find(|(known, _)| known == name) {
        Some((known, module)) => (module.clone(), known.clone()),
        None => (name.to_owned(), rest),
    };
    if role(&module).is_some() {
        found.push(Import { module, rest, at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "pub use session::{Handle, Session};\npub use error::Error;\n";

    fn findings(path: &str, text: &str) -> Vec<String> {
        let path = format!("{ENGINE}{path}");
        let lib = format!("{ENGINE}lib.rs");
        let findings = check(&Tree::of(&[(&path, text), (&lib, LIB)]));
        findings
            .into_iter()
            .filter(|f| !f.starts_with("xtask"))
            .collect()
    }

    #[test]
    fn a_stage_imports_no_other_stage() {
        for text in [
            "use crate::store::tree::Tree;",
            "use crate::{error::Error, store::{self, tree}};",
            "fn f() { crate::store::place::choose() }",
            "use super::super::store::tree::Tree;",
            "use crate::Session;",
            "use crate::session::Handle;",
        ] {
            assert_eq!(findings("restart/redistribute.rs", text).len(), 1, "{text}");
        }
        for text in [
            "use crate::error::Error;",
            "use crate::Error;",
            "// use crate::store::tree::Tree;",
            "#[cfg(test)]\nmod tests { use crate::store::tree::Tree; }",
            "use crate::restart::x;",
            "use super::store;",
        ] {
            assert_eq!(findings("restart/redistribute.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_edge_allows_its_names_only() {
        assert_eq!(
            findings("store/a.rs", "use crate::region::{Sink, Source};"),
            [""; 0]
        );
        assert_eq!(
            findings("store/a.rs", "use crate::region::{Region, Sink};").len(),
            1
        );
        assert_eq!(
            findings("store/a.rs", "use crate::track::pages::PageTracker;").len(),
            1
        );
    }

    #[test]
    fn a_service_imports_no_stage() {
        assert_eq!(
            findings("io/file.rs", "use crate::store::tree::Tree;").len(),
            1
        );
        assert_eq!(
            findings("io/file.rs", "use crate::clock::Stopwatch;"),
            [""; 0]
        );
    }

    #[test]
    fn a_composer_imports_stages_and_no_composer() {
        assert_eq!(
            findings("session/mod.rs", "use crate::store::tree::Tree;"),
            [""; 0]
        );
        assert_eq!(
            findings("inspect/mod.rs", "use crate::session::Session;").len(),
            1
        );
    }

    #[test]
    fn a_module_without_a_role_is_refused() {
        assert_eq!(findings("helper.rs", "").len(), 1);
    }

    #[test]
    fn an_edge_that_nothing_uses_is_refused() {
        let path = format!("{ENGINE}store/a.rs");
        let found = check(&Tree::of(&[(&path, "use crate::region::Sink;")]));
        assert_eq!(
            found,
            ["xtask: the allowed edge store -> track is not used"]
        );
    }
}
