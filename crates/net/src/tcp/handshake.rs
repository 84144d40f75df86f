// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: both sides of a new connection prove to each other that they belong to the job.
//! In from: `pool` for who connects, `server` for who listened. Out to: a connection that may be used.
//! Invariants: the secret is not sent; each side proves its knowledge of it for nonces of both; who
//! connects speaks the proof only to one that gave its own; the keys of what follows are of this
//! connection only.
//! Format: docs/format/wire.md, section "Handshake".

use super::link::{Broken, Frame, Link, Sealers};
use crate::same_node;
use crate::secret::{Secret, SecretSource, drawn};
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::Result as EngineResult;
use backstay_base::notice;
use backstay_format::FingerprintKey;
use backstay_format::mac::{SECRET_ID_BYTES, Sealer};
use backstay_format::wire::{
    Hello, Kind, Proof, Reason, Refused, Role, WIRE_VERSION_MAJOR, Welcome, proven,
};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A secret is looked for anew so often at most.
const LOOKED_FOR: Duration = Duration::from_secs(1);

/// Who this endpoint is.
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) job: String,
    /// Names the kernel; drawn where it has no name, so that nobody has the same.
    pub(super) machine: [u8; 16],
    secret: Mutex<Secret>,
    source: Option<SecretSource>,
    looked: Mutex<Option<Stopwatch>>,
}

impl Identity {
    pub(super) fn new(
        name: String,
        job: String,
        secret: Secret,
        source: Option<SecretSource>,
    ) -> EngineResult<Self> {
        let machine = match same_node::machine() {
            Some(machine) => machine,
            None => drawn()?,
        };
        Ok(Self {
            name,
            job,
            machine,
            secret: Mutex::new(secret),
            source,
            looked: Mutex::default(),
        })
    }

    pub(super) fn secret(&self) -> Secret {
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        secret.clone()
    }

    /// The secret that `id` names, if it is this endpoint's, or became that of its job meanwhile; and
    /// whether the latter.
    fn secret_named(&self, id: &[u8; SECRET_ID_BYTES]) -> Option<(Secret, bool)> {
        let known = self.secret();
        if known.id() == *id {
            return Some((known, false));
        }
        let source = self.source.as_ref()?;
        // One at a time, and seldom.
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_none_or(|since| since.elapsed() >= LOOKED_FOR) {
            *looked = Some(Stopwatch::start());
            match source.read() {
                Ok(found) if found.id() == *id => {
                    let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
                    *secret = found.clone();
                    return Some((found, true));
                }
                Ok(_) => {}
                Err(error) => notice::warn(&format!("the secret of the job: {error}")),
            }
        }
        // Another connection may have found it just before.
        let known = self.secret();
        (known.id() == *id).then_some((known, false))
    }
}

/// What the other side of a connection said of itself, and proved.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    /// Whether it is on this machine; asked by who connects only.
    pub(super) same_machine: bool,
}

/// Who connected and proved itself, before it is told so.
pub(super) struct Proven {
    pub(super) name: String,
    /// The secret of the job is another than before: what went by that one is of a former start.
    pub(super) is_new_start: bool,
    sealers: Sealers,
}

fn refusal(reason: Reason, words: String) -> Broken {
    Broken::Refused(Refused { reason, words })
}

fn internal(error: &backstay_base::error::Error) -> Broken {
    refusal(Reason::Protocol, error.to_string())
}

fn another_secret(identity: &Identity) -> Broken {
    let words = format!("another job secret than that of {}", identity.name);
    refusal(Reason::Secret, words)
}

/// What both sides said, under the secret that they mean.
struct Said<'a> {
    identity: &'a Identity,
    secret: &'a Secret,
    hello: &'a [u8],
    welcome: &'a [u8],
}

