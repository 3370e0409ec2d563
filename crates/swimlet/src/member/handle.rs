//! The handle to a driver, and what can be asked through it.

use std::net::SocketAddr;

use swimlet_protocol::MemberKey;
use swimlet_roles::member::Input;
use swimlet_telemetry::Clock;
use tokio::sync::{mpsc, oneshot};

/// A handle to a running driver; cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(super) me: MemberKey,
    pub(super) clock: Clock,
    pub(super) commands: mpsc::Sender<Command>,
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
    Feed(Input),
    KnowsOthers(oneshot::Sender<bool>),
    Paths(oneshot::Sender<usize>),
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

    /// Hands something to the member.
    pub(crate) async fn feed(&self, input: Input) {
        // A driver that has stopped takes no orders, and its owner stops too.
        drop(self.commands.send(Command::Feed(input)).await);
    }

    /// How many kubelet ports it has reached within the baseline window.
    pub(crate) async fn paths(&self) -> usize {
        self.ask(Command::Paths).await.unwrap_or_default()
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

    /// Says goodbye to the neighbours; returns when the frames are handed to the transport.
    pub(crate) async fn leave(&self) {
        self.ask(Command::Leave).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}
