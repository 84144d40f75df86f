// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a staging server: a process that pulls checkpoints from the nodes of a job and brings them to
//! its archive, so that the nodes need not.
//! In from: the job's coordinator (which checkpoint, from which nodes). Out to: the engine's drain.
//! Invariants: it finds the job, and is found, by the job's folder in the archive; it outlives the
//! application and goes on with the next start; what it had stored when it died is not stored again.

use backstay::{Error, ErrorKind, Result};
use backstay_archive::drain::{DrainPoint, ServerPlace, shared_secret};
use backstay_net::{Endpoint, Handler, SecretSource, TcpEndpoint, TcpOptions, Transports};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a staging server is for.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// The job's folder in the archive.
    pub folder: PathBuf,
    /// The job.
    pub job: String,
    /// What it is called; unique among the servers of the job.
    pub name: String,
    /// Where it answers; by default any port of the host's own address.
    pub listen: Option<String>,
    /// By what it reads sealed bytes of the nodes.
    pub transports: Transports,
    /// A file whose presence says that the job is over.
    pub over: Option<PathBuf>,
}

/// Why a staging server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The job is over.
    JobOver,
    /// It was told to.
    Asked,
}

/// Requests go to the drain; the endpoint must not keep it alive.
struct ToDrain(Weak<DrainPoint>);

impl Handler for ToDrain {
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        let gone = || Error::new(ErrorKind::PeerUnreachable, "this server is shutting down");
        self.0.upgrade().ok_or_else(gone)?.handle(request, within)
    }
}

/// Serves the job until it is over or `stop` is set; `ready` is told the address.
pub fn run(options: &StageOptions, stop: &AtomicBool, ready: impl FnOnce(&str)) -> Result<Ended> {
    let secret = shared_secret(&options.folder)?;
    let mut tcp = TcpOptions::new(&options.name, &options.job, secret);
    // The next start of the job draws another one.
    let folder = options.folder.clone();
    tcp.secret_source = Some(SecretSource::new(move || shared_secret(&folder)));
    if let Some(listen) = &options.listen {
        let address = listen.parse().map_err(|error| {
            let context = format!("the address to listen at is {listen:?}");
            Error::caused(ErrorKind::Configuration, context, error)
        })?;
        tcp.listen = Some(address);
    }
    tcp.transports = options.transports.clone();
    let endpoint: Arc<dyn Endpoint> = Arc::new(TcpEndpoint::open(tcp)?);
    let point = Arc::new(DrainPoint::new(Arc::clone(&endpoint), &options.name));
    endpoint.serve(Arc::new(ToDrain(Arc::downgrade(&point))));
    let address = endpoint.address();
    let place = ServerPlace::take(&options.folder, &options.name, &address)?;
    ready(&address);
    let ended = loop {
        if stop.load(Ordering::Acquire) {
            break Ended::Asked;
        }
        if options.over.as_ref().is_some_and(|over| over.exists()) {
            break Ended::JobOver;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    drop(place);
    point.stop();
    endpoint.shut_down();
    Ok(ended)
}
