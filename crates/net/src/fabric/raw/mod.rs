// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: libfabric, found at run time: domains, registered memory, and ports that read.
//! In from: `fabric`. Out to: the library.
//! Invariants: memory that a provider may write belongs to a port, is handed out to nobody while an operation
//! is under way on it, and is freed behind the port; registered memory outlives its registration; an object
//! of the library is closed after all that were made of it.
#![expect(unsafe_code, reason = "calls a library of C")]

mod port;
mod sys;

pub(super) use port::{Failed, Held, Port};

use crate::Exposed;
use backstay_format::width::{to_u64, to_usize};
use libloading::Library as Loaded;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::{self, Debug};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// The library's name; versions 1 and 2 have the same.
const NAME: &str = "libfabric.so.1";

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const sys::Info,
    *mut *mut sys::Info,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut sys::FabricAttr, *mut *mut sys::Fabric, *mut c_void) -> c_int;

/// The functions that are symbols of the library. All others stand in tables of its objects.
pub(super) struct Library {
    get_info: GetInfo,
    free_info: unsafe extern "C" fn(*mut sys::Info),
    dup_info: unsafe extern "C" fn(*const sys::Info) -> *mut sys::Info,
    open_fabric: OpenFabric,
    words: unsafe extern "C" fn(c_int) -> *const c_char,
    version: unsafe extern "C" fn() -> u32,
}

impl Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "libfabric {major}.{minor}")
    }
}

impl Library {
    /// Loads it, once; it is never unloaded, because providers have threads.
    pub(super) fn load() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let library = LIBRARY.get_or_init(|| {
            let missing = |error: libloading::Error| {
                let why = std::error::Error::source(&error).map(|why| format!(": {why}"));
                format!(
                    "{NAME} cannot be loaded: {error}{}",
                    why.unwrap_or_default()
                )
            };
            // SAFETY: loading it runs the constructors of the library and of its providers, which may be
            // run in any process.
            let loaded = unsafe { Loaded::new(NAME) }.map_err(missing)?;
            // It stays for as long as the process lives, so that what is taken from it does.
            Self::of(Box::leak(Box::new(loaded))).map_err(missing)
        });
        library.as_ref().map_err(Clone::clone)
    }

    fn of(loaded: &'static Loaded) -> Result<Self, libloading::Error> {
        // SAFETY: these are the types of rdma/fabric.h and rdma/fi_errno.h.
        unsafe {
            Ok(Self {
                get_info: *loaded.get(b"fi_getinfo\0")?,
                free_info: *loaded.get(b"fi_freeinfo\0")?,
                dup_info: *loaded.get(b"fi_dupinfo\0")?,
                open_fabric: *loaded.get(b"fi_fabric\0")?,
                words: *loaded.get(b"fi_strerror\0")?,
                version: *loaded.get(b"fi_version\0")?,
            })
        }
    }

    /// Major and minor version.
    pub(super) fn version(&self) -> (u32, u32) {
        // SAFETY: it takes nothing and changes nothing.
        let version = unsafe { (self.version)() };
        (version >> 16, version & 0xffff)
    }

    /// What a status that is no success means.
    fn words(&self, what: &str, status: i64) -> String {
        let code = c_int::try_from(status.abs()).unwrap_or(c_int::MAX);
        // SAFETY: it returns a text of the library for every number.
        let words = unsafe { (self.words)(code) };
        if words.is_null() {
            return format!("{what}: status {status}");
        }
        // SAFETY: as above; it is not null.
        let words = unsafe { CStr::from_ptr(words) };
        format!("{what}: {}", words.to_string_lossy())
    }

    fn check(&self, what: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        Err(self.words(what, i64::from(status)))
    }
}

/// An operation that a provider left out.
fn missing(what: &str) -> String {
    format!("{what}: the provider has no such operation")
}

/// Descriptions of what a provider can do, of the library.
struct Infos {
    library: &'static Library,
    first: NonNull<sys::Info>,
}

impl Drop for Infos {
    fn drop(&mut self) {
        // SAFETY: the library made it, and nobody else frees it.
        unsafe { (self.library.free_info)(self.first.as_ptr()) };
    }
}

