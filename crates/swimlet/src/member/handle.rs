//! The handle to a driver, and what can be asked through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use swimlet_protocol::frame::{ProbeOutcome, SelfReport};
use swimlet_protocol::{Frame, MemberKey, MemberRecord, Moment, NodeName};
use swimlet_telemetry::Clock;
use tokio::sync::{mpsc, oneshot};

/// A handle to a running driver; cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) me: MemberKey,
    pub(super) clock: Clock,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) health: Arc<AtomicU8>,
}

/// What the driver answered about a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probed {
    pub(crate) outcome: ProbeOutcome,
    /// When that member had last answered us before, if ever.
    pub(crate) contact_before: Option<Moment>,
}

/// A member as the mesh holds it, for people.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct MemberView {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) state: String,
    pub(crate) zone: String,
    pub(crate) generation: u64,
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) heard_ms_ago: Option<u64>,
}

/// An order or a question to the driver.
pub(super) enum Command {
    Probe(MemberKey, oneshot::Sender<Probed>),
    Report(SelfReport),
    Verdict(MemberKey, bool),
    Send(MemberKey, Frame),
    Name(MemberKey, oneshot::Sender<Option<NodeName>>),
    Observers(MemberKey, oneshot::Sender<Vec<MemberKey>>),
    Subjects(oneshot::Sender<Vec<MemberRecord>>),
    KnowsOthers(oneshot::Sender<bool>),
    View(oneshot::Sender<Vec<MemberView>>),
    Peers(oneshot::Sender<Vec<SocketAddr>>),
    Leave(oneshot::Sender<()>),
}

impl Handle {
    /// This member's own key.
    pub(crate) const fn key(&self) -> MemberKey {
        self.me
    }

    /// The clock that this member's moments are of.
    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    /// Lifeguard's local health multiplier of this member, 0 to 8.
    pub(crate) fn health(&self) -> u8 {
        self.health.load(Ordering::Relaxed)
    }

    /// The name of that member, if it is known.
    pub(crate) async fn name_of(&self, key: MemberKey) -> Option<NodeName> {
        self.ask(|reply| Command::Name(key, reply)).await.flatten()
    }

    /// Probes that member now; `None` if the driver has stopped.
    pub(crate) async fn probe(&self, subject: MemberKey) -> Option<Probed> {
        self.ask(|reply| Command::Probe(subject, reply)).await
    }

    /// Who watches that member.
    pub(crate) async fn observers_of(&self, key: MemberKey) -> Vec<MemberKey> {
        self.ask(|reply| Command::Observers(key, reply))
            .await
            .unwrap_or_default()
    }

    /// What the members that this one watches say of themselves.
    pub(crate) async fn subjects(&self) -> Vec<MemberRecord> {
        self.ask(Command::Subjects).await.unwrap_or_default()
    }

    /// Whether any other member is known.
    pub(crate) async fn knows_others(&self) -> bool {
        self.ask(Command::KnowsOthers).await.unwrap_or_default()
    }

    /// Every known member, for people.
    pub(crate) async fn view(&self) -> Vec<MemberView> {
        self.ask(Command::View).await.unwrap_or_default()
    }

    /// Where living members are, to be remembered.
    pub(crate) async fn peers(&self) -> Vec<SocketAddr> {
        self.ask(Command::Peers).await.unwrap_or_default()
    }

    /// Hands this node's own checks to the mesh.
    pub(crate) async fn report(&self, report: SelfReport) {
        self.order(Command::Report(report)).await;
    }

    /// Spreads the judge's word about a member.
    pub(crate) async fn verdict(&self, subject: MemberKey, down: bool) {
        self.order(Command::Verdict(subject, down)).await;
    }

    /// Sends a frame, over a new link if there is none.
    pub(crate) async fn send(&self, to: MemberKey, frame: Frame) {
        self.order(Command::Send(to, frame)).await;
    }

    /// Says goodbye to the neighbours; returns when the frames are handed to the transport.
    pub(crate) async fn leave(&self) {
        self.ask(Command::Leave).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }

    async fn order(&self, command: Command) {
        // A driver that has stopped takes no orders, and its owner stops too.
        drop(self.commands.send(command).await);
    }
}
