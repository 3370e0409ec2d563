//! Starting a member from its configuration: what agents and aggregators share.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use swimlet_protocol::{Bounded, Identity, MemberRecord, Zone};
use swimlet_roles::member::Event;
use swimlet_telemetry::{Clock, catalogue};
use swimlet_transport::{Config as TransportConfig, Credentials, Transport};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::driver::{Driver, Setup};
use super::handle::Handle;
use super::seeds;
use super::state::StateFile;
use crate::config::{MemberConfig, Seed};

/// How often the living peers are written down.
const REMEMBER_EVERY: Duration = Duration::from_secs(60);
/// For the goodbyes to leave this host, on as many links as an aggregator has.
const GOODBYE: Duration = Duration::from_millis(250);

/// What a member is started with.
pub(crate) struct Spec {
    pub(crate) identity: Identity,
    pub(crate) zone: Zone,
    pub(crate) bind: Vec<SocketAddr>,
    pub(crate) advertise: Vec<SocketAddr>,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) credentials: Credentials,
    /// 0 for an aggregator.
    pub(crate) kubelet_port: u16,
}

/// A started member.
pub(crate) struct Started {
    pub(crate) handle: Handle,
    pub(crate) transport: Transport,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) record: MemberRecord,
}

/// The tasks of a process, each with its name, and the token that ends them all.
pub(crate) struct Tasks {
    pub(crate) set: JoinSet<&'static str>,
    pub(crate) stop: CancellationToken,
}

impl Spec {
    /// What `config` asks for; its credentials are read from their files.
    pub(crate) fn from_config(config: &MemberConfig, kubelet_port: u16) -> Self {
        let credentials =
            Credentials::from_files(&config.cert_file, &config.key_file, &config.ca_file);
        Self {
            identity: config.identity.clone(),
            zone: config.zone.clone(),
            bind: config.bind.clone(),
            advertise: config.advertise.clone(),
            seeds: config.seeds.clone(),
            state_dir: config.state_dir.clone(),
            credentials,
            kubelet_port,
        }
    }
}

impl Tasks {
    /// No task yet; `stop` will end those to come.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            stop,
        }
    }

    /// Runs a task that ends by itself when `stop` is called, and is missed when it ends before.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        self.set.spawn(async move {
            future.await;
            name
        });
    }

    /// Runs a task that is dropped when `stop` is called.
    pub(crate) fn spawn_until_stop(
        &mut self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = future => {}
            }
        });
    }
}

/// Binds the mesh port and starts the member's tasks.
pub(crate) async fn start(spec: Spec, tasks: &mut Tasks) -> anyhow::Result<Started> {
    let clock = Clock::start();
    let mut state = StateFile::open(spec.state_dir.as_deref());
    let record = MemberRecord {
        role: spec.identity.role,
        name: spec.identity.name.clone(),
        generation: state.next_generation(),
        zone: spec.zone,
        addresses: Bounded::fill(&mut spec.advertise.into_iter()),
        kubelet_port: spec.kubelet_port,
    };
    let config = TransportConfig::new(spec.identity.clone(), spec.bind, state.reset_seed());
    let (transport, links) = Transport::start(config, spec.credentials).await?;
    let (found_sender, found) = mpsc::channel(1);
    let setup = Setup {
        cluster: spec.identity.cluster,
        record: record.clone(),
        seeds: seeds::literal(&spec.seeds),
        peers: state.peers().to_vec(),
        seed: ambient_seed(),
        clock,
        found,
    };
    let (driver, handle, events) = Driver::new(setup, transport.clone(), links);
    tasks.spawn("member driver", driver.run(tasks.stop.clone()));
    tasks.spawn_until_stop("seed look-up", seeds::watch(spec.seeds, found_sender));
    let remember = remember_peers(state, handle.clone(), transport.clone());
    tasks.spawn_until_stop("peer memory", remember);
    Ok(Started {
        handle,
        transport,
        events,
        record,
    })
}

/// Says goodbye to the neighbours and closes the links.
pub(crate) async fn leave(member: &Handle, transport: Transport) {
    member.leave().await;
    // Closing a link discards what it has not sent yet, goodbyes included.
    sleep(GOODBYE).await;
    transport.shutdown().await;
}

/// The seed of a member's random choices: each start's own.
pub(crate) fn ambient_seed() -> u64 {
    // The standard library seeds its hashers from the operating system.
    RandomState::new().build_hasher().finish()
}

async fn remember_peers(mut state: StateFile, member: Handle, transport: Transport) {
    loop {
        let peers: Vec<SocketAddr> = member.peers().await;
        state.remember(peers.into_iter());
        let expiry = transport.certificate_expiry().duration_since(UNIX_EPOCH);
        let expiry = expiry.unwrap_or_default().as_secs_f64();
        metrics::gauge!(catalogue::CERTIFICATE_EXPIRY).set(expiry);
        sleep(REMEMBER_EVERY).await;
    }
}
