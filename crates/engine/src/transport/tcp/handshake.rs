// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: both sides of a new connection prove to each other that they belong to the job.
//! In from: `pool` for who connects, `server` for who listened. Out to: a connection that may be used.
//! Invariants: the secret is not sent; each side proves its knowledge of it for nonces of both; who
//! connects speaks the proof only to one that gave its own.
//! Format: docs/format/wire.md, section "Handshake".

use super::link::{Broken, Frame, Link};
use crate::clock::Deadline;
use crate::error::Result as EngineResult;
use crate::transport::same_node;
use crate::transport::secret::{Secret, drawn};
use backstay_format::wire::{
    Hello, Kind, Proof, Reason, Refused, Role, WIRE_VERSION_MAJOR, Welcome, proven,
};

/// Who this endpoint is.
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) job: String,
    pub(super) secret: Secret,
    /// Names the kernel; drawn where it has no name, so that nobody has the same.
    pub(super) machine: [u8; 16],
}

impl Identity {
    pub(super) fn new(name: String, job: String, secret: Secret) -> EngineResult<Self> {
        let machine = match same_node::machine() {
            Some(machine) => machine,
            None => drawn()?,
        };
        Ok(Self {
            name,
            job,
            secret,
            machine,
        })
    }
}

/// What the other side of a connection said of itself, and proved.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    /// Whether it is on this machine; asked by who connects only.
    pub(super) same_machine: bool,
}

fn refusal(reason: Reason, words: String) -> Broken {
    Broken::Refused(Refused { reason, words })
}

fn internal(error: &crate::error::Error) -> Broken {
    refusal(Reason::Protocol, error.to_string())
}

/// The proof of `role` for this connection.
fn prove(
    identity: &Identity,
    role: Role,
    hello: &[u8],
    welcome: &[u8],
) -> Result<[u8; 32], Broken> {
    let proof = identity.secret.prove(&proven(role, hello, welcome));
    proof.map_err(|error| internal(&error))
}

fn holds(
    identity: &Identity,
    role: Role,
    (hello, welcome): (&[u8], &[u8]),
    proof: &[u8; 32],
) -> Result<(), Broken> {
    let text = proven(role, hello, welcome);
    match identity.secret.verify(&text, proof) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let words = format!("another job secret than that of {}", identity.name);
            Err(refusal(Reason::Secret, words))
        }
        Err(error) => Err(internal(&error)),
    }
}

fn expect(frame: Frame, wanted: Kind) -> Result<Frame, Broken> {
    if frame.kind == wanted {
        return Ok(frame);
    }
    Err(Broken::unexpected(&format!("{wanted:?}"), frame.kind))
}

/// The side that connected.
pub(super) fn connect(
    link: &mut Link,
    identity: &Identity,
    deadline: &Deadline,
) -> Result<Known, Broken> {
    let hello = Hello {
        nonce: drawn().map_err(|error| internal(&error))?,
        job: identity.job.clone(),
        name: identity.name.clone(),
    };
    let hello = hello.encode();
    let sent = link.send(Kind::Hello, &[&hello], deadline);
    // A server that is busy refuses without reading, and may be gone before all was sent.
    let received = link.receive(deadline);
    let received = match (sent, received) {
        (Err(broken), Err(Broken::Closed | Broken::Io(_))) => Err(broken),
        (_, received) => received,
    };
    let welcome = expect(received?, Kind::Welcome)?;
    let known = Welcome::decode(&welcome.head, &welcome.body)?;
    let said = (&hello[..], &welcome.body[..]);
    if let Err(broken) = holds(identity, Role::Server, said, &known.proof) {
        tell(link, &broken, deadline);
        return Err(broken);
    }
    let proof = prove(identity, Role::Client, &hello, &welcome.body)?;
    link.send(Kind::Proof, &[&Proof { proof }.encode()], deadline)?;
    expect(link.receive(deadline)?, Kind::Accepted)?;
    Ok(Known {
        name: known.name,
        same_machine: known.machine == identity.machine,
    })
}

/// The side that listened. What it refuses it tells the other side.
pub(super) fn accept(
    link: &mut Link,
    identity: &Identity,
    deadline: &Deadline,
) -> Result<Known, Broken> {
    let result = answer(link, identity, deadline);
    if let Err(broken) = &result {
        tell(link, broken, deadline);
    }
    result
}

fn answer(link: &mut Link, identity: &Identity, deadline: &Deadline) -> Result<Known, Broken> {
    let hello = expect(link.receive(deadline)?, Kind::Hello)?;
    let known = Hello::decode(&hello.head, &hello.body)?;
    if known.job != identity.job {
        let (job, other) = (&identity.job, &known.job);
        let words = format!("{} belongs to job {job}, not to {other}", identity.name);
        return Err(refusal(Reason::Job, words));
    }
    let mut welcome = Welcome {
        proof: [0; 32],
        nonce: drawn().map_err(|error| internal(&error))?,
        machine: identity.machine,
        job: identity.job.clone(),
        name: identity.name.clone(),
    };
    welcome.proof = prove(identity, Role::Server, &hello.body, &welcome.encode())?;
    let welcome = welcome.encode();
    link.send(Kind::Welcome, &[&welcome], deadline)?;
    let proof = expect(link.receive(deadline)?, Kind::Proof)?;
    let proof = Proof::decode(&proof.head, &proof.body)?;
    holds(
        identity,
        Role::Client,
        (&hello.body, &welcome),
        &proof.proof,
    )?;
    link.send(Kind::Accepted, &[], deadline)?;
    Ok(Known {
        name: known.name,
        same_machine: false,
    })
}

/// Tells the other side why it is refused.
fn tell(link: &Link, broken: &Broken, deadline: &Deadline) {
    match broken {
        Broken::Refused(refused) => link.refuse(refused.reason, &refused.words, deadline),
        Broken::Nonsense(error) if error.field == "version" => {
            let words = format!(
                "version {WIRE_VERSION_MAJOR} is spoken here, not {}",
                error.found
            );
            link.refuse(Reason::Version, &words, deadline);
        }
        Broken::Nonsense(error) => link.refuse(Reason::Protocol, &error.to_string(), deadline),
        Broken::Timeout | Broken::Closed | Broken::Io(_) => {}
    }
}
