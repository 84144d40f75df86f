// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what `--route` was given: patterns of names, each with its rules.
//! In from: the command line. Out to: the agent.
//! Invariants: what cannot be routed rightly is refused here, before anything is started.

use backstay_route::pattern::Field;
use backstay_route::table::{Table, split};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// When files of the newest checkpoint are written to the paths that they would have had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Export {
    /// Not at all.
    #[default]
    Never,
    /// When the program is over.
    Last,
    /// With each checkpoint of so many, and then.
    Every(u64),
}

/// How names of a pattern become complete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// A set is the files of so many ranks; else each file is one of its own.
    pub writers: Option<u32>,
    /// All ranks write the same names again and again: the sets are those of their rounds.
    pub in_place: bool,
    /// Names that files have before they are renamed: no file is complete under them.
    pub draft: bool,
    /// Several nodes write one file of such a name at once.
    pub shared: bool,
    /// When they are files of the file system, too.
    pub export: Export,
}

/// Patterns and rules of a run.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// Which names.
    pub table: Table,
    /// The rule of each pattern.
    pub rules: Vec<Rule>,
}

const SYNTAX: &str = "PATTERN, or PATTERN;RULE;..., where a rule is writers=N, in-place, draft, shared, \
                      export=last or export=N";

/// Reads the words of `--route`; `here` is the folder that patterns are relative to, `launched` how many ranks the launcher
/// starts.
pub fn parse(words: &[OsString], here: &Path, launched: Option<u32>) -> Result<Routes, String> {
    let mut routes = Routes::default();
    for word in words {
        let wrong = |why: &str| format!("--route {}: {why}", word.display());
        let mut parts = word.as_bytes().split(|&byte| byte == b';');
        let pattern = parts.next().unwrap_or_default();
        if pattern.is_empty() || pattern.ends_with(b"/") {
            return Err(wrong(&format!("it names no file: {SYNTAX}")));
        }
        let mut rule = Rule::default();
        for part in parts {
            match part {
                b"in-place" => rule.in_place = true,
                b"draft" => rule.draft = true,
                b"shared" => rule.shared = true,
                b"export=never" => rule.export = Export::Never,
                b"export=last" => rule.export = Export::Last,
                _ => numbered(&mut rule, part).ok_or_else(|| wrong(SYNTAX))?,
            }
        }
        let absolute = here
            .join(OsStr::from_bytes(pattern))
            .into_os_string()
            .into_vec();
        let (folder, rest) = split(&absolute);
        if rest
            .split(|&byte| byte == b'/')
            .any(|part| part == b"." || part == b"..")
        {
            return Err(wrong("a . or .. behind a wildcard leads nowhere"));
        }
        let folder = real(Path::new(OsStr::from_bytes(&folder)))
            .into_os_string()
            .into_vec();
        if ["/proc", "/sys", "/dev"]
            .iter()
            .any(|own| Path::new(OsStr::from_bytes(&folder)).starts_with(own))
        {
            return Err(wrong("files of the system are not routed"));
        }
        routes
            .table
            .add(&folder, &rest)
            .map_err(|why| wrong(&why))?;
        let pattern = routes.table.patterns().last();
        let has = |field| pattern.is_some_and(|pattern| pattern.has(field));
        settle(&mut rule, has(Field::Rank), has(Field::Step), launched)
            .map_err(|why| wrong(&why))?;
        if rule.shared {
            routes.table.share_last();
        }
        routes.rules.push(rule);
    }
    Ok(routes)
}

/// What a rule means for a pattern that has, or has not, the fields of ranks and of steps.
fn settle(
    rule: &mut Rule,
    of_ranks: bool,
    of_steps: bool,
    launched: Option<u32>,
) -> Result<(), String> {
    if !of_ranks && (rule.writers.is_some() || rule.in_place) {
        return Err("writers= and in-place are for names with {rank}".to_owned());
    }
    if rule.draft && of_ranks {
        return Err("a draft is no part of a set: write * for {rank}".to_owned());
    }
    if rule.shared && (of_ranks || rule.draft || rule.export != Export::Never) {
        let why = "a file that several hosts write is one of all ranks, which is not renamed, and is exported by \
                   backstay export --files: shared stands without {rank}, draft and export=";
        return Err(why.to_owned());
    }
    if of_ranks {
        rule.writers = rule.writers.or(launched);
        if rule.writers.is_none() {
            return Err("how many ranks write is not known: add ;writers=N".to_owned());
        }
        if !of_steps && !rule.in_place {
            let why = "names without {step} are overwritten in place by several ranks: where each closes its file \
                       once for each set, add ;in-place";
            return Err(why.to_owned());
        }
    }
    Ok(())
}

