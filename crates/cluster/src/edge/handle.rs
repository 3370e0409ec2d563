//! What the rest of the process holds of the edge.

use std::fmt;
use std::sync::Arc;

use swimlet_verdict::{
    ApiHealth, Decision, Input, LeaseRead, NodeRef, Notice, WatchHealth, WriteOutcome,
};
use tokio::sync::watch;

use crate::access::Access;
use crate::client::ClientStats;
use crate::election::{ElectionStats, Leadership, Wish};
use crate::events::{Announcer, EventStats};
use crate::leases::{LeaseQuestions, LeaseStats};
use crate::nodes::WatchStats;
use crate::pods::PodStats;
use crate::writer::{Queue, WriterStats};

/// What the rest of the process holds of the edge. Cheap to clone.
#[derive(Clone)]
pub struct EdgeHandle {
    pub(super) decisions: Arc<Queue>,
    pub(super) lease_reads: LeaseQuestions,
    pub(super) announcer: Announcer,
    pub(super) wish: watch::Sender<Wish>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) pause: watch::Receiver<Option<Arc<str>>>,
    pub(super) holder: watch::Receiver<Option<Arc<str>>>,
    pub(super) api: watch::Receiver<ApiHealth>,
    pub(super) watch: watch::Receiver<WatchHealth>,
    pub(super) access: watch::Receiver<Option<Arc<[Access]>>>,
    pub(super) stats: EdgeStats,
}

/// Counters of every part.
#[derive(Clone, Debug, Default)]
pub struct EdgeStats {
    /// The client.
    pub client: Arc<ClientStats>,
    /// The election.
    pub election: Arc<ElectionStats>,
    /// The Node watch.
    pub watch: Arc<WatchStats>,
    /// The condition writer.
    pub writer: Arc<WriterStats>,
    /// The pod marker.
    pub pods: Arc<PodStats>,
    /// Events.
    pub events: Arc<EventStats>,
    /// Reads of Leases.
    pub leases: Arc<LeaseStats>,
}

/// Whether the edge does its work, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether the last call to the API server was answered.
    pub api: ApiHealth,
    /// Whether the picture of the Nodes is complete and current.
    pub watch: WatchHealth,
    /// What RBAC does not let us do; `None` while unknown.
    pub missing: Option<Arc<[Access]>>,
}

impl EdgeHandle {
    /// Hands a decision to the writer; the newest about a Node wins. One that writes nothing
    /// withdraws an older one at once, even after its attempt has begun, unless its patch is
    /// already on its way.
    ///
    /// # Errors
    /// If [too many](crate::writer::PENDING_MAX) wait; the error is what the judge is to be told.
    pub fn decide(&self, decision: Decision) -> Result<(), Box<Input>> {
        self.decisions.put(decision).map_err(|decision| {
            Box::new(Input::Written {
                node: decision.node,
                episode: decision.episode,
                outcome: WriteOutcome::Failed,
            })
        })
    }

    /// Asks for a live read of a node's Lease; the answer comes as an [`Input::Lease`], within
    /// 3 s of the question.
    ///
    /// # Errors
    /// If [too many](crate::leases::LEASE_READS_MAX) await their answers; the error is what the
    /// judge is to be told.
    pub fn read_lease(&self, node: NodeRef) -> Result<(), Box<Input>> {
        self.lease_reads.ask(node).map_err(|node| {
            Box::new(Input::Lease {
                node,
                read: LeaseRead::Failed,
            })
        })
    }

    /// Makes an Event of what the judge wants known: on the Node that it is about, or on the
    /// election's Lease if it concerns the whole cluster. Without repetition and bounded in
    /// rate; never waits.
    pub fn notice(&self, notice: &Notice) {
        self.announcer.announce(notice);
    }

    /// Releases the Lease if we hold it, and leaves it to others for two lease durations.
    pub fn step_down(&self) {
        self.wish.send_modify(|wish| wish.step_downs += 1);
    }

    /// Stand for election, or do not. A leader that is told not to releases the Lease.
    pub fn stand(&self, standing: bool) {
        self.wish
            .send_if_modified(|wish| std::mem::replace(&mut wish.standing, standing) != standing);
    }

    /// Whether we lead; answers by the clock.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        *self.leadership.borrow()
    }

    /// The reason of the pause that is on, if one is.
    #[must_use]
    pub fn pause(&self) -> Option<Arc<str>> {
        self.pause.borrow().clone()
    }

    /// Who holds the Lease, by the last look at it; empty after a release.
    #[must_use]
    pub fn holder(&self) -> Option<Arc<str>> {
        self.holder.borrow().clone()
    }

    /// Whether the edge does its work.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            api: *self.api.borrow(),
            watch: *self.watch.borrow(),
            missing: self.access.borrow().clone(),
        }
    }

    /// Returns when the readiness may have changed.
    pub async fn readiness_changed(&mut self) {
        // A closed channel keeps its last value: then nothing ever changes again.
        tokio::select! {
            Ok(()) = self.api.changed() => {}
            Ok(()) = self.watch.changed() => {}
            Ok(()) = self.access.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &EdgeStats {
        &self.stats
    }
}

impl Readiness {
    /// Whether everything is as it should be.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.api == ApiHealth::Working
            && self.watch == WatchHealth::Fresh
            && self
                .missing
                .as_ref()
                .is_some_and(|missing| missing.is_empty())
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.api == ApiHealth::Failing {
            return f.write_str("the API server does not answer");
        }
        if self.watch == WatchHealth::Stale {
            return f.write_str("the picture of the Nodes is not complete or not current");
        }
        match &self.missing {
            None => f.write_str("the access check is not done"),
            Some(missing) if missing.is_empty() => f.write_str("ready"),
            Some(missing) => {
                f.write_str("RBAC does not grant: ")?;
                for (index, access) in missing.iter().enumerate() {
                    write!(f, "{}{access}", if index == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}
