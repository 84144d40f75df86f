// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of several nodes, whose agents are in this process and speak over sockets.

use super::copies::PIECE_BYTES;
use super::*;
use crate::routing::rounds::{Decider, Decision};
use crate::routing::rules::{Routes, parse};
use crate::routing::state::State;
use backstay_format::width::to_u64;
use backstay_net::{Endpoint, Peer, Secret, TcpEndpoint, TcpOptions};
use backstay_route::notes::{BUFFER_AT, NOTES, NOTES_MAX, Note, place};
use backstay_route::{FAR, KEPT, LIVE, NEAR, PARTS};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use tempfile::TempDir;

const WRITE: i32 = 0o1;
const CREATE: i32 = 0o100 | 0o1000 | 0o1;
const EXCLUSIVE: i32 = 0o200;
const UPDATE: i32 = 0o100 | 0o2;
const APPEND: i32 = 0o2000;

struct Job {
    here: TempDir,
    memories: Vec<TempDir>,
    nodes: Vec<Arc<Nodes>>,
    endpoints: Vec<Arc<dyn Endpoint>>,
    routes: Routes,
    decider: Decider,
    ids: u32,
    /// Where the process of each node notes, and how much it did.
    notes: BTreeMap<usize, (File, u64)>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for endpoint in &self.endpoints {
            endpoint.shut_down();
        }
    }
}

impl Job {
    fn new(pattern: &str, size: usize) -> Self {
        let here = tempfile::tempdir().expect("here");
        let path = here.path().canonicalize().expect("real");
        let routes = parse(&[OsString::from(pattern)], &path, Some(2)).expect("routes");
        let open = |rank: usize| -> Arc<dyn Endpoint> {
            let secret = Secret::from_bytes([1; 32]);
            let mut options = TcpOptions::new(format!("host{rank}"), "job", secret);
            options.listen = Some(([127, 0, 0, 1], 0).into());
            Arc::new(TcpEndpoint::open(options).expect("endpoint"))
        };
        let endpoints: Vec<Arc<dyn Endpoint>> = (0..size).map(open).collect();
        let peers: Vec<Peer> = endpoints.iter().map(|endpoint| endpoint.peer()).collect();
        let memories: Vec<TempDir> = (0..size)
            .map(|_| tempfile::tempdir_in("/dev/shm").expect("memory"))
            .collect();
        let within = Duration::from_secs(30);
        let all = (0..).zip(&endpoints).zip(&memories);
        let nodes = all.map(|((rank, endpoint), memory)| {
            for name in [LIVE, KEPT, FAR, NEAR, PARTS, NOTES, ON_THE_WAY] {
                fs::create_dir(memory.path().join(name)).expect("folder");
            }
            let folder = memory.path().to_owned();
            let mut state = State::new(folder.clone(), routes.clone(), Duration::ZERO);
            state.spread = true;
            state.rank = rank;
            let shared = Shared::new(state);
            let circle = Circle::new(rank, peers.clone(), Arc::clone(endpoint), within);
            let nodes = Nodes::new(circle, Arc::clone(&shared), folder, within);
            shared.join(&nodes);
            let answers = Arc::clone(&nodes);
            endpoint.serve(Arc::new(move |request: &[u8], within: Duration| {
                handle(&answers, request, within)
            }));
            nodes
        });
        let nodes = nodes.collect();
        let decider = Decider::new(routes.clone());
        Self {
            here,
            memories,
            nodes,
            endpoints,
            routes,
            decider,
            ids: 0,
            notes: BTreeMap::new(),
        }
    }

    fn name(&self, name: &str) -> Vec<u8> {
        let here = self.here.path().canonicalize().expect("real");
        here.join(name).into_os_string().into_encoded_bytes()
    }

    fn say(&self, node: usize, kind: Kind, value: i32, names: [&str; 2]) -> Outcome {
        let [first, second] = names.map(|name| {
            if name.is_empty() {
                Vec::new()
            } else {
                self.name(name)
            }
        });
        let id = if kind == Kind::Rename {
            FIRST_ROUTED | SECOND_ROUTED
        } else {
            self.ids
        };
        let message = Message {
            kind,
            id,
            value,
            first: &first,
            second: &second,
        };
        self.nodes[node].done(7, &message).unwrap_or(Ok(()))
    }

    fn open(&mut self, node: usize, name: &str, flags: i32) -> Outcome {
        self.ids += 1;
        self.say(node, Kind::Open, flags, [name, ""])
    }

