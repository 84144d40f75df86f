// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an endpoint of libfabric, with the memory that its reads fill.
//! In from: `fabric`. Out to: the library.
//! Invariants: a piece of memory is written by the provider only while its read is under way, and looked at
//! only when it is not; who gives one up leaves it to the port until the read is over; the endpoint is
//! closed before its memory is freed, and never while a read is under way: libfabric 1.17 can crash in that.

use super::sys::{
    self, FI_CQ_FORMAT_CONTEXT, FI_EAGAIN, FI_EAVAIL, FI_ENABLE, FI_READ, FI_RECV, FI_TRANSMIT,
};
use super::{Domain, at_most, close, missing};
use backstay_base::clock::Deadline;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fmt::{self, Debug};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest address of an endpoint.
const ADDRESS_BYTES_MAX: usize = 512;
/// Completions that are taken at once.
const ENTRIES: usize = 16;
/// Peers whose addresses a port knows; then it is replaced by a fresh one.
const PEERS_MAX: usize = 4096;
/// How long one thread waits for completions before it looks at its own limit.
const TURN: Duration = Duration::from_millis(20);
/// How long to wait where a provider cannot accept a read yet.
const AGAIN: Duration = Duration::from_micros(100);
const PAGE: usize = 4096;

/// Why nothing was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::fabric) enum Failed {
    /// The time is over.
    Late,
    /// The provider says so.
    Refused(String),
    /// Nothing more can be done by this port.
    Broken(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Anybody may take it.
    Free,
    /// Somebody has it, and no read is under way.
    Held,
    /// A read is under way; whether somebody still waits for it.
    UnderWay(bool),
    /// The read is over.
    Over(Result<(), i32>),
}

#[derive(Debug)]
struct Table {
    states: Vec<State>,
    /// What ended all reads of the port.
    broken: Option<String>,
}

/// An endpoint.
pub(in crate::fabric) struct Port {
    domain: Arc<Domain>,
    ep: NonNull<sys::Ep>,
    cq: NonNull<sys::Cq>,
    av: NonNull<sys::Av>,
    can_wait: bool,
    address: Vec<u8>,
    peers: Mutex<BTreeMap<Vec<u8>, u64>>,
    pieces: Option<Pieces>,
    table: Mutex<Table>,
    changed: Condvar,
    /// Who has it waits for completions for all.
    turn: Mutex<()>,
}

/// The memory of a port's reads.
struct Pieces {
    memory: NonNull<u8>,
    layout: Layout,
    count: usize,
    bytes: usize,
    registered: Option<NonNull<sys::Mr>>,
    contexts: Box<[std::cell::UnsafeCell<sys::Context>]>,
}

// SAFETY: the library's objects were opened for use by several threads; which thread may look at which piece
// of memory is settled by the table, and contexts are the provider's alone.
unsafe impl Send for Port {}
// SAFETY: as above.
unsafe impl Sync for Port {}

impl Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({:?})", self.domain)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Objects that are closed again if not all of them could be made.
struct Objects(Vec<NonNull<sys::Fid>>);

impl Drop for Objects {
    fn drop(&mut self) {
        for object in self.0.drain(..).rev() {
            // SAFETY: it was opened, and nobody was handed it.
            unsafe { close(object.as_ptr()) };
        }
    }
}

/// Opens an object by an operation of `domain`.
fn open<T>(
    domain: &Domain,
    what: &str,
    objects: &mut Objects,
    make: impl FnOnce(*mut *mut T) -> Option<c_int>,
) -> Result<NonNull<T>, String> {
    let mut found = std::ptr::null_mut();
    let status = make(&raw mut found).ok_or_else(|| missing(what))?;
    domain.library.check(what, status)?;
    let found = NonNull::new(found).ok_or_else(|| format!("{what}: nothing was opened"))?;
    objects.0.push(found.cast());
    Ok(found)
}

fn open_cq(
    domain: &Domain,
    wait_obj: c_int,
    objects: &mut Objects,
) -> Result<NonNull<sys::Cq>, String> {
    let mut attributes = sys::CqAttr {
        size: 0,
        flags: 0,
        format: FI_CQ_FORMAT_CONTEXT,
        wait_obj,
        signaling_vector: 0,
        wait_cond: 0,
        wait_set: std::ptr::null_mut(),
    };
    let raw = domain.opened.as_ptr();
    open(domain, "opening a completion queue", objects, |found| {
        // SAFETY: the domain is open, and the attributes live through the call.
        unsafe {
            let make = (*(*raw).ops).cq_open?;
            Some(make(raw, &raw mut attributes, found, std::ptr::null_mut()))
        }
    })
}

