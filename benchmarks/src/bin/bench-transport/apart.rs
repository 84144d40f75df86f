// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what reads from another process cost both sides: over TCP, over libfabric, and beside them what the
//! kernel can do. In: a file. Out: figures.
//! Invariants: the owner is a process of its own, so that its CPU time is known; all ways read the same bytes, in
//! turns.

use crate::{Cost, PIECE, WITHIN, measure};
use backstay_base::io::file::FileDevice;
use backstay_bench::figures::{Better, Figure, Figures, Wanted, columns, median, say, short};
use backstay_bench::job::cpu_seconds;
use backstay_bench::{Outcome, size_f64};
use backstay_format::FingerprintKey;
use backstay_net::{
    Described, Endpoint, Exposed, ExposureId, Peer, Secret, Span, TcpEndpoint, TcpOptions,
    Transport, Transports,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What the owner's process is started with.
pub(crate) const OWNER: &str = "--owner";
/// The secret of both processes.
const SECRET: [u8; 32] = [1; 32];
const IN_MEMORY: ExposureId = ExposureId([1; 16]);
const IN_FILE: ExposureId = ExposureId([2; 16]);
const PROVIDERS: [Option<&str>; 3] = [None, Some("tcp;ofi_rxm"), Some("shm")];

const TCP: Wanted = Wanted::at_most(
    "transport.apart.tcp",
    "TCP / plain socket copy, wall: 0.95 of its rate",
    "ratio",
    1.053,
);
const SHM: Wanted = Wanted::at_most(
    "transport.apart.shm.over_process_vm_readv",
    "libfabric shm / process_vm_readv and the same check, wall: 0.9 of its rate",
    "ratio",
    1.111,
);
const TCP_OWNER: Wanted = Wanted::at_most(
    "transport.apart.tcp.owner_over_pieces",
    "CPU of the owner, TCP bare / TCP in pieces under a MAC, as all reads were before",
    "ratio",
    0.6,
);
const SHM_OWNER: Wanted = Wanted::at_most(
    "transport.apart.shm.owner",
    "CPU of the owner, libfabric shm / plain socket copy",
    "ratio",
    0.01,
);

fn endpoint(name: &str, provider: Option<&str>) -> Outcome<TcpEndpoint> {
    let mut options = TcpOptions::new(name, "bench", Secret::from_bytes(SECRET));
    options.listen = Some(([127, 0, 0, 1], 0).into());
    options.same_node = false;
    if let Some(provider) = provider {
        options.transports = Transports {
            transport: Transport::Libfabric,
            provider: Some(provider.to_owned()),
        };
    }
    Ok(TcpEndpoint::open(options)?)
}

/// The process that has the bytes of the file at `path`: prints where, and ends with its input.
pub(crate) fn own(path: &Path) -> Outcome<()> {
    let bytes = Arc::new(std::fs::read(path)?);
    let device = Arc::new(FileDevice::open_read_only(path)?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut line = format!("{} {}", listener.local_addr()?, bytes.as_ptr().addr());
    let mut endpoints = Vec::new();
    for provider in PROVIDERS {
        let endpoint = endpoint("owner", provider)?;
        endpoint.expose(IN_MEMORY, Exposed::Memory(Arc::clone(&bytes)));
        endpoint.expose(IN_FILE, Exposed::Device(Arc::<FileDevice>::clone(&device)));
        // What it has used of the processor so far.
        endpoint.serve(Arc::new(|_: &[u8], _: Duration| {
            Ok(cpu_seconds().to_bits().to_le_bytes().to_vec())
        }));
        line = format!("{line} {}", endpoint.address());
        endpoints.push(endpoint);
    }
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sent = stream.and_then(|mut stream| stream.write_all(&bytes));
            if sent.is_err() {
                return;
            }
        }
    });
    writeln!(std::io::stdout(), "{line}")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Owner {
    child: Child,
    input: Option<ChildStdin>,
    plain: String,
    start: usize,
    peers: Vec<Peer>,
}

