// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the choice of a place among made-up file systems, and every way a folder is refused.

use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

const MIB: u64 = 1 << 20;

/// A node with a memory folder (where this machine has tmpfs), two scratch folders and a last one.
struct Node {
    memory: Option<tempfile::TempDir>,
    disk: tempfile::TempDir,
    surroundings: Surroundings,
}

impl Node {
    fn new() -> Self {
        let memory = tempfile::tempdir_in("/dev/shm").ok();
        let memory = memory.filter(|folder| {
            let folder = Surroundings::descend(&empty(), folder.path(), &[], false);
            folder.is_ok_and(|folder| space(&folder).unwrap().1)
        });
        // Beside the test program, because /tmp may be memory.
        let program = std::env::current_exe().unwrap();
        let disk = tempfile::tempdir_in(program.parent().unwrap());
        let disk = disk.unwrap_or_else(|_read_only| tempfile::tempdir().unwrap());
        for name in ["first scratch", "second", "last"] {
            fs::create_dir(disk.path().join(name)).unwrap();
        }
        let scratch = |name: &str, folder: &str| (name.to_owned(), disk.path().join(folder));
        let no_memory = disk.path().join("no memory");
        let surroundings = Surroundings {
            memory: memory
                .as_ref()
                .map_or(no_memory, |folder| folder.path().to_owned()),
            scratch: vec![
                ("$EMPTY".to_owned(), PathBuf::new()),
                scratch("$FIRST", "first scratch"),
                scratch("second", "second"),
            ],
            last: disk.path().join("last"),
            ..empty()
        };
        Self {
            memory,
            disk,
            surroundings,
        }
    }

    fn choose(&self, needed: Option<u64>) -> Result<Place> {
        self.surroundings.choose(None, "a job", "node", needed)
    }

    fn choose_at(&self, path: &Path) -> Result<Place> {
        self.surroundings
            .choose(Some(path), "a job", "node", Some(u64::MAX))
    }

    fn own(&self) -> String {
        self.surroundings.own_folder()
    }
}

fn empty() -> Surroundings {
    Surroundings {
        memory: PathBuf::new(),
        scratch: Vec::new(),
        last: PathBuf::new(),
        user: rustix::process::geteuid().as_raw(),
        limit: None,
    }
}

#[track_caller]
fn refused(result: Result<Place>, kind: ErrorKind, words: &[&str]) {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
}

#[test]
fn memory_comes_first_and_its_folders_are_private() {
    let node = Node::new();
    let Some(memory) = &node.memory else { return };
    let place = node.choose(Some(4096)).unwrap();
    assert!(place.is_memory);
    assert_eq!(
        place.directory,
        memory.path().join(node.own()).join("a job/node")
    );
    assert!(place.free_bytes > 4096);
    assert!(
        place.why.contains("memory with") && place.why.contains("MiB"),
        "{}",
        place.why
    );
    for folder in place.directory.ancestors().take(3) {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    }
    assert_eq!(node.choose(None).unwrap().directory, place.directory);
}

#[test]
fn the_next_place_is_taken_where_memory_is_short() {
    let mut node = Node::new();
    if node.memory.is_none() {
        return;
    }
    node.surroundings.limit = Some(MemoryLimit {
        limit_bytes: 64 * MIB,
        used_bytes: 60 * MIB,
        path: PathBuf::from("/sys/fs/cgroup/memory.max"),
    });
    let place = node.choose(Some(8 * MIB)).unwrap();
    assert!(
        place
            .directory
            .starts_with(node.disk.path().join("first scratch"))
    );
    assert!(
        place.why.contains("memory.max") && place.why.contains("4 MiB"),
        "{}",
        place.why
    );
    assert!(
        !node.surroundings.memory.join(node.own()).exists(),
        "made where nothing fits"
    );
    // Without a size to fit, and with one that fits, memory is taken.
    assert!(node.choose(None).unwrap().is_memory);
    assert!(node.choose(Some(4 * MIB)).unwrap().is_memory);
}

#[test]
fn what_fits_nowhere_is_store_full_and_names_all_places() {
    let node = Node::new();
    let words = ["$FIRST", "second", "last", "short", "set store_path"];
    refused(node.choose(Some(u64::MAX)), ErrorKind::StoreFull, &words);
}

#[test]
fn places_that_are_missing_or_not_memory_are_passed_over() {
    let mut node = Node::new();
    node.surroundings.memory = node.disk.path().join("second");
    fs::remove_dir(node.disk.path().join("first scratch")).unwrap();
    let place = node.choose(Some(1)).unwrap();
    let on_disk = !place.is_memory;
    if on_disk {
        assert!(place.directory.starts_with(node.disk.path().join("second")));
        assert!(place.why.contains("no memory file system"), "{}", place.why);
        assert!(place.why.contains("not $FIRST"), "{}", place.why);
        assert!(!place.first);
    }
    node.surroundings.scratch.clear();
    node.surroundings.last = node.disk.path().join("gone");
    node.surroundings.memory = node.disk.path().join("gone too");
    refused(node.choose(None), ErrorKind::StoreIo, &["gone", "gone too"]);
}