    fn place(&self, node: usize, below: &str, name: &str) -> PathBuf {
        let place = self.memories[node].path().join(below).join("0");
        place.join(name)
    }

    /// Writes a name as a process does.
    fn write(&mut self, node: usize, name: &str, text: &str) {
        self.open(node, name, CREATE).expect("open");
        fs::write(self.place(node, LIVE, name), text).expect("write");
        self.say(node, Kind::Closed, 0, ["", ""]).expect("close");
    }

    /// Reads a name as a process does.
    fn read(&self, node: usize, name: &str) -> Outcome<String> {
        let read = |path: PathBuf| fs::read_to_string(path).map_err(|error| errno(&error));
        match read(self.place(node, LIVE, name)) {
            Err(Errno::NOENT) => {
                self.say(node, Kind::Fetch, 0, [name, ""])?;
                read(self.place(node, NEAR, name))
            }
            other => other,
        }
    }

    /// The size of a name, as a process sees it.
    fn size(&self, node: usize, name: &str) -> Outcome<u64> {
        let size = |path| fs::metadata(path).map(|about| about.len());
        let size = |path: PathBuf| size(path).map_err(|error| errno(&error));
        match size(self.place(node, LIVE, name)) {
            Err(Errno::NOENT) => {
                self.say(node, Kind::Look, 0, [name, ""])?;
                size(self.place(node, FAR, name))
            }
            other => other,
        }
    }

    fn listing(&self, node: usize) -> Vec<String> {
        let here = self.name("");
        let here = here.strip_suffix(b"/").unwrap_or(&here);
        self.nodes[node].list(here).expect("list");
        let mut names = Vec::new();
        for below in [LIVE, FAR] {
            let entries = fs::read_dir(self.place(node, below, ""));
            let entries = entries.into_iter().flatten().flatten();
            names.extend(entries.map(|entry| entry.file_name().to_string_lossy().into_owned()));
        }
        names.sort();
        names
    }

    /// A round, and a checkpoint if one is due: what each node has in it.
    fn round(&mut self, over: bool) -> Option<Vec<BTreeMap<String, String>>> {
        self.round_with(over, |_| {})
    }

    /// The same; `meanwhile` comes between what is said and what is decided.
    fn round_with(
        &mut self,
        over: bool,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Option<Vec<BTreeMap<String, String>>> {
        let reports: Vec<Vec<u8>> = self
            .nodes
            .iter()
            .map(|node| {
                node.tell_all();
                let mut state = node.shared.lock();
                state.settle();
                encode(&state.report(over.then_some(true))).expect("report")
            })
            .collect();
        meanwhile(self);
        let nodes = self.nodes.clone();
        let heard = self.decider.hear(&reports, &nodes[0].catalog());
        let (reports, whole) = heard.expect("heard");
        for whole in whole {
            let is_sound = nodes[0].is_sound(&whole).expect("looked at");
            self.decider.judge(whole, is_sound);
        }
        let decided = self.decider.decide(reports, &mut nodes[0].catalog());
        let decision = decode::<Decision>(&decided.expect("decided"))
            .expect("decision")
            .0;
        if !decision.goes {
            return None;
        }
        let parts = nodes.iter().map(|node| {
            let mut state = node.shared.lock();
            let chosen = state.decided(&decision, node.rank());
            let read = |(name, path): &(Vec<u8>, PathBuf)| {
                let name = String::from_utf8_lossy(name);
                let name = name.rsplit('/').next().unwrap_or_default().to_owned();
                let bytes = fs::read(path).expect("revision");
                // Of a part, what stands before its map.
                let content = backstay_base::io::parts::split_part(name.as_bytes())
                    .and_then(|_| bytes.split_last_chunk::<8>())
                    .map(|(_, tail)| usize::try_from(u64::from_le_bytes(*tail)).expect("small"));
                let content = content.unwrap_or(bytes.len());
                (
                    name,
                    String::from_utf8_lossy(&bytes[..content]).into_owned(),
                )
            };
            let files = chosen.files.iter().map(read).collect();
            state.committed(chosen);
            files
        });
        Some(parts.collect())
    }
}

impl Job {
    /// Opens a file that several nodes write; which file of its process it is.
    fn open_part(&mut self, node: usize, name: &str, flags: i32) -> Outcome<u32> {
        self.open(node, name, flags).map(|()| self.ids)
    }

    /// Writes into an open part, and notes it.
    fn put(&mut self, node: usize, file: (u32, &str), at: u64, text: &str) {
        self.put_when(node, file, (at, text), now_ns());
    }