impl Said<'_> {
    /// The proof of `role` for this connection.
    fn prove(&self, role: Role) -> Result<[u8; 32], Broken> {
        let proof = self.secret.prove(&proven(role, self.hello, self.welcome));
        proof.map_err(|error| internal(&error))
    }

    fn check(&self, role: Role, proof: &[u8; 32]) -> Result<(), Broken> {
        let text = proven(role, self.hello, self.welcome);
        match self.secret.verify(&text, proof) {
            Ok(true) => Ok(()),
            Ok(false) => Err(another_secret(self.identity)),
            Err(error) => Err(internal(&error)),
        }
    }

    /// The keys of this connection for the side of `role`.
    fn sealers(&self, role: Role) -> Sealers {
        let of = |sender| Sealer::derive(self.secret.bytes(), sender, self.hello, self.welcome);
        let (client, server) = (of(Role::Client), of(Role::Server));
        let (send, receive) = match role {
            Role::Client => (client, server),
            Role::Server => (server, client),
        };
        Sealers {
            send,
            receive,
            fingerprints: FingerprintKey::derive(self.secret.bytes()),
        }
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
    let secret = identity.secret();
    let hello = Hello {
        nonce: drawn().map_err(|error| internal(&error))?,
        secret: secret.id(),
        job: identity.job.clone(),
        name: identity.name.clone(),
    };
    let hello = hello.encode()?;
    let sent = link.send(Kind::Hello, &[&hello], deadline);
    // A server that is busy refuses without reading, and may be gone before all was sent.
    let received = link.receive(deadline);
    let received = match (sent, received) {
        (Err(broken), Err(Broken::Closed | Broken::Io(_))) => Err(broken),
        (_, received) => received,
    };
    let welcome = expect(received?, Kind::Welcome)?;
    let known = Welcome::decode(&welcome.head, &welcome.body)?;
    let said = Said {
        identity,
        secret: &secret,
        hello: &hello,
        welcome: &welcome.body,
    };
    if let Err(broken) = said.check(Role::Server, &known.proof) {
        tell(link, &broken, deadline);
        return Err(broken);
    }
    let proof = said.prove(Role::Client)?;
    link.send(Kind::Proof, &[&Proof { proof }.encode()], deadline)?;
    let (head, kind) = link.receive_head(deadline)?;
    if kind == Kind::Accepted {
        // This frame is the first one that has a MAC; a refusal in its place has none.
        link.begin_session(said.sealers(Role::Client));
    }
    expect(link.receive_rest((head, kind), deadline)?, Kind::Accepted)?;
    Ok(Known {
        name: known.name,
        same_machine: known.machine == identity.machine,
    })
}

/// The side that listened. What it refuses it tells the other side; whom it does not refuse it accepts
/// by [`welcome`].
pub(super) fn accept(
    link: &mut Link,
    identity: &Identity,
    deadline: &Deadline,
) -> Result<Proven, Broken> {
    let result = answer(link, identity, deadline);
    if let Err(broken) = &result {
        tell(link, broken, deadline);
    }
    result
}

fn answer(link: &mut Link, identity: &Identity, deadline: &Deadline) -> Result<Proven, Broken> {
    let hello = expect(link.receive(deadline)?, Kind::Hello)?;
    let known = Hello::decode(&hello.head, &hello.body)?;
    if known.job != identity.job {
        let (job, other) = (&identity.job, &known.job);
        let words = format!("{} belongs to job {job}, not to {other}", identity.name);
        return Err(refusal(Reason::Job, words));
    }
    let named = identity.secret_named(&known.secret);
    let (secret, is_new_start) = named.ok_or_else(|| another_secret(identity))?;
    let mut welcome = Welcome {
        proof: [0; 32],
        nonce: drawn().map_err(|error| internal(&error))?,
        machine: identity.machine,
        job: identity.job.clone(),
        name: identity.name.clone(),
    };
    let unproven = welcome.encode()?;
    let said = Said {
        identity,
        secret: &secret,
        hello: &hello.body,
        welcome: &unproven,
    };
    welcome.proof = said.prove(Role::Server)?;
    link.send(Kind::Welcome, &[&welcome.encode()?], deadline)?;
    let proof = expect(link.receive(deadline)?, Kind::Proof)?;
    let proof = Proof::decode(&proof.head, &proof.body)?;
    said.check(Role::Client, &proof.proof)?;
    Ok(Proven {
        name: known.name,
        is_new_start,
        sealers: said.sealers(Role::Server),
    })
}

/// Tells who proved itself that it is accepted.
pub(super) fn welcome(
    link: &mut Link,
    proven: Proven,
    deadline: &Deadline,
) -> Result<Known, Broken> {
    link.begin_session(proven.sealers);
    link.send(Kind::Accepted, &[], deadline)?;
    Ok(Known {
        name: proven.name,
        same_machine: false,
    })
}

/// Tells the other side why it is refused.
fn tell(link: &mut Link, broken: &Broken, deadline: &Deadline) {
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