#[test]
fn a_configured_path_is_used_as_given_and_made_if_its_parent_is_there() {
    let node = Node::new();
    let path = node.disk.path().join("m\u{fc}ller runs");
    let place = node.choose_at(&path).unwrap();
    assert_eq!(place.directory, path.join("a job/node"));
    assert!(place.why.contains("store_path"), "{}", place.why);
    assert!(place.first);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    // The path itself may be a link, and may be another user's.
    symlink(&path, node.disk.path().join("link")).unwrap();
    assert!(node.choose_at(&node.disk.path().join("link")).is_ok());
}

#[test]
fn a_wrong_configured_path_is_an_error_that_says_what_to_do() {
    let node = Node::new();
    let file = node.disk.path().join("file");
    fs::write(&file, "").unwrap();
    let kind = ErrorKind::Configuration;
    let missing = node.disk.path().join("not/there");
    refused(
        node.choose_at(&missing),
        kind,
        &["not/there", "parent", "set store_path"],
    );
    refused(
        node.choose_at(&file),
        kind,
        &["not a folder", "set store_path"],
    );
    refused(node.choose_at(&file.join("sub")), kind, &["not a folder"]);
    refused(node.choose_at(Path::new("")), kind, &["store_path"]);
}

#[test]
fn links_and_folders_of_others_are_refused() {
    let node = Node::new();
    let base = node.disk.path().join("second");
    let kind = ErrorKind::StoreIo;
    symlink("/tmp", base.join("a job")).unwrap();
    refused(node.choose_at(&base), kind, &["a job", "symbolic link"]);
    fs::remove_file(base.join("a job")).unwrap();
    fs::create_dir(base.join("a job")).unwrap();
    fs::set_permissions(base.join("a job"), fs::Permissions::from_mode(0o777)).unwrap();
    refused(node.choose_at(&base), kind, &["everybody"]);
    fs::set_permissions(base.join("a job"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(node.choose_at(&base).is_ok());
    let mut other = node;
    other.surroundings.user += 1;
    refused(other.choose_at(&base), kind, &["belongs to user"]);
    assert_eq!(
        other
            .surroundings
            .existing(Some(&base), "a job", "node")
            .unwrap(),
        None
    );
}

#[test]
fn a_read_only_mount_is_an_error_also_for_root() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
    let node = Node::new();
    let target = node.disk.path().join("second");
    // Without the right to mount there is nothing to try.
    if mount(
        "tmpfs",
        &target,
        "tmpfs",
        MountFlags::empty(),
        Some(c"size=1m"),
    )
    .is_err()
    {
        return;
    }
    let before = node.choose_at(&target);
    mount_remount(&target, MountFlags::RDONLY, c"").unwrap();
    let (made, fresh) = (node.choose_at(&target), node.choose_at(&target.join("new")));
    unmount(&target, UnmountFlags::DETACH).unwrap();
    assert!(before.unwrap().is_memory);
    refused(made, ErrorKind::StoreIo, &["Read-only", "set store_path"]);
    refused(fresh, ErrorKind::StoreIo, &["Read-only"]);
}

#[test]
fn a_look_says_what_would_be_chosen_and_makes_nothing() {
    let node = Node::new();
    let disk = node.disk.path();
    let names = |looks: &[Look]| {
        looks
            .iter()
            .map(|look| look.name.clone())
            .collect::<Vec<_>>()
    };
    let looks = node.surroundings.look(None);
    assert_eq!(names(&looks)[1..3], ["$FIRST", "second"]);
    assert_eq!(looks[0].found.is_ok(), node.memory.is_some());
    assert!(
        matches!(looks[1].found, Ok((free, _)) if free > 0),
        "{looks:?}"
    );
    let own = disk
        .join("first scratch")
        .join(node.surroundings.own_folder());
    assert!(!own.exists(), "it made something");
    // What is in the way of a store is in the way of the look.
    fs::write(&own, "").unwrap();
    let why = node.surroundings.look(None)[1].found.clone().unwrap_err();
    assert!(why.contains("no folder"), "{why}");
    let configured = |path: &Path| node.surroundings.look(Some(path))[0].found.clone();
    configured(&disk.join("made later")).unwrap();
    configured(&disk.join("no/parent")).unwrap_err();
    configured(&own).unwrap_err();
    assert!(!disk.join("made later").exists());
}

#[test]
fn an_earlier_store_is_found_in_the_same_order() {
    let node = Node::new();
    let found = || node.surroundings.existing(None, "a job", "node").unwrap();
    assert_eq!(found(), None);
    assert!(
        !node.disk.path().join("last").join(node.own()).exists(),
        "looking makes nothing"
    );
    let mut expected = None;
    for name in ["last", "second", "first scratch"] {
        let folder = node
            .disk
            .path()
            .join(name)
            .join(node.own())
            .join("a job/node");
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(found(), expected);
        fs::create_dir(folder.join(STORE_FILE)).unwrap();
        assert_eq!(found(), expected, "a folder is no store");
        fs::remove_dir(folder.join(STORE_FILE)).unwrap();
        fs::write(folder.join(STORE_FILE), "").unwrap();
        expected = Some(folder);
        assert_eq!(found(), expected);
    }
    let other = node.surroundings.existing(None, "a job", "other");
    assert_eq!(other.unwrap(), None);
    let wrong = node.surroundings.existing(None, "..", "node");
    assert_eq!(wrong.unwrap_err().kind(), ErrorKind::Configuration);
    let base = node.disk.path().join("conf");
    assert_eq!(
        node.surroundings
            .existing(Some(&base), "a job", "node")
            .unwrap(),
        None
    );
    let place = node.choose_at(&base).unwrap();
    fs::write(place.directory.join(STORE_FILE), "").unwrap();
    let found = node.surroundings.existing(Some(&base), "a job", "node");
    assert_eq!(found.unwrap(), Some(place.directory));
}

#[test]
fn a_place_that_cannot_be_looked_at_is_not_one_where_nothing_is() {
    let mut node = Node::new();
    let last = node.disk.path().join("last").join(node.own());
    fs::create_dir_all(last.join("a job/node")).unwrap();
    fs::set_permissions(&last, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(last.join("a job/node").join(STORE_FILE), "").unwrap();
    let look = |node: &Node, configured: Option<&Path>, name: &str| {
        let found = node.surroundings.existing(configured, "a job", name);
        found.map_err(|error| (error.kind(), error.to_string()))
    };
    // A name too long for the file system stands for an error that no test can have of a sound device.
    let long = node.disk.path().join("n".repeat(300));
    let (kind, text) = look(&node, Some(&long), "node").unwrap_err();
    assert_eq!(kind, ErrorKind::Unreadable, "{text}");
    assert!(text.contains("store_path"), "{text}");
    // Also where a later place has one: the first may have a newer one.
    assert!(look(&node, None, "node").unwrap().is_some());
    let ring = node.disk.path().join("ring");
    symlink(&ring, &ring).unwrap();
    node.surroundings.scratch[1].1.clone_from(&ring);
    let (kind, text) = look(&node, None, "node").unwrap_err();
    assert_eq!(kind, ErrorKind::Unreadable, "{text}");
    assert!(text.contains(&*ring.to_string_lossy()), "{text}");
    assert_eq!(look(&node, Some(&last), "other").unwrap(), None);
}

#[test]
fn room_is_checked_against_file_system_and_memory_limit() {
    let mut place = Place {
        directory: PathBuf::from("/dev/shm/x"),
        why: String::new(),
        free_bytes: 100 * MIB,
        is_memory: true,
        first: true,
    };
    let limit = MemoryLimit {
        limit_bytes: 80 * MIB,
        used_bytes: 20 * MIB,
        path: PathBuf::from("/sys/fs/cgroup/memory.max"),
    };
    let check = |place: &Place, bytes| {
        check_room(place, bytes)?;
        check_memory(place, bytes, Some(&limit)).map(|()| place.clone())
    };
    assert!(check(&place, 60 * MIB).is_ok());
    let words = [
        "memory.max",
        "1048576 bytes (1 MiB) short",
        "62914560",
        "reserve_bytes",
        "kills",
    ];
    refused(check(&place, 61 * MIB), ErrorKind::StoreFull, &words);
    let words = [
        "/dev/shm/x",
        "104857601",
        "1 bytes (1 MiB) short",
        "store_path",
        "reserve_bytes",
    ];
    refused(check(&place, 100 * MIB + 1), ErrorKind::StoreFull, &words);
    assert!(check_room(&place, 100 * MIB).is_ok() && check_memory(&place, 100 * MIB, None).is_ok());
    place.is_memory = false;
    assert!(check(&place, 100 * MIB).is_ok());
}

#[test]
fn names_are_labels_whatever_they_are_made_of() {
    let folder = Path::new("/home/a b");
    let name = job_name_of(OsStr::new("/opt/my sim/heat 2d"), folder);
    assert!(name.starts_with("heat_2d-") && name.len() == 16, "{name}");
    assert_ne!(
        name,
        job_name_of(OsStr::new("heat 2d"), Path::new("/home/b"))
    );
    assert_eq!(name, job_name_of(OsStr::new("./heat 2d"), folder));
    let long = "\u{e9}".repeat(300);
    for program in [
        OsString::new(),
        OsString::from_vec(vec![0xFF, b'\n', 0xFE]),
        long.into(),
    ] {
        let name = job_name_of(&program, Path::new(""));
        check_label("job", &name).unwrap();
        assert!(
            !name.contains(['\n', char::REPLACEMENT_CHARACTER]),
            "{name}"
        );
    }
    assert_eq!(node_name_of("n01"), "n01");
    assert_eq!(node_name_of(" "), "node");
    assert_eq!(node_name_of("a/b"), "a_b");
    for name in [default_job_name(), node_name()] {
        check_label("name", &name).unwrap();
    }
    assert_eq!(default_job_name(), default_job_name());
}

#[test]
fn labels_that_leave_the_folder_are_refused() {
    let node = Node::new();
    for job in ["", "..", "a/b", "."] {
        let result = node.surroundings.choose(None, job, "node", None);
        refused(result, ErrorKind::Configuration, &["job"]);
    }
}
