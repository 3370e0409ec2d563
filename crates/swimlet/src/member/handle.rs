//! The handle to a driver, and what can be asked through it.

use std::collections::VecDeque;
use std::net::SocketAddr;

use swimlet_protocol::MemberKey;
use swimlet_roles::member::Input;
use swimlet_telemetry::Clock;
use tokio::sync::{mpsc, oneshot};

/// Orders handed over at once. A burst of thousands takes a few places of the driver's queue,
/// and a batch of frames to be sent holds the driver up for a few milliseconds at most.
const BATCH_MAX: usize = 256;

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
    FeedAll(Vec<Input>),
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

    /// Hands the first of these orders to the member, as soon as the driver has room for
    /// them. If this is given up before, they all stay.
    pub(crate) async fn feed_first(&self, orders: &mut VecDeque<Input>) {
        match self.commands.reserve().await {
            Ok(room) => {
                let count = orders.len().min(BATCH_MAX);
                room.send(Command::FeedAll(orders.drain(..count).collect()));
            }
            // A driver that has stopped takes no orders, and its owner stops too.
            Err(_) => orders.clear(),
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Guards the judge: a driver that does not read does not hold it up, and gets what
    /// waited, all of it and in order, when it reads again.
    #[tokio::test]
    async fn orders_wait_for_a_slow_driver_and_come_in_order() {
        let (commands, mut received) = mpsc::channel(1);
        let handle = Handle {
            me: MemberKey(1),
            clock: Clock::start(),
            commands,
        };
        let order = |index: u64| Input::Observers {
            subject: MemberKey(index),
        };
        let count = BATCH_MAX as u64 * 2 + 1;
        let mut orders: VecDeque<_> = (0..count).map(order).collect();
        handle.feed_first(&mut orders).await;
        assert_eq!(orders.len(), BATCH_MAX + 1);
        let full = tokio::time::timeout(Duration::ZERO, handle.feed_first(&mut orders));
        full.await.expect_err("there is no room");
        assert_eq!(orders.len(), BATCH_MAX + 1, "given up, and they stay");
        let mut fed = Vec::new();
        while fed.len() < usize::try_from(count).unwrap() {
            if let Some(Command::FeedAll(batch)) = received.recv().await {
                fed.extend(batch);
            }
            if !orders.is_empty() {
                handle.feed_first(&mut orders).await;
            }
        }
        let subjects = fed.into_iter().map(|order| match order {
            Input::Observers { subject } => subject.0,
            other => panic!("{other:?}"),
        });
        assert!(subjects.eq(0..count));
        drop(received);
        orders.push_back(order(0));
        handle.feed_first(&mut orders).await;
        assert!(orders.is_empty(), "nobody takes them any more");
    }
}
