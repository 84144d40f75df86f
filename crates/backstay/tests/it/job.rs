// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job of threads: each rank has one session and variables whose every word tells where it is from.

use backstay::config::{Config, Tracking};
use backstay::{ElementType, Result, Session, Variable};
use backstay_net::Endpoint;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::oracle::Oracle;
use std::path::Path;
use std::sync::Arc;

pub(crate) const WORDS: usize = 40_000;

/// A configuration for a store below `path`.
pub(crate) fn config(path: &Path) -> Config {
    Config {
        job: Some("test job".to_owned()),
        node: Some("node0".to_owned()),
        store_path: Some(path.to_owned()),
        timeout_ms: 20_000,
        ..Config::default()
    }
}

/// One rank: its session and one variable that follows an oracle.
pub(crate) struct Rank {
    pub(crate) session: Session,
    pub(crate) oracle: Oracle,
    pub(crate) memory: Vec<u64>,
    pub(crate) step: u64,
}

impl Rank {
    pub(crate) fn open(comm: ThreadComm, config: Config) -> Result<Self> {
        Self::open_on(comm, config, None)
    }

    /// The same, on an endpoint of the test's.
    pub(crate) fn open_on(
        comm: ThreadComm,
        config: Config,
        endpoint: Option<Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        let mut new = Self::of(Session::open_on(Box::new(comm), config, endpoint)?);
        new.protect(Tracking::Hash)?;
        Ok(new)
    }

    /// The rank of a session, which protects nothing yet.
    pub(crate) fn of(session: Session) -> Self {
        let oracle = Oracle::new(session.rank(), 0, WORDS * 8).changing(7, 4096, 100);
        Self {
            session,
            oracle,
            memory: vec![0; WORDS],
            step: 0,
        }
    }

    pub(crate) fn protect(&mut self, tracking: Tracking) -> Result<()> {
        let length = u64::try_from(self.memory.len()).unwrap();
        let variable = Variable::new("field", ElementType::U64, &[length]).tracking(tracking);
        let address = self.memory.as_mut_ptr().cast();
        // SAFETY: `memory` is not moved or freed while the session starts.
        unsafe { self.session.protect(variable, address)? };
        let step = Variable::new("step", ElementType::U64, &[]);
        // SAFETY: as above; `Rank` is boxed by its thread's stack and not moved after this.
        unsafe {
            self.session
                .protect(step, std::ptr::from_mut(&mut self.step).cast())
                .map(drop)
        }
    }

    /// Protects again after a move of `self`.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.protect(Tracking::Hash)
    }

    fn bytes(&self) -> Vec<u8> {
        self.memory
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }

    /// Computes the state of the next step.
    pub(crate) fn compute(&mut self) {
        self.step += 1;
        let mut bytes = self.bytes();
        if self.step == 1 {
            self.oracle.fill(&mut bytes, 1);
        } else {
            self.oracle.advance(&mut bytes, self.step);
        }
        for (word, chunk) in self.memory.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(chunk.try_into().unwrap());
        }
    }

    /// Checks every word against the oracle at this step.
    pub(crate) fn check(&self) {
        if let Err(wrong) = self.oracle.check(&self.bytes(), self.step) {
            panic!("step {}: {wrong:?}", self.step);
        }
    }
}

/// Runs one start of a job: `body` on each rank.
pub(crate) fn start<T: Send>(
    ranks: usize,
    config: &Config,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(ranks), |comm| {
        let mut rank = Rank::open(comm, config.clone()).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}