fn open_av(domain: &Domain, objects: &mut Objects) -> Result<NonNull<sys::Av>, String> {
    let preferred = domain.attributes().av_type;
    let mut attributes = sys::AvAttr {
        r#type: if preferred == 0 {
            sys::FI_AV_TABLE
        } else {
            preferred
        },
        rx_ctx_bits: 0,
        count: 0,
        ep_per_node: 0,
        name: std::ptr::null(),
        map_addr: std::ptr::null_mut(),
        flags: 0,
    };
    let raw = domain.opened.as_ptr();
    open(domain, "opening an address vector", objects, |found| {
        // SAFETY: as above.
        unsafe {
            let make = (*(*raw).ops).av_open?;
            Some(make(raw, &raw mut attributes, found, std::ptr::null_mut()))
        }
    })
}

fn bind(
    domain: &Domain,
    ep: NonNull<sys::Ep>,
    to: NonNull<sys::Fid>,
    flags: u64,
) -> Result<(), String> {
    // SAFETY: both are open, and the endpoint is not enabled yet.
    let status = unsafe {
        let bind = (*ep.as_ref().fid.ops)
            .bind
            .ok_or_else(|| missing("binding"))?;
        bind(ep.as_ptr().cast(), to.as_ptr(), flags)
    };
    domain.library.check("binding", status)
}