impl Owner {
    fn start(path: &Path) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(OWNER).arg(path);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("no output of the owner")?;
        BufReader::new(output).read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        Ok(Self {
            input: child.stdin.take(),
            child,
            plain: words.next().ok_or("the owner said nothing")?,
            start: words.next().ok_or("no address")?.parse()?,
            peers: words.map(|address| Peer::new("owner", address)).collect(),
        })
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.input.take());
        drop(self.child.wait());
    }
}

/// Reads memory of process `pid` at `start`, and hashes it where `check` says so.
fn copy_of_process(pid: u32, start: usize, into: &mut [u8], check: bool) -> Outcome<()> {
    let pid = i32::try_from(pid)?;
    let mut fingerprinter = FingerprintKey::derive(&SECRET).begin();
    let mut done = 0;
    while done < into.len() {
        let end = into.len().min(done + PIECE);
        let piece = &mut into[done..end];
        let local = libc::iovec {
            iov_base: piece.as_mut_ptr().cast(),
            iov_len: piece.len(),
        };
        let remote = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(start + done),
            iov_len: piece.len(),
        };
        // SAFETY: the kernel writes no more than the piece.
        let count =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        let count = usize::try_from(count).map_err(|_| std::io::Error::last_os_error())?;
        if check {
            fingerprinter.update(&piece[..count]);
        }
        done += count;
    }
    std::hint::black_box(fingerprinter.finish());
    Ok(())
}

type Run<'a> = Box<dyn FnMut(&mut [u8]) -> Outcome<()> + 'a>;

/// Identifier, words, and what moves the bytes.
type Way<'a> = (&'static str, &'static str, Run<'a>);

fn described(
    reader: &TcpEndpoint,
    peer: &Peer,
    id: ExposureId,
    length: usize,
) -> Outcome<Described> {
    let length = backstay_format::width::to_u64(length);
    let span = Span { offset: 0, length };
    let described = reader.describe(peer, id, (&[span], false), WITHIN)?;
    Ok(described
        .into_iter()
        .next()
        .ok_or("nothing was described")?)
}

fn ways<'a>(owner: &'a Owner, readers: &'a [TcpEndpoint], length: usize) -> Outcome<Vec<Way<'a>>> {
    let [tcp, rxm, shm] = readers else {
        return Err("an endpoint of each provider".into());
    };
    let (pid, start) = (owner.child.id(), owner.start);
    let read = |reader: &'a TcpEndpoint, place: usize, id| -> Outcome<Run<'a>> {
        let peer = &owner.peers[place];
        let range = described(reader, peer, id, length)?;
        Ok(Box::new(move |into: &mut [u8]| {
            Ok(reader.read(peer, &range, into, WITHIN)?)
        }))
    };
    let plain = |into: &mut [u8]| {
        let mut stream = TcpStream::connect(&owner.plain)?;
        Ok(stream.read_exact(into)?)
    };
    let vm = move |check| move |into: &mut [u8]| copy_of_process(pid, start, into, check);
    Ok(vec![
        ("plain", "plain socket copy", Box::new(plain)),
        (
            "pieces",
            "TCP, in pieces under a MAC",
            read(tcp, 0, IN_FILE)?,
        ),
        ("tcp", "TCP, bare, and check", read(tcp, 0, IN_MEMORY)?),
        (
            "rxm",
            "libfabric tcp;ofi_rxm, and check",
            read(rxm, 1, IN_MEMORY)?,
        ),
        ("shm", "libfabric shm, and check", read(shm, 2, IN_MEMORY)?),
        ("vm", "process_vm_readv", Box::new(vm(false))),
        (
            "vm.check",
            "process_vm_readv, and check",
            Box::new(vm(true)),
        ),
    ])
}