/// A rule that has a number.
fn numbered(rule: &mut Rule, part: &[u8]) -> Option<()> {
    let text = std::str::from_utf8(part).ok()?;
    let (name, number) = text.split_once('=')?;
    let number: u32 = number.parse().ok().filter(|&number| number > 0)?;
    match name {
        "writers" => rule.writers = Some(number),
        "export" => rule.export = Export::Every(u64::from(number)),
        _ => return None,
    }
    Some(())
}

/// A path without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(word: &str, launched: Option<u32>) -> Result<Rule, String> {
        let routes = parse(&[OsString::from(word)], Path::new("/nowhere"), launched)?;
        routes
            .rules
            .first()
            .cloned()
            .ok_or_else(|| "none".to_owned())
    }

    #[test]
    fn rules_follow_their_pattern() {
        assert_eq!(parsed("out/r.*", None), Ok(Rule::default()));
        let set = parsed("out/r.{step}.{rank}", Some(4)).expect("set");
        assert_eq!(set.writers, Some(4));
        assert_eq!(
            parsed("r.{step}.{rank};writers=3", Some(4))
                .expect("set")
                .writers,
            Some(3)
        );
        assert!(
            parsed("r.{rank};in-place;writers=2", None)
                .expect("in place")
                .in_place
        );
        assert!(parsed("tmp.*;draft", None).expect("draft").draft);
        assert!(parsed("field.*;shared", None).expect("shared").shared);
        for (word, export) in [
            ("r.*;export=last", Export::Last),
            ("r.*;export=never", Export::Never),
            ("r.*;export=10", Export::Every(10)),
        ] {
            assert_eq!(parsed(word, None).expect(word).export, export);
        }
    }

    #[test]
    fn what_would_be_wrong_is_refused() {
        for (word, why) in [
            ("r.{step}.{rank}", "writers=N"),
            ("r.{rank};writers=2", "in-place"),
            ("r.*;writers=2", "{rank}"),
            ("r.*;in-place", "{rank}"),
            ("r.{rank};draft", "draft"),
            ("r.*;writers=0", "PATTERN"),
            ("r.*;export=all", "PATTERN"),
            ("r.{step}.{rank};shared;writers=2", "one of all ranks"),
            ("r.*;shared;draft", "not renamed"),
            ("r.*;shared;export=last", "export --files"),
            ("r.*;other", "PATTERN"),
            ("", "no file"),
            ("out/", "no file"),
            ("o*/../r", "nowhere"),
            ("/proc/self/*", "system"),
            ("r[", "]"),
        ] {
            let error = parsed(word, None).expect_err(word);
            assert!(error.contains(why), "{word}: {error}");
        }
    }

    #[test]
    fn links_in_the_folder_of_a_pattern_are_followed() {
        let folder = tempfile::tempdir().expect("folder");
        let real = folder.path().canonicalize().expect("real");
        std::fs::create_dir(real.join("out")).expect("out");
        std::os::unix::fs::symlink("out", real.join("link")).expect("link");
        let words = [OsString::from("link/r.*"), OsString::from("link/new/r.*")];
        let routes = parse(&words, folder.path(), None).expect("routes");
        let folders: Vec<&[u8]> = routes
            .table
            .folders()
            .iter()
            .map(|folder| &folder[..])
            .collect();
        let expected = [real.join("out"), real.join("out/new")];
        assert_eq!(
            folders,
            expected
                .iter()
                .map(|path| path.as_os_str().as_bytes())
                .collect::<Vec<_>>()
        );
    }
}
