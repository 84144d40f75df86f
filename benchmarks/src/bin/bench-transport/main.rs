// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a pull costs beside a plain socket copy of the same bytes over loopback, and what the ways cost
//! in which an owner could send a file: read and send, send from a mapping, sendfile. Each hashes.
#![expect(
    unsafe_code,
    reason = "maps the file that is sent, reads memory of a process"
)]

mod apart;

use backstay::format::Digester;
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_bench::figures::{Better, Figure, Figures, Wanted, columns, median, say, short};
use backstay_bench::job::cpu_seconds;
use backstay_bench::options::Options;
use backstay_bench::{MIB, Outcome, size_f64};
use backstay_net::{Endpoint, Exposed, ExposureId, Secret, TcpEndpoint, TcpOptions};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PIECE: usize = 256 << 10;
const WITHIN: Duration = Duration::from_secs(60);

/// What a pull from a store in memory has to reach.
const PULL: Wanted = Wanted::at_most(
    "transport.pull.file",
    "pull of a tmpfs file / plain socket copy, wall",
    "ratio",
    1.5,
);

/// Wall and CPU seconds of one transfer.
type Cost = [f64; 2];

/// Moves the bytes to where they are wanted.
type Run<'a> = Box<dyn FnMut(&mut [u8]) -> Outcome<()> + 'a>;

/// One way to move the bytes.
struct Way<'a> {
    id: &'static str,
    what: &'static str,
    run: Run<'a>,
}

fn measure(work: impl FnOnce() -> Outcome<()>) -> Outcome<Cost> {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    work()?;
    Ok([begun.elapsed().as_secs_f64(), cpu_seconds() - cpu])
}

/// A pair of connected sockets on loopback.
fn pair() -> Outcome<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

/// `send` on one thread, a plain receiver here, which hashes where `hash` says so.
fn copy(
    into: &mut [u8],
    hash: bool,
    send: impl FnOnce(&mut TcpStream) -> Outcome<()> + Send,
) -> Outcome<()> {
    let (mut from, mut to) = pair()?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || send(&mut from));
        let (mut digester, mut filled) = (Digester::new(), 0);
        while filled < into.len() {
            let end = into.len().min(filled + PIECE);
            let count = to.read(&mut into[filled..end])?;
            if count == 0 {
                return Err("the sender ended".into());
            }
            if hash {
                digester.update(&into[filled..filled + count]);
            }
            filled += count;
        }
        std::hint::black_box(digester.finish());
        sender.join().map_err(|_| "the sender panicked")?
    })
}

/// A file mapped for reading.
struct Mapping {
    address: *mut std::ffi::c_void,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize) -> Outcome<Self> {
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a new mapping at an address the kernel chooses.
        let address = unsafe { mmap(std::ptr::null_mut(), length, access, flags, file, 0)? };
        Ok(Self { address, length })
    }
    /// The part at `offset`, populated by one call.
    fn piece(&self, offset: usize, length: usize) -> &[u8] {
        // SAFETY: the range lies in the mapping of a file that nobody shortens.
        unsafe {
            let place = self.address.cast::<u8>().add(offset);
            let _populated = madvise(place.cast(), length, Advice::LinuxPopulateRead);
            std::slice::from_raw_parts(place, length)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the mapping any more.
        let _unmapped = unsafe { munmap(self.address, self.length) };
    }
}

fn read_and_send(file: &File, length: usize, stream: &mut TcpStream) -> Outcome<()> {
    let (mut buffer, mut digester) = (vec![0; PIECE], Digester::new());
    for offset in (0..length).step_by(PIECE) {
        file.read_exact_at(&mut buffer, backstay::format::width::to_u64(offset))?;
        digester.update(&buffer);
        stream.write_all(&buffer)?;
    }
    std::hint::black_box(digester.finish());
    Ok(())
}

fn map_and_send(file: &File, length: usize, stream: &mut TcpStream) -> Outcome<()> {
    let (mapping, mut digester) = (Mapping::new(file, length)?, Digester::new());
    for offset in (0..length).step_by(PIECE) {
        let piece = mapping.piece(offset, PIECE);
        digester.update(piece);
        stream.write_all(piece)?;
    }
    std::hint::black_box(digester.finish());
    Ok(())
}

fn map_and_sendfile(file: &File, length: usize, stream: &TcpStream) -> Outcome<()> {
    let (mapping, mut digester) = (Mapping::new(file, length)?, Digester::new());
    let (mut offset, end) = (0_u64, backstay::format::width::to_u64(length));
    while offset < end {
        let start = backstay::format::width::to_usize(offset);
        digester.update(mapping.piece(start, PIECE.min(length - start)));
        let mut left = PIECE.min(length - start);
        while left > 0 {
            left -= rustix::fs::sendfile(stream, file, Some(&mut offset), left)?;
        }
    }
    std::hint::black_box(digester.finish());
    Ok(())
}

fn endpoint(name: &str, same_node: bool) -> Outcome<TcpEndpoint> {
    let mut options = TcpOptions::new(name, "bench", Secret::from_bytes([1; 32]));
    options.listen = Some(([127, 0, 0, 1], 0).into());
    options.same_node = same_node;
    Ok(TcpEndpoint::open(options)?)
}