fn name_of(domain: &Domain, ep: NonNull<sys::Ep>) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; ADDRESS_BYTES_MAX];
    let mut length = bytes.len();
    // SAFETY: the endpoint is enabled, and there is room for as many bytes as are said.
    let status = unsafe {
        let name = (*ep.as_ref().cm)
            .getname
            .ok_or_else(|| missing("asking for the address"))?;
        name(
            ep.as_ptr().cast(),
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    domain.library.check("asking for the address", status)?;
    bytes.truncate(length);
    Ok(bytes)
}

impl Pieces {
    fn new(domain: &Domain, count: usize, bytes: usize) -> Result<Self, String> {
        let bytes = at_most(bytes, domain.longest());
        let layout = Layout::from_size_align(count * bytes, PAGE).map_err(|e| e.to_string())?;
        if layout.size() == 0 {
            return Err("a port without memory".to_owned());
        }
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.ok_or("no memory for reads")?;
        let context = || sys::Context {
            internal: [std::ptr::null_mut(); 8],
        };
        let contexts = (0..count).map(|_| std::cell::UnsafeCell::new(context()));
        let mut pieces = Self {
            memory,
            layout,
            count,
            bytes,
            registered: None,
            contexts: contexts.collect(),
        };
        if domain.needs(sys::FI_MR_LOCAL) {
            let start = memory.as_ptr().cast();
            pieces.registered = Some(domain.register(start, layout.size(), FI_READ)?);
        }
        Ok(pieces)
    }

    /// What the provider wants to be told of the memory.
    fn description(&self) -> *mut c_void {
        // SAFETY: the registration lives as long as the pieces.
        let description = self
            .registered
            .map(|memory| unsafe { memory.as_ref() }.mem_desc);
        description.unwrap_or(std::ptr::null_mut())
    }

    fn start(&self, number: usize) -> *mut u8 {
        debug_assert!(number < self.count);
        // SAFETY: a number below the count lies in the allocation.
        unsafe { self.memory.as_ptr().add(number * self.bytes) }
    }

    /// Whose context it is.
    fn number(&self, context: *mut c_void) -> Option<usize> {
        let is_it = |one: &std::cell::UnsafeCell<sys::Context>| one.get().cast() == context;
        self.contexts.iter().position(is_it)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        // SAFETY: the port's endpoint is closed, so the provider uses neither any more.
        unsafe {
            if let Some(registered) = self.registered {
                close(registered.as_ptr().cast());
            }
            dealloc(self.memory.as_ptr(), self.layout);
        }
    }
}

impl Port {
    /// An endpoint with `count` pieces of memory of `bytes` each: none where peers only read from here.
    pub(in crate::fabric) fn open(
        domain: &Arc<Domain>,
        (count, bytes): (usize, usize),
    ) -> Result<Arc<Self>, String> {
        let made = (count > 0).then(|| Pieces::new(domain, count, bytes));
        let pieces = made.transpose()?;
        let mut objects = Objects(Vec::new());
        let waiting = open_cq(domain, sys::FI_WAIT_FD, &mut objects);
        let can_wait = waiting.is_ok();
        let cq = waiting.or_else(|_| open_cq(domain, sys::FI_WAIT_NONE, &mut objects))?;
        let av = open_av(domain, &mut objects)?;
        let raw = domain.opened.as_ptr();
        let ep = open(domain, "opening an endpoint", &mut objects, |found| {
            // SAFETY: the domain is open, and the description is the one it was opened by.
            unsafe {
                let make = (*(*raw).ops).endpoint?;
                Some(make(
                    raw,
                    domain.infos.first.as_ptr(),
                    found,
                    std::ptr::null_mut(),
                ))
            }
        })?;
        bind(domain, ep, av.cast(), 0)?;
        bind(domain, ep, cq.cast(), FI_TRANSMIT | FI_RECV)?;
        // SAFETY: all that the endpoint needs is bound to it.
        let status = unsafe {
            let control = (*fid_of(ep).ops)
                .control
                .ok_or_else(|| missing("enabling"))?;
            control(ep.as_ptr().cast(), FI_ENABLE, std::ptr::null_mut())
        };
        domain.library.check("enabling an endpoint", status)?;
        let address = name_of(domain, ep)?;
        objects.0.clear();
        Ok(Arc::new(Self {
            domain: Arc::clone(domain),
            ep,
            cq,
            av,
            can_wait,
            address,
            peers: Mutex::default(),
            table: Mutex::new(Table {
                states: vec![State::Free; count],
                broken: None,
            }),
            pieces,
            changed: Condvar::new(),
            turn: Mutex::new(()),
        }))
    }

    /// How others reach it.
    pub(in crate::fabric) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Whether a thread can sleep until there is something to do.
    pub(in crate::fabric) fn can_wait(&self) -> bool {
        self.can_wait
    }

    /// Bytes of a piece.
    pub(in crate::fabric) fn piece_bytes(&self) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| pieces.bytes)
    }

    /// What the provider calls the endpoint at `address`.
    pub(in crate::fabric) fn peer(&self, address: &[u8]) -> Result<u64, Failed> {
        let mut peers = lock(&self.peers);
        if let Some(peer) = peers.get(address) {
            return Ok(*peer);
        }
        if peers.len() >= PEERS_MAX {
            return Err(Failed::Broken("it knows too many peers".to_owned()));
        }
        // Providers read as many bytes as their own addresses have.
        if address.len() != self.address.len() && self.domain.provider() != "shm" {
            return Err(Failed::Refused("an address of another form".to_owned()));
        }
        let bytes = [address, &[0][..]].concat();
        let mut peer = u64::MAX;
        // SAFETY: the address has the length of this endpoint's own, or ends in zero.
        let count = unsafe {
            let insert = (*self.av.as_ref().ops).insert;
            let insert = insert.ok_or_else(|| Failed::Broken(missing("adding a peer")))?;
            let from = bytes.as_ptr().cast();
            insert(
                self.av.as_ptr(),
                from,
                1,
                &raw mut peer,
                0,
                std::ptr::null_mut(),
            )
        };
        if count != 1 {
            return Err(Failed::Refused("its address is of no use here".to_owned()));
        }
        peers.insert(address.to_vec(), peer);
        Ok(peer)
    }

    /// A piece of memory, if one is free, or `wait` and one becomes free in time.
    pub(in crate::fabric) fn take(
        self: &Arc<Self>,
        wait: Option<&Deadline>,
    ) -> Result<Option<Held>, Failed> {
        loop {
            let mut table = lock(&self.table);
            if let Some(words) = &table.broken {
                return Err(Failed::Broken(words.clone()));
            }
            let free = table.states.iter().position(|state| *state == State::Free);
            if let Some(number) = free {
                table.states[number] = State::Held;
                let port = Arc::clone(self);
                return Ok(Some(Held { port, number }));
            }
            drop(table);
            let Some(deadline) = wait else {
                return Ok(None);
            };
            self.progress(deadline)?;
        }
    }

    /// Waits for a while, no longer than `deadline`, for reads to be over: one thread for all.
    fn progress(&self, deadline: &Deadline) -> Result<(), Failed> {
        let left = deadline.left().ok_or(Failed::Late)?.min(TURN);
        let table = lock(&self.table);
        let Ok(turn) = self.turn.try_lock() else {
            let waited = self.changed.wait_timeout(table, left);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return Ok(());
        };
        drop(table);
        let done = self.await_some(left);
        drop(turn);
        // Who found the turn taken waits by now, and takes the next.
        drop(lock(&self.table));
        self.changed.notify_all();
        done
    }

    fn await_some(&self, left: Duration) -> Result<(), Failed> {
        if self.poll(None)? > 0 {
            return Ok(());
        }
        if self.can_wait {
            self.poll(Some(left))?;
        } else {
            std::thread::sleep(left.min(AGAIN));
        }
        Ok(())
    }

    /// Takes what is completed, and has the provider go on; waits for it up to `wait`. How many were there.
    pub(in crate::fabric) fn poll(&self, wait: Option<Duration>) -> Result<usize, Failed> {
        let empty = || sys::CqEntry {
            op_context: std::ptr::null_mut(),
        };
        let mut entries: [sys::CqEntry; ENTRIES] = std::array::from_fn(|_| empty());
        let (cq, into) = (self.cq.as_ptr(), entries.as_mut_ptr().cast());
        // SAFETY: the queue is open, its format is the one of the entries, and there is room for so many.
        let count = unsafe {
            let ops = &*(*cq).ops;
            match (wait, ops.read, ops.sread) {
                (Some(wait), _, Some(sread)) => {
                    let limit = c_int::try_from(wait.as_millis())
                        .unwrap_or(c_int::MAX)
                        .max(1);
                    sread(cq, into, ENTRIES, std::ptr::null(), limit)
                }
                (_, Some(read), _) => read(cq, into, ENTRIES),
                _ => return Err(self.break_down(missing("reading completions"))),
            }
        };
        if let Ok(count) = usize::try_from(count) {
            for entry in entries.iter().take(count) {
                self.complete(entry.op_context, Ok(()));
            }
            return Ok(count);
        }
        match i32::try_from(-count) {
            Ok(FI_EAGAIN | 4) => Ok(0),
            Ok(FI_EAVAIL) => self.take_error(),
            _ => {
                let status = i64::try_from(count).unwrap_or(i64::MIN);
                let words = self.domain.library.words("reading completions", status);
                Err(self.break_down(words))
            }
        }
    }

    fn take_error(&self) -> Result<usize, Failed> {
        /// Later versions append to the entry.
        #[repr(C)]
        struct Room {
            entry: sys::CqErrEntry,
            _more: [u64; 16],
        }
        let mut room = Room {
            entry: sys::CqErrEntry {
                op_context: std::ptr::null_mut(),
                flags: 0,
                len: 0,
                buf: std::ptr::null_mut(),
                data: 0,
                tag: 0,
                olen: 0,
                err: 0,
                prov_errno: 0,
                err_data: std::ptr::null_mut(),
                err_data_size: 0,
            },
            _more: [0; 16],
        };
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is open, and the entry has room for more than any version writes.
        let count = unsafe {
            let read = (*(*cq).ops).readerr;
            let read = read.ok_or_else(|| self.break_down(missing("reading an error")))?;
            read(cq, (&raw mut room).cast(), 0)
        };
        if count < 1 {
            return Ok(0);
        }
        let (context, error) = (room.entry.op_context, room.entry.err.max(1));
        if !self.complete(context, Err(error)) && self.pieces.is_some() {
            // An error of nobody knows which read: of all that are under way.
            let words = self.domain.library.words("a read", i64::from(error));
            return Err(self.break_down(words));
        }
        Ok(1)
    }

    /// Whether it was one of our reads that is over.
    fn complete(&self, context: *mut c_void, result: Result<(), i32>) -> bool {
        let Some(number) = self
            .pieces
            .as_ref()
            .and_then(|pieces| pieces.number(context))
        else {
            return false;
        };
        let mut table = lock(&self.table);
        let state = &mut table.states[number];
        match state {
            State::UnderWay(true) => *state = State::Over(result),
            State::UnderWay(false) => *state = State::Free,
            _ => return false,
        }
        drop(table);
        self.changed.notify_all();
        true
    }

    fn break_down(&self, words: String) -> Failed {
        lock(&self.table)
            .broken
            .get_or_insert_with(|| words.clone());
        self.changed.notify_all();
        Failed::Broken(words)
    }

    /// Whether a read is under way, if nobody waits for it any more.
    pub(in crate::fabric) fn is_reading(&self) -> bool {
        let states = &lock(&self.table).states;
        let mut states = states.iter();
        states.any(|state| matches!(state, State::UnderWay(_)))
    }

    /// Takes what is completed, unless somebody does so just now.
    pub(in crate::fabric) fn settle(&self) {
        if let Ok(_turn) = self.turn.try_lock() {
            // What broke is remembered.
            drop(self.poll(None));
        }
    }

    /// Wakes who waits in [`Self::poll`].
    pub(in crate::fabric) fn signal(&self) {
        let cq = self.cq.as_ptr();
        // SAFETY: the queue is open.
        unsafe {
            if let (true, Some(signal)) = (self.can_wait, (*(*cq).ops).signal) {
                let _status = signal(cq);
            }
        }
    }
}