    fn put_when(
        &mut self,
        node: usize,
        (id, name): (u32, &str),
        (at, text): (u64, &str),
        now: u64,
    ) {
        let path = self.place(node, PARTS, &format!("{name}.backstay-part.{node}"));
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.expect("part");
        file.write_all_at(text.as_bytes(), at).expect("write");
        let note = Note {
            id,
            begin: at,
            end: at + to_u64(text.len()),
            first_ns: now,
            last_ns: now,
        };
        let (notes, count) = self.notes_of(node);
        for (word, value) in (0..).zip(note.words()) {
            let place = to_u64(place(*count)) + word * 8;
            notes
                .write_all_at(&value.to_le_bytes(), place)
                .expect("note");
        }
        *count += 1;
        notes.write_all_at(&count.to_le_bytes(), 0).expect("count");
        if *count % NOTES_MAX == 0 {
            let full = Message::plain(Kind::Full, 0, 0);
            assert_eq!(self.nodes[node].done(7, &full), Some(Ok(())));
        }
    }

    fn notes_of(&mut self, node: usize) -> &mut (File, u64) {
        self.notes.entry(node).or_insert_with(|| {
            let path = self.memories[node].path().join(NOTES).join("7");
            let mut options = File::options();
            let options = options.read(true).write(true).create_new(true);
            let file = options.open(&path).expect("notes");
            let made = Message::named(Kind::Notes, 0, 0, b"7");
            assert_eq!(self.nodes[node].done(7, &made), Some(Ok(())));
            assert!(!path.exists());
            (file, 0)
        })
    }

    /// Reads bytes of a file that is open, as they are now, all that are there.
    fn read_now(&mut self, node: usize, name: &str, offset: u64, count: u64) -> Outcome<String> {
        let mut found = Vec::new();
        self.notes_of(node);
        while to_u64(found.len()) < count {
            let had = to_u64(found.len());
            let bytes = [(offset + had).to_le_bytes(), (count - had).to_le_bytes()].concat();
            let name = self.name(name);
            let message = Message {
                second: &bytes,
                ..Message::named(Kind::Read, 0, 0, &name)
            };
            self.nodes[node].done(7, &message).expect("an answer")?;
            let (notes, _) = self.notes_of(node);
            let mut length = [0; 8];
            notes.read_exact_at(&mut length, 8).expect("length");
            let mut bytes = vec![0; usize::try_from(u64::from_le_bytes(length)).expect("small")];
            let at = to_u64(BUFFER_AT);
            notes.read_exact_at(&mut bytes, at).expect("bytes");
            if bytes.is_empty() {
                break;
            }
            found.extend(bytes);
        }
        Ok(String::from_utf8(found).expect("text"))
    }

    fn cut(&self, node: usize, name: &str, length: u64) -> Outcome {
        let (name, length) = (self.name(name), length.to_le_bytes());
        let message = Message {
            second: &length,
            ..Message::named(Kind::Cut, 0, 0, &name)
        };
        self.nodes[node].done(7, &message).expect("an answer")
    }

    /// Longer than clocks are apart.
    fn later() {
        std::thread::sleep(Duration::from_millis(20));
    }

    fn close(&self, node: usize, id: u32) {
        let message = Message::plain(Kind::Closed, id, 0);
        assert_eq!(self.nodes[node].done(7, &message), Some(Ok(())));
    }