impl Infos {
    /// Endpoints that read and are read from, of `provider` if it is named, at the address `host` where one
    /// is named.
    fn find(
        library: &'static Library,
        provider: Option<&str>,
        host: Option<&str>,
    ) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
        let (provider, host) = (provider.map(text).transpose()?, host.map(text).transpose()?);
        // SAFETY: of nothing it makes empty hints.
        let hints = NonNull::new(unsafe { (library.dup_info)(std::ptr::null()) });
        let hints = Self {
            library,
            first: hints.ok_or("no memory for hints")?,
        };
        let mut found = std::ptr::null_mut();
        // SAFETY: hints of the library have all these parts. The provider's name is ours, so it is taken
        // back before they are freed.
        let status = unsafe {
            let wanted = &mut *hints.first.as_ptr();
            wanted.caps = sys::FI_RMA | sys::FI_READ | sys::FI_REMOTE_READ;
            wanted.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
            (*wanted.ep_attr).r#type = sys::FI_EP_RDM;
            let domain = &mut *wanted.domain_attr;
            domain.threading = sys::FI_THREAD_SAFE;
            domain.mr_mode = sys::FI_MR_LOCAL
                | sys::FI_MR_VIRT_ADDR
                | sys::FI_MR_ALLOCATED
                | sys::FI_MR_PROV_KEY;
            let name = provider
                .as_ref()
                .map_or(std::ptr::null(), |name| name.as_ptr());
            (*wanted.fabric_attr).prov_name = name.cast_mut();
            let node = host.as_ref().map_or(std::ptr::null(), |host| host.as_ptr());
            let flags = host
                .as_ref()
                .map_or(0, |_| sys::FI_SOURCE | sys::FI_NUMERICHOST);
            let none = std::ptr::null();
            let status = (library.get_info)(sys::API, node, none, flags, wanted, &raw mut found);
            (*wanted.fabric_attr).prov_name = std::ptr::null_mut();
            status
        };
        library.check("looking for a provider", status)?;
        let first = NonNull::new(found).ok_or("there is no provider")?;
        Ok(Self { library, first })
    }

    /// All of them, in the library's order of preference.
    fn each(&self) -> impl Iterator<Item = NonNull<sys::Info>> {
        std::iter::successors(Some(self.first), |info| {
            // SAFETY: a list of the library, which lives as long as `self`.
            NonNull::new(unsafe { info.as_ref() }.next)
        })
    }

    fn provider(info: NonNull<sys::Info>) -> String {
        // SAFETY: what the library found has a provider, whose name is a text.
        unsafe {
            let name = (*info.as_ref().fabric_attr).prov_name;
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

/// The providers that read and are read from here.
pub(super) fn providers(library: &'static Library) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    if let Ok(infos) = Infos::find(library, None, None) {
        for name in infos.each().map(Infos::provider) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    all
}

/// Closes an object of the library.
///
/// # Safety
/// It is open, and nobody uses it any more.
unsafe fn close(fid: *mut sys::Fid) {
    // SAFETY: every object has this operation; the caller vouches for the rest. There is nothing to do about
    // a failure.
    unsafe {
        if let Some(close) = (*(*fid).ops).close {
            let _status = close(fid);
        }
    }
}

/// One provider on one network, open.
pub(super) struct Domain {
    library: &'static Library,
    /// The first of them is what was opened.
    infos: Infos,
    fabric: NonNull<sys::Fabric>,
    opened: NonNull<sys::Domain>,
    provider: String,
}

// SAFETY: it was opened for use by several threads (FI_THREAD_SAFE), and is changed by nobody.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {:?}", self.provider, self.library)
    }
}

impl Domain {
    /// Opens `provider`, at the address `host` where one is named.
    pub(super) fn open(
        library: &'static Library,
        provider: &str,
        host: Option<&str>,
    ) -> Result<Arc<Self>, String> {
        let infos = Infos::find(library, Some(provider), host)?;
        let info = infos.first;
        let (mut fabric, mut domain) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the attributes are those that the library found; it fills in the object.
        let status = unsafe {
            let attributes = info.as_ref().fabric_attr;
            (library.open_fabric)(attributes, &raw mut fabric, std::ptr::null_mut())
        };
        library.check("opening the fabric", status)?;
        let fabric = NonNull::new(fabric).ok_or("no fabric was opened")?;
        // SAFETY: the fabric is open, and the description is one of its own.
        let status = unsafe {
            let open = (*fabric.as_ref().ops).domain;
            open.map(|open| {
                open(
                    fabric.as_ptr(),
                    info.as_ptr(),
                    &raw mut domain,
                    std::ptr::null_mut(),
                )
            })
        };
        let opened = status
            .ok_or_else(|| missing("opening the domain"))
            .and_then(|status| library.check("opening the domain", status))
            .and_then(|()| NonNull::new(domain).ok_or_else(|| "no domain was opened".to_owned()));
        let domain = match opened {
            Ok(domain) => domain,
            Err(words) => {
                // SAFETY: nothing was made of it.
                unsafe { close(fabric.as_ptr().cast()) };
                return Err(words);
            }
        };
        Ok(Arc::new(Self {
            library,
            provider: Infos::provider(info),
            infos,
            fabric,
            opened: domain,
        }))
    }

