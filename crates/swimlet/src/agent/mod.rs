//! `swimlet agent`: a node's member of the mesh. It has no access to the Kubernetes API.

mod checks;

use anyhow::Context;
use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::{MemberKey, Role};
use swimlet_roles::member::Event;
use swimlet_telemetry::admin::{self, Metrics, Readiness};
use swimlet_transport::Transport;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::AgentConfig;
use crate::follow::{Follower, What};
use crate::member::handle::Handle;
use crate::member::start::{self, Tasks};
use crate::process::{self, Shutdown};
pub(crate) use checks::SelfChecks;

/// What must hold before the agent is ready.
const READY: &[&str] = &["mesh"];

/// What an agent is made of.
pub(crate) struct Spec {
    pub(crate) member: start::Spec,
    pub(crate) checks: SelfChecks,
    pub(crate) readiness: Readiness,
    pub(crate) follower: Follower,
}

/// Runs an agent until it is told to stop.
pub(crate) async fn run(config: AgentConfig, shutdown: Shutdown) -> anyhow::Result<()> {
    let metrics = Metrics::install(Role::Agent).context("metrics cannot be recorded")?;
    let readiness = Readiness::new(READY);
    let listener = admin::bind(config.member.admin_bind).await?;
    let mut tasks = Tasks::new(shutdown.stop_token());
    let spec = Spec {
        member: start::Spec::from_config(&config.member, config.kubelet_port.get()),
        checks: SelfChecks::new(&config),
        readiness: readiness.clone(),
        follower: Follower::default(),
    };
    let (member, transport) = assemble(spec, &mut tasks).await?;
    info!(identity = %config.member.identity, bind = ?config.member.bind, "the agent has started");
    let router = admin::router(metrics, readiness);
    let serve = process::serve_admin(listener, router, tasks.stop.clone());
    tasks.spawn("admin endpoint", serve);
    process::supervise(tasks.set, shutdown, || async move {
        start::leave(&member, transport).await;
    })
    .await
}

/// Starts an agent's tasks.
pub(crate) async fn assemble(spec: Spec, tasks: &mut Tasks) -> anyhow::Result<(Handle, Transport)> {
    let started = start::start(spec.member, tasks).await?;
    let member = started.handle;
    tasks.spawn_until_stop("self checks", spec.checks.run(member.clone()));
    let listen = listen(started.events, spec.readiness, member.key(), spec.follower);
    tasks.spawn_until_stop("member events", listen);
    Ok((member, started.transport))
}

/// Tells what the mesh notices.
async fn listen(
    mut events: mpsc::Receiver<Event>,
    readiness: Readiness,
    me: MemberKey,
    follower: Follower,
) {
    while let Some(event) = events.recv().await {
        match event {
            Event::Mesh(event) => {
                readiness.set("mesh", true);
                tell(&event);
                follower.tell(me, || What::Mesh(event));
            }
            Event::Heard(_) => readiness.set("mesh", true),
            // For aggregators; nobody sends or asks them of an agent.
            Event::Verified { .. }
            | Event::View { .. }
            | Event::Observers { .. }
            | Event::Refused { .. }
            | Event::Members(_) => {}
        }
    }
}

/// Logs what the mesh noticed.
pub(crate) fn tell(event: &MeshEvent) {
    match event {
        MeshEvent::Joined { record, .. } => {
            info!(member = %record.name, role = record.role.as_str(), generation = record.generation.0, "a member joined");
        }
        MeshEvent::StateChanged { key, from, to, by } => {
            info!(?key, %from, %to, ?by, "a member's state changed");
        }
        MeshEvent::Left { key } => info!(?key, "a member left"),
        MeshEvent::Missed {
            subject,
            silent,
            in_row,
        } => {
            let silent_ms = silent.as_millis();
            info!(?subject, silent_ms, in_row, "a probe went unanswered");
        }
        MeshEvent::Refuted { incarnation } => {
            warn!(
                incarnation = incarnation.0,
                "others suspected this member, and it refuted them"
            );
        }
        MeshEvent::NameCollision { key } => {
            warn!(?key, "two names share one key; the later is refused")
        }
        other => tracing::debug!(?other, "the mesh noticed something"),
    }
}