    /// All nodes write one file in one opening.
    fn write_parts(&mut self, name: &str, texts: &[(usize, u64, &str)]) {
        let open = texts.iter().map(|(node, at, text)| {
            let id = self.open_part(*node, name, UPDATE).expect("open");
            (*node, id, *at, *text)
        });
        let open: Vec<_> = open.collect();
        for (node, id, at, text) in &open {
            self.put(*node, (*id, name), *at, text);
        }
        for (node, id, _, _) in open {
            self.close(node, id);
        }
    }
}

#[test]
fn several_nodes_write_one_file() {
    let mut job = Job::new("r.*;shared", 3);
    let first = job.open_part(0, "r.1", UPDATE).expect("first");
    let second = job.open_part(1, "r.1", CREATE).expect("second");
    job.put(0, (first, "r.1"), 0, "ab");
    job.put(1, (second, "r.1"), 2, "cdef");
    // The length is that of all, at once; what others write is read when all have closed it.
    for node in 0..3 {
        assert_eq!(job.size(node, "r.1"), Ok(6), "{node}");
    }
    assert_eq!(job.read(2, "r.1"), Err(Errno::BUSY));
    assert_eq!(job.open(2, "r.1", CREATE), Err(Errno::BUSY), "it has bytes");
    assert_eq!(job.say(2, Kind::Remove, 0, ["r.1", ""]), Err(Errno::BUSY));
    job.put(0, (first, "r.1"), 6, "g");
    job.close(0, first);
    assert_eq!(job.round(false), None, "one writes it still");
    job.close(1, second);
    for node in 0..3 {
        assert_eq!(job.read(node, "r.1"), Ok("abcdefg".to_owned()), "{node}");
        assert_eq!(job.size(node, "r.1"), Ok(7), "{node}");
        assert_eq!(job.listing(node), ["r.1"], "{node}");
    }
    let names = ["r.1.backstay-part.0", "r.1.backstay-part.1"];
    let parts = vec![
        of(&[(names[0], "ab\0\0\0\0g")]),
        of(&[(names[1], "\0\0cdef")]),
        of(&[]),
    ];
    assert_eq!(job.round(false), Some(parts));
    assert_eq!(job.round(false), None);
    // Nothing but a new file has a name of a part.
    assert_eq!(job.open(0, names[0], CREATE), Err(Errno::INVAL));
    let rename = job.say(0, Kind::Rename, 0, ["r.1", "r.2"]);
    assert_eq!(rename, Err(Errno::OPNOTSUPP));
    assert_eq!(job.open(0, "r.1", UPDATE | APPEND), Err(Errno::OPNOTSUPP));
}

#[test]
fn what_a_later_opening_wrote_goes_over_what_was_there() {
    let mut job = Job::new("r.*;shared", 2);
    job.write_parts("r.1", &[(0, 0, "aaaa"), (1, 4, "bbbb")]);
    let first = job.round(false).expect("a checkpoint");
    job.write_parts("r.1", &[(1, 1, "XX")]);
    for node in 0..2 {
        assert_eq!(job.read(node, "r.1"), Ok("aXXabbbb".to_owned()), "{node}");
    }
    let second = job.round(false).expect("another");
    assert_eq!(second[0], first[0], "what one node has is as it was");
    job.write_parts("r.1", &[(0, 2, "YY")]);
    assert_eq!(job.read(1, "r.1"), Ok("aXYYbbbb".to_owned()));
    assert!(job.round(false).is_some());
}

#[test]
fn what_two_nodes_wrote_and_not_the_same_is_no_file() {
    let mut job = Job::new("r.*;shared", 2);
    job.write_parts("r.1", &[(0, 0, "same"), (1, 0, "same")]);
    assert_eq!(job.read(1, "r.1"), Ok("same".to_owned()));
    assert!(job.round(false).is_some());
    let ids = [0, 1].map(|node| job.open_part(node, "r.2", UPDATE).expect("open"));
    let now = now_ns();
    job.put_when(0, (ids[0], "r.2"), (0, "this"), now);
    job.put_when(1, (ids[1], "r.2"), (3, "other"), now);
    // Who reads what one of them has reads it.
    assert_eq!(job.read_now(0, "r.2", 0, 3), Ok("thi".to_owned()));
    assert_eq!(job.read_now(1, "r.2", 0, 5), Err(Errno::IO));
    job.close(0, ids[0]);
    job.close(1, ids[1]);
    assert_eq!(job.read(0, "r.2"), Err(Errno::IO));
    assert_eq!(job.round(false), None);
    assert_eq!(job.round(false), None);
    // Written again by one, it is whole.
    job.write_parts("r.2", &[(1, 3, "S")]);
    assert_eq!(job.read(0, "r.2"), Ok("thiSther".to_owned()));
    assert!(job.round(false).is_some());
}

#[test]
fn a_byte_that_nobody_told_of_is_in_no_checkpoint() {
    let mut job = Job::new("r.*;shared", 2);
    let id = job.open_part(0, "r.1", UPDATE).expect("open");
    job.put(0, (id, "r.1"), 0, "told");
    let path = job.place(0, PARTS, "r.1.backstay-part.0");
    let file = File::options().write(true).open(path).expect("part");
    file.write_all_at(b"!", 9).expect("write");
    drop(file);
    job.close(0, id);
    assert_eq!(job.round(false), None);
    assert_eq!(job.read(1, "r.1"), Err(Errno::IO));
}

#[test]
fn a_file_is_removed_with_all_its_parts_and_made_anew() {
    let mut job = Job::new("r.*;shared", 3);
    job.write_parts("r.1", &[(0, 0, "aa"), (1, 2, "bb"), (2, 4, "cc")]);
    assert!(job.round(false).is_some());
    job.say(1, Kind::Remove, 0, ["r.1", ""]).expect("removed");
    for node in 0..3 {
        assert_eq!(job.read(node, "r.1"), Err(Errno::NOENT), "{node}");
        assert_eq!(job.size(node, "r.1"), Err(Errno::NOENT), "{node}");
        assert_eq!(job.listing(node), Vec::<String>::new(), "{node}");
        assert_eq!(job.open(node, "r.1", WRITE), Err(Errno::NOENT));
    }
    assert_eq!(job.round(false), None);
    // Another one of the name, of fewer nodes: nothing of the former is in it.
    job.write_parts("r.1", &[(2, 0, "z"), (0, 3, "y")]);
    assert_eq!(job.read(1, "r.1"), Ok("z\0\0y".to_owned()));
    let names = ["r.1.backstay-part.0", "r.1.backstay-part.2"];
    let parts = vec![
        of(&[(names[0], "\0\0\0y")]),
        of(&[]),
        of(&[(names[1], "z")]),
    ];
    assert_eq!(job.round(false), Some(parts));
    // Cut off as it is opened.
    let id = job.open_part(1, "r.1", CREATE).expect("open");
    job.put(1, (id, "r.1"), 1, "n");
    job.close(1, id);
    assert_eq!(job.read(0, "r.1"), Ok("\0n".to_owned()));
    let parts = vec![of(&[]), of(&[("r.1.backstay-part.1", "\0n")]), of(&[])];
    assert_eq!(job.round(false), Some(parts));
    job.say(0, Kind::Remove, 0, ["r.1", ""]).expect("removed");
    assert_eq!(job.round(true), Some(vec![of(&[]), of(&[]), of(&[])]));
    assert_eq!(job.round(true), None);
}

#[test]
fn what_was_written_later_in_an_opening_goes_over_what_was_there() {
    let mut job = Job::new("r.*;shared", 3);
    let ids = [0, 1, 2].map(|node| job.open_part(node, "r.1", UPDATE).expect("open"));
    for (turn, node) in [0, 1, 2, 1, 0, 2, 0].into_iter().enumerate() {
        let text = format!("{turn}{node}");
        job.put(node, (ids[node], "r.1"), 1 + to_u64(node) % 2, &text);
        Job::later();
    }
    // Of each byte that of the last turn which wrote it.
    let wanted = "\x00601".to_owned();
    for node in 0..3 {
        assert_eq!(
            job.read_now(node, "r.1", 0, 9),
            Ok(wanted.clone()),
            "{node}"
        );
    }
    job.put(1, (ids[1], "r.1"), 2, "!!");
    for (node, id) in ids.into_iter().enumerate() {
        job.close(node, id);
    }
    for node in 0..3 {
        assert_eq!(job.read(node, "r.1"), Ok("\x006!!".to_owned()), "{node}");
    }
    assert!(job.round(false).is_some());
}

#[test]
fn what_others_wrote_is_read_while_it_is_open() {
    let mut job = Job::new("r.*;shared", 3);
    job.write_parts("r.1", &[(0, 0, "aaaa"), (2, 10, "cc")]);
    let ids = [0, 1].map(|node| job.open_part(node, "r.1", UPDATE).expect("open"));
    job.put(1, (ids[1], "r.1"), 2, "bbbb");
    let all = "aabbbb\0\0\0\0cc";
    for node in 0..2 {
        assert_eq!(job.read_now(node, "r.1", 0, 99), Ok(all.to_owned()));
        assert_eq!(job.read_now(node, "r.1", 5, 6), Ok(all[5..11].to_owned()));
        assert_eq!(job.read_now(node, "r.1", 12, 6), Ok(String::new()));
    }
    // More stretches than are said at once, of more notes than there is room for, in more bytes than are brought at once.
    let mut wanted = all.as_bytes().to_vec();
    wanted.resize(1_500_001, 0);
    for at in (20..20_000).step_by(3) {
        let text = char::from(b'A' + u8::try_from(at % 26).expect("small"));
        job.put(0, (ids[0], "r.1"), at, &text.to_string());
        wanted[usize::try_from(at).expect("small")] = u8::try_from(text).expect("small");
    }
    job.put(1, (ids[1], "r.1"), 1_500_000, "z");
    wanted[1_500_000] = b'z';
    let wanted = String::from_utf8(wanted).expect("text");
    assert!(job.read_now(1, "r.1", 0, 2_000_000) == Ok(wanted.clone()));
    job.close(0, ids[0]);
    assert!(job.read_now(1, "r.1", 0, 2_000_000) == Ok(wanted.clone()));
    job.close(1, ids[1]);
    assert!(job.read(2, "r.1") == Ok(wanted));
    assert!(job.round(false).is_some());
}

#[test]
fn a_file_is_cut_on_all_nodes() {
    let mut job = Job::new("r.*;shared", 3);
    job.write_parts("r.1", &[(0, 0, "aaaa"), (1, 4, "bbbb"), (2, 8, "cc")]);
    let first = job.round(false).expect("a checkpoint");
    // Node 2 does not open it.
    let ids = [0, 1].map(|node| job.open_part(node, "r.1", UPDATE).expect("open"));
    assert_eq!(job.cut(0, "r.1", 6), Ok(()));
    for node in 0..3 {
        assert_eq!(job.size(node, "r.1"), Ok(6), "{node}");
    }
    // What was written since it is open goes, too; what is written then stays.
    job.put(1, (ids[1], "r.1"), 5, "xyz");
    assert_eq!(job.cut(0, "r.1", 7), Ok(()));
    assert_eq!(job.read_now(0, "r.1", 0, 9), Ok("aaaabxy".to_owned()));
    job.put(1, (ids[1], "r.1"), 8, "!");
    assert_eq!(job.read_now(0, "r.1", 0, 9), Ok("aaaabxy\0!".to_owned()));
    job.close(0, ids[0]);
    job.close(1, ids[1]);
    for node in 0..3 {
        let read = job.read(node, "r.1");
        assert_eq!(read, Ok("aaaabxy\0!".to_owned()), "{node}");
    }
    let second = job.round(false).expect("another");
    assert_eq!(second[0], first[0], "what is before the cut stays");
    // Nothing but its length.
    assert_eq!(second[2]["r.1.backstay-part.2"], "\0\0\0\0\0\0");
    assert_eq!(job.round(false), None);
}

#[test]
fn what_is_cut_on_some_nodes_only_is_in_no_checkpoint() {
    let mut job = Job::new("r.*;shared", 2);
    let ids = [0, 1].map(|node| job.open_part(node, "r.1", UPDATE).expect("open"));
    job.put(0, (ids[0], "r.1"), 0, "aaaa");
    job.put(1, (ids[1], "r.1"), 4, "bbbb");
    job.endpoints[1].shut_down();
    assert_eq!(job.cut(0, "r.1", 2), Err(Errno::IO));
    assert_eq!(job.read_now(0, "r.1", 0, 8), Err(Errno::IO));
}

#[test]
fn a_part_whose_writer_died_is_in_no_checkpoint() {
    let mut job = Job::new("r.*;shared", 2);
    job.write_parts("r.1", &[(0, 0, "aa"), (1, 2, "bb")]);
    let kept = job.round(false);
    let id = job.open_part(0, "r.1", UPDATE).expect("open");
    job.put(0, (id, "r.1"), 0, "x");
    let failed = Message::plain(Kind::Closed, id, 1);
    assert_eq!(job.nodes[0].done(7, &failed), Some(Ok(())));
    assert_eq!(job.read(1, "r.1"), Err(Errno::IO));
    assert_eq!(job.round(false), None);
    assert!(kept.is_some());
}

fn of(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    files.iter().map(pair).collect()
}

#[test]
fn what_one_node_closed_all_see() {
    let mut job = Job::new("r.*", 3);
    job.write(1, "r.1", "one");
    for node in 0..3 {
        assert_eq!(job.size(node, "r.1"), Ok(3));
        assert_eq!(job.read(node, "r.1"), Ok("one".to_owned()), "{node}");
        assert_eq!(job.size(node, "r.2"), Err(Errno::NOENT));
        assert_eq!(job.listing(node), ["r.1"]);
    }
    // Not what was brought before.
    job.write(1, "r.1", "another");
    job.write(0, "r.2", "");
    for node in 0..3 {
        assert_eq!(job.size(node, "r.1"), Ok(7));
        assert_eq!(job.read(node, "r.1"), Ok("another".to_owned()), "{node}");
        assert_eq!(job.read(node, "r.2"), Ok(String::new()), "{node}");
        assert_eq!(job.listing(node), ["r.1", "r.2"]);
    }
    job.say(2, Kind::Remove, 0, ["r.1", ""]).expect("removed");
    for node in 0..3 {
        assert_eq!(job.read(node, "r.1"), Err(Errno::NOENT), "{node}");
        assert_eq!(job.listing(node), ["r.2"]);
    }
    let twice = job.say(2, Kind::Remove, 0, ["r.1", ""]);
    assert_eq!(twice, Err(Errno::NOENT));
}

#[test]
fn one_node_writes_a_name_at_a_time() {
    let mut job = Job::new("r.*", 2);
    job.open(0, "r.1", CREATE).expect("open");
    let first = job.ids;
    assert_eq!(job.open(1, "r.1", WRITE), Err(Errno::BUSY));
    fs::write(job.place(0, LIVE, "r.1"), "first").expect("write");
    job.ids = first;
    job.say(0, Kind::Closed, 0, ["", ""]).expect("close");
    job.ids = 10;
    assert_eq!(job.open(1, "r.1", CREATE | EXCLUSIVE), Err(Errno::EXIST));
    // With its bytes, since they are not cut off.
    job.open(1, "r.1", WRITE).expect("open");
    let live = job.place(1, LIVE, "r.1");
    assert_eq!(fs::read_to_string(&live).expect("brought"), "first");
    assert!(!job.place(0, LIVE, "r.1").exists());
    fs::write(live, "second").expect("write");
    job.say(1, Kind::Closed, 0, ["", ""]).expect("close");
    assert_eq!(job.read(0, "r.1"), Ok("second".to_owned()));
}

#[test]
fn a_copy_to_be_read_is_never_one_to_be_seen() {
    let mut job = Job::new("r.*", 2);
    job.write(0, "r.1", "first");
    job.say(1, Kind::Fetch, 0, ["r.1", ""]).expect("fetched");
    // Before it is opened, another process looks at what is newer.
    job.write(0, "r.1", "second");
    assert_eq!(job.size(1, "r.1"), Ok(6));
    let opened = fs::read_to_string(job.place(1, NEAR, "r.1"));
    assert_eq!(opened.expect("opened"), "first");
    assert_eq!(job.read(1, "r.1"), Ok("second".to_owned()));
}

#[test]
fn a_name_that_is_made_anew_shows_nothing_of_the_former_file() {
    let mut job = Job::new("r.*", 2);
    job.write(0, "r.1", "former");
    assert_eq!(job.read(1, "r.1"), Ok("former".to_owned()));
    assert_eq!(job.size(1, "r.1"), Ok(6));
    job.say(0, Kind::Remove, 0, ["r.1", ""]).expect("removed");
    job.open(0, "r.1", CREATE).expect("open");
    fs::write(job.place(0, LIVE, "r.1"), "").expect("made");
    assert_eq!(job.size(1, "r.1"), Ok(0));
    assert_eq!(job.read(1, "r.1"), Ok(String::new()));
}

#[test]
fn large_files_and_holes_are_brought() {
    let mut job = Job::new("r.*", 2);
    job.open(0, "r.1", CREATE).expect("open");
    let file = File::create(job.place(0, LIVE, "r.1")).expect("file");
    let length = to_u64(PIECE_BYTES) * 2 + 5;
    file.set_len(length).expect("length");
    file.write_all_at(b"at the end", length - 10)
        .expect("write");
    job.say(0, Kind::Closed, 0, ["", ""]).expect("close");
    job.say(1, Kind::Fetch, 0, ["r.1", ""]).expect("fetched");
    let far = job.place(1, NEAR, "r.1");
    let (here, there) = (fs::read(&far), fs::read(job.place(0, LIVE, "r.1")));
    assert_eq!(here.expect("here"), there.expect("there"));
    let about = fs::metadata(far).expect("about");
    assert!(about.blocks() * 512 < 1 << 20, "{}", about.blocks());
}

#[test]
fn a_set_is_kept_whole_over_nodes_until_another_is() {
    let mut job = Job::new("r.{step}.{rank}", 2);
    job.write(0, "r.1.0", "a");
    assert_eq!(job.round(false), None);
    job.write(1, "r.1.1", "b");
    let first = vec![of(&[("r.1.0", "a")]), of(&[("r.1.1", "b")])];
    assert_eq!(job.round(false), Some(first));
    // Removed by another node than that which has it: it stays until the next set is whole.
    job.say(0, Kind::Remove, 0, ["r.1.1", ""]).expect("removed");
    job.say(0, Kind::Remove, 0, ["r.1.0", ""]).expect("removed");
    job.write(0, "r.2.0", "c");
    assert_eq!(job.round(false), None);
    job.write(1, "r.2.1", "d");
    let second = vec![of(&[("r.2.0", "c")]), of(&[("r.2.1", "d")])];
    assert_eq!(job.round(false), Some(second));
    assert_eq!(job.round(true), None);
}

#[test]
fn what_is_removed_after_it_was_reported_is_in_what_is_decided() {
    let mut job = Job::new("r.{step}.{rank}", 2);
    job.write(0, "r.1.0", "a");
    job.write(1, "r.1.1", "b");
    // In the middle of a round.
    let first = job.round_with(false, |job| {
        job.say(0, Kind::Remove, 0, ["r.1.1", ""]).expect("removed");
        job.write(0, "r.1.0", "again");
    });
    let whole = vec![of(&[("r.1.0", "a")]), of(&[("r.1.1", "b")])];
    assert_eq!(first, Some(whole));
    // The set is not whole any more, so what is written anew waits.
    assert_eq!(job.round(false), None);
    // Removed before the round, it is none of a set.
    job.write(0, "r.2.0", "c");
    job.say(1, Kind::Remove, 0, ["r.2.0", ""]).expect("removed");
    job.write(1, "r.2.1", "d");
    assert_eq!(job.round(false), None);
    assert_eq!(job.listing(0), ["r.1.0", "r.2.1"]);
}

#[test]
fn a_file_that_moves_to_another_node_is_in_a_checkpoint_once() {
    let mut job = Job::new("r.*", 2);
    job.write(0, "r.1", "old");
    let first = vec![of(&[("r.1", "old")]), of(&[])];
    assert_eq!(job.round(false), Some(first));
    job.open(1, "r.1", CREATE).expect("open");
    // As long as the new one is not complete the old one is what is kept.
    job.write(0, "r.2", "other");
    let ids = job.ids;
    let kept = vec![of(&[("r.1", "old"), ("r.2", "other")]), of(&[])];
    assert_eq!(job.round(false), Some(kept));
    job.ids = ids - 1;
    fs::write(job.place(1, LIVE, "r.1"), "new").expect("write");
    job.say(1, Kind::Closed, 0, ["", ""]).expect("close");
    job.ids = ids;
    let moved = vec![of(&[("r.2", "other")]), of(&[("r.1", "new")])];
    assert_eq!(job.round(false), Some(moved));
}

#[test]
fn names_are_renamed_over_those_of_other_nodes() {
    let mut job = Job::new("*", 3);
    job.write(0, "latest", "1");
    let first = vec![of(&[("latest", "1")]), of(&[]), of(&[])];
    assert_eq!(job.round(false), Some(first));
    job.write(1, "new", "2");
    job.say(1, Kind::Rename, 0, ["new", "latest"])
        .expect("renamed");
    for node in 0..3 {
        assert_eq!(job.read(node, "latest"), Ok("2".to_owned()), "{node}");
        assert_eq!(job.read(node, "new"), Err(Errno::NOENT), "{node}");
    }
    let second = vec![of(&[]), of(&[("latest", "2")]), of(&[])];
    assert_eq!(job.round(false), Some(second));
    // A node renames what another one has.
    job.say(2, Kind::Rename, 0, ["latest", "first"])
        .expect("renamed");
    for node in 0..3 {
        assert_eq!(job.listing(node), ["first"], "{node}");
        assert_eq!(job.read(node, "first"), Ok("2".to_owned()), "{node}");
    }
    let third = vec![of(&[]), of(&[]), of(&[("first", "2")])];
    let mut last = job.round(false);
    last = job.round(true).or(last);
    assert_eq!(last, Some(third));
    let none = job.say(0, Kind::Rename, 0, ["none", "other"]);
    assert_eq!(none, Err(Errno::NOENT));
    assert_eq!(job.routes.rules.len(), 1);
}

#[test]
fn an_agent_that_is_gone_is_an_error_of_the_call() {
    let mut job = Job::new("r.*", 2);
    job.write(1, "r.1", "one");
    job.endpoints[1].shut_down();
    assert_eq!(job.read(0, "r.1"), Err(Errno::IO));
    // The first has the index: nobody is asked for what is here.
    job.write(0, "r.2", "two");
    assert_eq!(job.read(0, "r.2"), Ok("two".to_owned()));
    job.endpoints[0].shut_down();
    assert_eq!(job.open(1, "r.3", CREATE), Err(Errno::IO));
    assert!(!job.place(1, LIVE, "r.3").exists());
}