/// Measures all ways from a process of its own to this one.
pub(crate) fn run(path: &Path, bytes: &[u8], rounds: usize, figures: &mut Figures) -> Outcome<()> {
    let readers = PROVIDERS
        .iter()
        .map(|provider| endpoint("reader", *provider));
    let readers = readers.collect::<Outcome<Vec<_>>>()?;
    let owner = Owner::start(path)?;
    let mut ways = ways(&owner, &readers, bytes.len())?;
    let used = || -> Outcome<f64> {
        let answer = readers[0].call(&owner.peers[0], &[], WITHIN)?;
        Ok(f64::from_bits(u64::from_le_bytes(answer[..].try_into()?)))
    };
    let mut into = vec![1_u8; bytes.len()];
    let key = FingerprintKey::derive(&SECRET);
    let wanted = key.of(bytes);
    let mut costs: Vec<Vec<(Cost, f64)>> = vec![Vec::new(); ways.len()];
    for round in 0..=rounds {
        for ((id, _, run), costs) in ways.iter_mut().zip(&mut costs) {
            let before = used()?;
            let cost = measure(|| run(&mut into))?;
            let owners = used()? - before;
            if key.of(&into) != wanted {
                return Err(format!("{id}: other bytes arrived").into());
            }
            // The first round warms up.
            if round > 0 {
                costs.push((cost, owners));
            }
        }
    }
    for (place, reader) in readers.iter().enumerate() {
        let [over, past] = reader.moved_bytes();
        if (place == 0) == (past > 0) || (place > 0 && over > 0) {
            return Err(format!("{}: {over} bytes went over TCP", reader.transport()).into());
        }
    }
    report(&ways, &costs, bytes.len(), figures)
}

fn report(
    ways: &[Way<'_>],
    costs: &[Vec<(Cost, f64)>],
    length: usize,
    figures: &mut Figures,
) -> Outcome<()> {
    let of = |id: &str| -> Outcome<&Vec<(Cost, f64)>> {
        let place = ways.iter().position(|(known, ..)| *known == id);
        Ok(place
            .and_then(|place| costs.get(place))
            .ok_or("no such way")?)
    };
    let wall = |one: &[(Cost, f64)], other: &[(Cost, f64)]| -> Vec<f64> {
        let pairs = one.iter().zip(other);
        pairs
            .map(|((one, _), (other, _))| one[0] / other[0])
            .collect()
    };
    let owners = |one: &[(Cost, f64)], other: &[(Cost, f64)]| -> Vec<f64> {
        let pairs = one.iter().zip(other);
        pairs.map(|((_, one), (_, other))| one / other).collect()
    };
    let head = [
        "from another process",
        "GB/s",
        "wall / plain",
        "owner's CPU / plain",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let plain = of("plain")?;
    for ((id, what, _), costs) in ways.iter().zip(costs) {
        let rates: Vec<f64> = costs
            .iter()
            .map(|(c, _)| size_f64(length) / c[0] / 1e9)
            .collect();
        let (walls, used) = (wall(costs, plain), owners(costs, plain));
        let shown = [&rates, &walls, &used].map(|values| short(median(values).unwrap_or(0.0)));
        rows.push([vec![(*what).to_owned()], shown.to_vec()].concat());
        let name = |part: &str| format!("transport.apart.{id}{part}");
        figures.push(match *id {
            "tcp" => Figure::of(&TCP, &walls),
            _ => Figure::shown(
                name(""),
                format!("{what}, wall"),
                "ratio",
                Better::Lower,
                &walls,
            ),
        });
        figures.push(if *id == "shm" {
            Figure::of(&SHM_OWNER, &used)
        } else {
            let what = format!("{what}, CPU of the owner");
            Figure::shown(name(".owner"), what, "ratio", Better::Lower, &used)
        });
    }
    figures.push(Figure::of(&SHM, &wall(of("shm")?, of("vm.check")?)));
    figures.push(Figure::of(&TCP_OWNER, &owners(of("tcp")?, of("pieces")?)));
    say(&columns(&rows));
    Ok(())
}