    /// What it is called: `verbs;ofi_rxm`.
    pub(super) fn provider(&self) -> &str {
        &self.provider
    }

    fn attributes(&self) -> &sys::DomainAttr {
        // SAFETY: what the library found has these, for as long as `infos` starts.
        unsafe { &*self.infos.first.as_ref().domain_attr }
    }

    fn needs(&self, mode: c_int) -> bool {
        self.attributes().mr_mode & mode != 0
    }

    /// The longest read of the provider.
    fn longest(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*self.infos.first.as_ref().ep_attr).max_msg_size }
    }

    /// A key that nobody guesses, where keys are ours to choose.
    fn draw_key(&self) -> Result<u64, String> {
        let mut bytes = [0; 8];
        let count = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
        if count.map_err(|error| error.to_string())? < bytes.len() {
            return Err("no random key".to_owned());
        }
        let bits = 8 * self.attributes().mr_key_size.clamp(1, 8);
        Ok(u64::from_le_bytes(bytes) >> (64 - bits))
    }

    fn register(
        &self,
        address: *const c_void,
        length: usize,
        access: u64,
    ) -> Result<NonNull<sys::Mr>, String> {
        let (key, mut found) = (self.draw_key()?, std::ptr::null_mut());
        // SAFETY: the domain is open; the caller keeps the memory for as long as the registration.
        let status = unsafe {
            let register = (*self.opened.as_ref().mr).reg;
            let register = register.ok_or_else(|| missing("registering memory"))?;
            let context = std::ptr::null_mut();
            let domain = self.opened.as_ptr().cast();
            register(
                domain,
                address,
                length,
                access,
                0,
                key,
                0,
                &raw mut found,
                context,
            )
        };
        self.library.check("registering memory", status)?;
        NonNull::new(found).ok_or_else(|| "no memory was registered".to_owned())
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all that was made of the domain holds it, so nothing is there any more.
        unsafe {
            close(self.opened.as_ptr().cast());
            close(self.fabric.as_ptr().cast());
        }
    }
}

/// Memory that peers may read, until it is dropped.
pub(super) struct Registration {
    memory: NonNull<sys::Mr>,
    key: u64,
    start: usize,
    length: usize,
    is_virtual: bool,
    /// Behind the registration, which is closed first.
    _kept: Exposed,
    _domain: Arc<Domain>,
}

// SAFETY: the library's object is used by nobody until it is closed, by whoever is last.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration({} bytes)", self.length)
    }
}

impl Registration {
    /// Registers `length` bytes at `start`, which stand there for as long as `kept` starts. They are read as
    /// they are by the provider, whoever writes them: what comes of it is compared with a fingerprint.
    pub(super) fn new(
        domain: &Arc<Domain>,
        (start, length): (usize, usize),
        kept: Exposed,
    ) -> Result<Self, String> {
        let address = std::ptr::with_exposed_provenance::<c_void>(start);
        let memory = domain.register(address, length, sys::FI_REMOTE_READ)?;
        // SAFETY: it was registered just now.
        let key = unsafe { memory.as_ref() }.key;
        Ok(Self {
            memory,
            key,
            start,
            length,
            is_virtual: domain.needs(sys::FI_MR_VIRT_ADDR),
            _kept: kept,
            _domain: Arc::clone(domain),
        })
    }

    /// By what key and at which address of it a peer reads `bytes`, if they are all in here.
    pub(super) fn place(&self, bytes: &[u8]) -> Option<(u64, u64)> {
        let within = bytes.as_ptr().addr().checked_sub(self.start)?;
        if within.checked_add(bytes.len())? > self.length {
            return None;
        }
        let base = if self.is_virtual { self.start } else { 0 };
        Some((self.key, to_u64(base.checked_add(within)?)))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: nobody was handed the object; the memory is still there.
        unsafe { close(self.memory.as_ptr().cast()) };
    }
}

/// A size that fits what a provider says, which may be without end.
fn at_most(wanted: usize, most: usize) -> usize {
    to_usize(to_u64(wanted).min(to_u64(most)))
}

#[cfg(test)]
mod tests;
