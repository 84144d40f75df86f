// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A shell whose calls are told, with an agent that agrees to all and writes down what it hears.
#![expect(clippy::expect_used, reason = "a test that cannot go on has failed")]

use backstay_calls::{Calls, check, enter};
use backstay_route::message::{BYTES_MAX, Kind, Message};
use backstay_route::table::{Table, split};
use backstay_route::{LIVE, SOCKET, TABLE_FILE};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with,
};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const FOLDER: &str = "BACKSTAY_TEST_TOLD_FOLDER";
const SCRIPT: &str = "BACKSTAY_TEST_TOLD_SCRIPT";

type Heard = Vec<(Kind, i32, String)>;

/// What was heard, and how many connections there are.
type Said = Arc<Mutex<(Heard, usize)>>;

/// An agent of `folder`.
fn agent(folder: &Path) -> Said {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("socket");
    bind(
        &socket,
        &SocketAddrUnix::new(folder.join(SOCKET)).expect("address"),
    )
    .expect("bound");
    listen(&socket, 16).expect("listens");
    let said = Said::default();
    let all = Arc::clone(&said);
    std::thread::spawn(move || {
        while let Ok(connection) = accept(&socket) {
            let all = Arc::clone(&all);
            all.lock().expect("said").1 += 1;
            std::thread::spawn(move || {
                let mut buffer = vec![0u8; BYTES_MAX];
                while let Ok((length @ 1.., _)) =
                    recv(&connection, &mut buffer[..], RecvFlags::empty())
                {
                    let message = Message::decode(&buffer[..length]).expect("message");
                    let name = String::from_utf8_lossy(message.first);
                    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
                    let mut all = all.lock().expect("said");
                    all.0.push((message.kind, message.value, name));
                    drop(all);
                    if [Kind::Open, Kind::Remove, Kind::Rename].contains(&message.kind) {
                        send(&connection, &[0; 4], SendFlags::NOSIGNAL).expect("answered");
                    }
                }
                all.lock().expect("said").1 -= 1;
            });
        }
    });
    said
}

/// Becomes the script, in the process that `told` starts.
#[test]
fn becomes_the_script() {
    let (Some(folder), Some(script)) = (std::env::var_os(FOLDER), std::env::var_os(SCRIPT)) else {
        return;
    };
    enter(Path::new(&folder)).expect("told");
    let error = Command::new("sh").arg("-c").arg(script).exec();
    panic!("{error}");
}

/// Runs a script in a folder of which out/r.* is routed; what it printed, what the agent heard, and where the files are.
fn told(script: &str) -> (String, Heard, tempfile::TempDir, PathBuf) {
    let all = tempfile::tempdir().expect("folder");
    let here = all.path().canonicalize().expect("real");
    let folder = here.join("agent");
    let live = folder.join(LIVE).join("0");
    fs::create_dir_all(&live).expect("live");
    fs::create_dir(here.join("out")).expect("out");
    let mut table = Table::default();
    let (below, rest) = split(here.join("out/r.*").as_os_str().as_encoded_bytes());
    table.add(&below, &rest).expect("pattern");
    fs::write(folder.join(TABLE_FILE), table.encode()).expect("table");
    let said = agent(&folder);
    let calls = Calls::serve(&folder).expect("serves");
    let own = std::env::current_exe().expect("own name");
    let mut command = Command::new(own);
    command.args(["--exact", "becomes_the_script", "--nocapture"]);
    command
        .env(FOLDER, &folder)
        .env(SCRIPT, script)
        .current_dir(&here);
    let output = command.output().expect("output");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stderr);
    // Connections end a little later.
    let limit = Instant::now() + Duration::from_secs(5);
    let is_over = |said: &Said| said.lock().expect("said").1 == 0;
    while !is_over(&said) && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(calls);
    let said = said.lock().expect("said").0.clone();
    (text, said, all, live)
}

#[test]
fn what_a_shell_writes_is_in_memory_and_the_agent_hears_of_it() {
    check().expect("calls can be told here");
    let (text, said, _all, live) = told(
        "echo one >out/r.1; cat out/r.1; echo two >plain; exec 3>out/r.2; echo more >&3; exec 3>&-; \
         sleep 0.2; ls out; test -e out/r.1 && echo there; test -e out/r.3 || echo none; exit 5",
    );
    assert!(
        text.contains("one\n") && text.contains("r.1\nr.2\n"),
        "{text}\n{said:?}"
    );
    assert!(text.contains("there\nnone\n"), "{text}");
    let read = |name: &str| fs::read_to_string(live.join(name)).expect(name);
    assert_eq!(
        (read("r.1"), read("r.2")),
        ("one\n".to_owned(), "more\n".to_owned())
    );
    let heard = |kind: Kind| -> Vec<&str> {
        let of = said.iter().filter(|(one, ..)| *one == kind);
        of.map(|(_, _, name)| &name[..]).collect()
    };
    assert_eq!(heard(Kind::Open), ["r.1", "r.2"], "{said:?}");
    assert_eq!(heard(Kind::Closed).len(), 2, "{said:?}");
    let last = said.last().map(|(kind, status, _)| (*kind, *status));
    assert_eq!(last, Some((Kind::Bye, 5)), "{said:?}");
}

#[test]
fn a_death_tells_nothing() {
    let (_, said, _all, live) = told("exec 3>out/r.1; echo one >&3; kill -9 $$");
    assert_eq!(fs::read_to_string(live.join("r.1")).expect("r.1"), "one\n");
    let closed = |(kind, ..): &(Kind, i32, String)| *kind == Kind::Closed || *kind == Kind::Bye;
    assert!(!said.iter().any(closed), "{said:?}");
}
