//! `swimlet aggregator`: a member that is no node. It judges, and the one that
//! holds the Lease writes.

mod http;
mod judging;
mod view;

use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use swimlet_cluster::election::Timing;
use swimlet_cluster::{Clients, Edge, EdgeConfig, EdgeHandle, ElectionConfig, Source};
use swimlet_protocol::{NodeName, Role};
use swimlet_roles::aggregator::Config as RoleConfig;
use swimlet_telemetry::admin::{self, Metrics, Readiness};
use swimlet_transport::Transport;
use swimlet_verdict::{Config as JudgeConfig, Profile};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::AggregatorConfig;
use crate::follow::Follower;
use crate::member::handle::Handle;
use crate::member::start::{self, Tasks, ambient_seed};
use crate::process::{self, Shutdown};
use judging::{Judging, Parts};
use view::Question;

/// Questions of `/v1` waiting for the judge.
const QUESTIONS_MAX: usize = 16;
/// How often the mesh's part of the readiness is looked at.
const READINESS_EVERY: Duration = Duration::from_secs(2);
/// What must hold before the aggregator is ready.
const READY: &[&str] = &["mesh", "api"];

/// What an aggregator is made of.
pub(crate) struct Spec {
    pub(crate) member: start::Spec,
    /// The node it runs on.
    pub(crate) host: Option<NodeName>,
    pub(crate) profile: Profile,
    pub(crate) edge: EdgeConfig,
    pub(crate) clients: Clients,
    pub(crate) follower: Follower,
}

/// A started aggregator.
pub(crate) struct Aggregator {
    pub(crate) member: Handle,
    pub(crate) transport: Transport,
    pub(crate) edge: EdgeHandle,
    /// Ends the Kubernetes edge, which releases the Lease.
    edge_stop: CancellationToken,
    edge_done: CancellationToken,
    pub(crate) questions: mpsc::Sender<Question>,
}

/// Runs an aggregator until it is told to stop. `shown` is its configuration, for `/v1/config`.
pub(crate) async fn run(
    config: AggregatorConfig,
    shown: Value,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let metrics = Metrics::install(Role::Aggregator).context("metrics cannot be recorded")?;
    let readiness = Readiness::new(READY);
    let listener = admin::bind(config.member.admin_bind).await?;
    let mut tasks = Tasks::new(shutdown.stop_token());
    let source = config
        .kubeconfig
        .clone()
        .map_or(Source::InCluster, |path| Source::Kubeconfig {
            path,
            context: None,
        });
    let clients = Clients::connect(&source).await?;
    let spec = Spec {
        member: start::Spec::from_config(&config.member, 0),
        host: config.host.clone(),
        profile: config.profile,
        edge: edge_config(&config),
        clients,
        follower: Follower::default(),
    };
    let aggregator = assemble(spec, &mut tasks).await?;
    info!(identity = %config.member.identity, mode = %config.mode, "the aggregator has started");
    let sources = http::Sources {
        member: aggregator.member.clone(),
        questions: aggregator.questions.clone(),
        config: shown,
    };
    let router = admin::router(metrics, readiness.clone()).merge(http::router(sources));
    let serve = process::serve_admin(listener, router, tasks.stop.clone());
    tasks.spawn("admin endpoint", serve);
    let watch = show_readiness(
        aggregator.edge.clone(),
        aggregator.member.clone(),
        readiness,
    );
    tasks.spawn_until_stop("readiness", watch);
    process::supervise(tasks.set, shutdown, || aggregator.stop()).await
}

/// Starts an aggregator's tasks.
pub(crate) async fn assemble(spec: Spec, tasks: &mut Tasks) -> anyhow::Result<Aggregator> {
    let started = start::start(spec.member, tasks).await?;
    let member = started.handle;
    let (edge, handle, edge_events) = Edge::new(spec.clients, spec.edge);
    let edge_stop = CancellationToken::new();
    let edge_done = CancellationToken::new();
    let run_edge = run_edge(edge, edge_stop.clone(), edge_done.clone());
    tasks.spawn("Kubernetes edge", run_edge);
    let (questions, questions_receiver) = mpsc::channel(QUESTIONS_MAX);
    let judge_config = JudgeConfig {
        profile: spec.profile,
        ..JudgeConfig::new(member.key())
    };
    let parts = Parts {
        config: RoleConfig {
            judge: judge_config,
            record: started.record,
            host: spec.host,
        },
        member: member.clone(),
        member_events: started.events,
        edge: handle.clone(),
        edge_events,
        questions: questions_receiver,
        follower: spec.follower,
    };
    tasks.spawn("judge", Judging::new(parts).run(tasks.stop.clone()));
    Ok(Aggregator {
        member,
        transport: started.transport,
        edge: handle,
        edge_stop,
        edge_done,
        questions,
    })
}

impl Aggregator {
    /// What its judge holds; `None` if it has stopped.
    pub(crate) async fn judged(&self) -> Option<view::Answer> {
        view::ask(&self.questions).await
    }

    /// Whether it holds the Lease.
    pub(crate) fn leads(&self) -> bool {
        self.edge.leadership().leads()
    }

    /// How many kubelet ports it has reached.
    pub(crate) async fn paths(&self) -> usize {
        self.member.paths().await
    }

    /// Stops writing and releases the Lease, then leaves the mesh.
    pub(crate) async fn stop(self) {
        self.edge_stop.cancel();
        // An API server that does not answer must not keep us from saying goodbye.
        let leave = start::leave(&self.member, self.transport);
        tokio::join!(self.edge_done.cancelled(), leave);
    }
}

fn edge_config(config: &AggregatorConfig) -> EdgeConfig {
    EdgeConfig {
        cluster: config.member.identity.cluster.clone(),
        mode: config.mode,
        election: ElectionConfig {
            namespace: config.lease_namespace.clone(),
            lease: config.lease_name.clone(),
            // A restarted process must not take itself for the holder it was.
            identity: format!("{}_{:016x}", config.member.identity.name, ambient_seed()),
            timing: Timing::default(),
        },
        seed: ambient_seed(),
    }
}

/// Runs the edge until it is stopped; `done` says when the Lease is released.
async fn run_edge(edge: Edge, stop: CancellationToken, done: CancellationToken) {
    if let Err(error) = edge.run(stop).await {
        error!(%error, "the Kubernetes edge failed");
    }
    done.cancel();
}

/// Keeps `/readyz` true to the state of the edge, and says what is missing.
async fn show_readiness(mut edge: EdgeHandle, member: Handle, readiness: Readiness) {
    let mut said = None;
    loop {
        let state = edge.readiness();
        readiness.set("api", state.is_ready());
        readiness.set("mesh", member.knows_others().await);
        if said.as_ref() != Some(&state) {
            if state.is_ready() {
                info!("the API server answers and grants all that is needed");
            } else {
                warn!(%state, "not ready");
            }
            said = Some(state);
        }
        tokio::select! {
            () = edge.readiness_changed() => {}
            () = tokio::time::sleep(READINESS_EVERY) => {}
        }
    }
}