/// The front of an endpoint.
///
/// # Safety
/// It is open.
unsafe fn fid_of<'a>(ep: NonNull<sys::Ep>) -> &'a sys::Fid {
    // SAFETY: the caller says so.
    unsafe { &(*ep.as_ptr()).fid }
}

impl Drop for Port {
    fn drop(&mut self) {
        if self.is_reading() {
            // It stays for as long as the process does, and what it stands on.
            let _kept = ManuallyDrop::new((Arc::clone(&self.domain), self.pieces.take()));
            return;
        }
        // SAFETY: nobody has a piece of it any more, nor polls. Once the endpoint is closed the provider
        // writes no piece, so these go last.
        unsafe {
            close(self.ep.as_ptr().cast());
            close(self.cq.as_ptr().cast());
            close(self.av.as_ptr().cast());
        }
        drop(self.pieces.take());
    }
}

/// A piece of a port's memory.
#[derive(Debug)]
pub(in crate::fabric) struct Held {
    port: Arc<Port>,
    number: usize,
}

impl Held {
    /// Begins to read `length` bytes of `peer` by `key` at `address`.
    pub(in crate::fabric) fn begin(
        &mut self,
        peer: u64,
        (key, address): (u64, u64),
        length: usize,
        deadline: &Deadline,
    ) -> Result<(), Failed> {
        let port = &self.port;
        let pieces = port.pieces.as_ref().filter(|pieces| length <= pieces.bytes);
        let pieces = pieces.ok_or_else(|| Failed::Refused("no room for a read".to_owned()))?;
        // SAFETY: the endpoint is open.
        let read = unsafe { (*port.ep.as_ref().rma).read };
        let read = read.ok_or_else(|| Failed::Broken(missing("a read")))?;
        lock(&port.table).states[self.number] = State::UnderWay(true);
        let (into, context) = (
            pieces.start(self.number),
            pieces.contexts[self.number].get(),
        );
        let description = pieces.description();
        loop {
            // SAFETY: nobody looks at the piece while it is under way, and it is longer than what is read; its
            // context is in use by no other read.
            let status = unsafe {
                let ep = port.ep.as_ptr();
                let into = into.cast();
                read(
                    ep,
                    into,
                    length,
                    description,
                    peer,
                    address,
                    key,
                    context.cast(),
                )
            };
            if status == 0 {
                return Ok(());
            }
            let failed = if i32::try_from(-status) == Ok(FI_EAGAIN) {
                // It is not connected yet, or full.
                let polled = port.poll(None);
                std::thread::sleep(AGAIN);
                match (polled, deadline.left()) {
                    (Ok(_), Some(_)) => continue,
                    (Ok(_), None) => Failed::Late,
                    (Err(failed), _) => failed,
                }
            } else {
                let status = i64::try_from(status).unwrap_or(i64::MIN);
                Failed::Refused(port.domain.library.words("a read", status))
            };
            lock(&port.table).states[self.number] = State::Held;
            return Err(failed);
        }
    }

