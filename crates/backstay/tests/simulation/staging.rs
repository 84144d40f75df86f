// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: staging servers of a simulated job: points that drain, each with an endpoint of its own.
//! In: the scenario's level 3. Out: entries in the archive's folder, requests answered.
//! Invariants: a server that dies leaves its entry; one that ends takes it with it.

use crate::scenario::Scenario;
use crate::world::{ARCHIVE, World};
use backstay::Result;
use backstay_archive::drain::{DrainPoint, ServerPlace};
use backstay_archive::job_folder;
use backstay_net::Endpoint;
use backstay_testkit::network::SimNetwork;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SERVERS_MAX: usize = 3;

/// The servers that live.
#[derive(Default)]
pub(crate) struct Servers {
    servers: Vec<Server>,
    network: Option<SimNetwork>,
}

struct Server {
    name: String,
    _point: Arc<DrainPoint>,
    _place: ServerPlace,
    entry: PathBuf,
}

pub(crate) fn server_name(at: usize) -> String {
    format!("s{at}")
}

impl Servers {
    /// That of servers which go on.
    pub(crate) fn network(&self) -> Option<SimNetwork> {
        self.network.clone()
    }

    /// Starts those of a start that are not there yet.
    pub(crate) fn start(&mut self, scenario: &Scenario, start: usize, world: &World) -> Result<()> {
        let Some(archive) = &scenario.archive else {
            return Ok(());
        };
        self.network = Some(world.network.clone());
        let folder = job_folder(&world.folder.join(ARCHIVE), "job");
        std::fs::create_dir_all(&folder)
            .map_err(|error| backstay::Error::io(format!("making {}", folder.display()), error))?;
        let count = archive.servers.get(start).copied().unwrap_or(0);
        for at in self.servers.len()..count {
            let endpoint = world.network.endpoint(&server_name(at));
            let point = Arc::new(DrainPoint::new(endpoint.clone(), &server_name(at)));
            let answers = Arc::clone(&point);
            endpoint.serve(Arc::new(move |request: &[u8], within: Duration| {
                answers.handle(request, within)
            }));
            let place = ServerPlace::take(&folder, &server_name(at), &endpoint.address())?;
            self.servers.push(Server {
                name: server_name(at),
                _point: point,
                _place: place,
                entry: folder.join(format!("server-{}.json", server_name(at))),
            });
        }
        Ok(())
    }

    /// Their start is over: `well`, or with everything else.
    pub(crate) fn end(&mut self, well: bool) {
        for server in std::mem::take(&mut self.servers) {
            let (entry, text) = (server.entry.clone(), std::fs::read(&server.entry));
            // What the network knows of it would keep it, with the locks of its files.
            if let Some(network) = &self.network {
                network.take_down(&server.name);
            }
            drop(server);
            if let (false, Ok(text)) = (well, text) {
                drop(std::fs::write(entry, text));
            }
        }
    }
}