fn main() -> Outcome<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let [word, path] = &words[..]
        && word == apart::OWNER
    {
        return apart::own(path.as_ref());
    }
    let options = Options::from_arguments()?;
    let (length, rounds) = if options.quick {
        (16 * MIB, 3)
    } else {
        (128 * MIB, 15)
    };
    let path = options
        .path
        .join(format!("bench-transport-{}", std::process::id()));
    let result = run(&path, length, rounds);
    std::fs::remove_file(&path)?;
    result
}

fn run(path: &std::path::Path, length: usize, rounds: usize) -> Outcome<()> {
    let bytes: Arc<Vec<u8>> = Arc::new(backstay_testkit::oracle::noise(1, length));
    let device = Arc::new(FileDevice::open(path, true)?);
    device.reserve(backstay::format::width::to_u64(length))?;
    device.write_at(&bytes, 0)?;
    let file = File::open(path)?;
    let owner = endpoint("owner", true)?;
    let (sockets, direct) = (endpoint("sockets", false)?, endpoint("direct", true)?);
    let [in_memory, in_file] = [ExposureId([1; 16]), ExposureId([2; 16])];
    owner.expose(in_memory, Exposed::Memory(Arc::clone(&bytes)));
    owner.expose(in_file, Exposed::Device(device));
    let peer = owner.peer();
    let pull = |from: &TcpEndpoint, id, into: &mut [u8]| -> Outcome<()> {
        from.pull(&peer, id, 0, into, WITHIN)?;
        Ok(())
    };
    let way = |id, what, run| Way { id, what, run };
    let mut ways = [
        way(
            "plain",
            "plain socket copy",
            Box::new(|into: &mut [u8]| copy(into, false, |stream| Ok(stream.write_all(&bytes)?)))
                as Run<'_>,
        ),
        way(
            "raw.read",
            "read, hash, send | receive, hash",
            Box::new(|into: &mut [u8]| {
                copy(into, true, |stream| read_and_send(&file, length, stream))
            }),
        ),
        way(
            "raw.map",
            "map, hash, send | receive, hash",
            Box::new(|into: &mut [u8]| {
                copy(into, true, |stream| map_and_send(&file, length, stream))
            }),
        ),
        way(
            "raw.sendfile",
            "map, hash, sendfile | receive, hash",
            Box::new(|into: &mut [u8]| {
                copy(into, true, |stream| map_and_sendfile(&file, length, stream))
            }),
        ),
        way(
            "pull.memory",
            "pull from memory",
            Box::new(|into: &mut [u8]| pull(&sockets, in_memory, into)),
        ),
        way(
            "pull.file",
            "pull from a tmpfs file",
            Box::new(|into: &mut [u8]| pull(&sockets, in_file, into)),
        ),
        way(
            "pull.direct",
            "pull from a tmpfs file, same node",
            Box::new(|into: &mut [u8]| pull(&direct, in_file, into)),
        ),
    ];
    let costs = measure_all(&mut ways, &bytes, rounds)?;
    let mut figures = Figures::new("transport");
    say(&figures.title());
    report(&ways, &costs, length, &mut figures)?;
    apart::run(path, &bytes, rounds, &mut figures)?;
    say(&figures.table());
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// The costs of each way in each round; what arrives is compared with `bytes`.
fn measure_all(ways: &mut [Way<'_>], bytes: &[u8], rounds: usize) -> Outcome<Vec<Vec<Cost>>> {
    let mut into = vec![1_u8; bytes.len()];
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); ways.len()];
    for round in 0..=rounds {
        for (way, costs) in ways.iter_mut().zip(&mut costs) {
            let cost = measure(|| (way.run)(&mut into))?;
            if into != bytes {
                return Err(format!("{}: other bytes arrived", way.id).into());
            }
            // The first round warms up.
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    Ok(costs)
}

fn report(
    ways: &[Way<'_>],
    costs: &[Vec<Cost>],
    length: usize,
    figures: &mut Figures,
) -> Outcome<()> {
    let head = ["way", "GB/s", "wall / plain", "CPU / plain"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let plain = costs.first().ok_or("no plain copy")?;
    for (way, costs) in ways.iter().zip(costs) {
        let ratio = |which: usize| -> Vec<f64> {
            let pairs = costs.iter().zip(plain);
            pairs
                .map(|(cost, plain)| cost[which] / plain[which])
                .collect()
        };
        let rates: Vec<f64> = costs
            .iter()
            .map(|cost| size_f64(length) / cost[0] / 1e9)
            .collect();
        let (wall, cpu) = (ratio(0), ratio(1));
        let shown = [&rates, &wall, &cpu].map(|values| short(median(values).unwrap_or(0.0)));
        rows.push([vec![way.what.to_owned()], shown.to_vec()].concat());
        figures.push(if way.id == "pull.file" {
            Figure::of(&PULL, &wall)
        } else {
            let (id, what) = (format!("transport.{}", way.id), way.what.to_owned());
            Figure::shown(id, what, "ratio", Better::Lower, &wall)
        });
        let id = format!("transport.{}.cpu", way.id);
        let what = format!("{}, CPU", way.what);
        figures.push(Figure::shown(id, what, "ratio", Better::Lower, &cpu));
    }
    say(&columns(&rows));
    Ok(())
}