    /// Waits until the read is over.
    pub(in crate::fabric) fn finish(&mut self, deadline: &Deadline) -> Result<(), Failed> {
        loop {
            let mut table = lock(&self.port.table);
            if let State::Over(result) = &table.states[self.number] {
                let result = *result;
                table.states[self.number] = State::Held;
                drop(table);
                let library = self.port.domain.library;
                let words = |error| Failed::Refused(library.words("a read", i64::from(error)));
                return result.map_err(words);
            }
            if let Some(words) = &table.broken {
                return Err(Failed::Broken(words.clone()));
            }
            drop(table);
            self.port.progress(deadline)?;
        }
    }

    /// The first `length` bytes that were read; none while a read is under way.
    pub(in crate::fabric) fn bytes(&self, length: usize) -> Option<&[u8]> {
        let pieces = self.port.pieces.as_ref()?;
        let is_mine = lock(&self.port.table).states[self.number] == State::Held;
        if !is_mine || length > pieces.bytes {
            return None;
        }
        // SAFETY: no read is under way on it, none begins while it is borrowed, and nobody else has it.
        Some(unsafe { std::slice::from_raw_parts(pieces.start(self.number), length) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = lock(&self.port.table);
        let state = &mut table.states[self.number];
        // What is under way is the port's, until it is over.
        *state = match state {
            State::UnderWay(_) => State::UnderWay(false),
            _ => State::Free,
        };
        drop(table);
        self.port.changed.notify_all();
    }
}
