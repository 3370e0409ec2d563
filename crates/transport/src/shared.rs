//! What all tasks of one transport share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn::{Connection, ServerConfig, TransportConfig, VarInt};
use swimlet_protocol::MemberKey;
use swimlet_protocol::stream::SyncPart;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accept::Admission;
use crate::config::Config;
use crate::credentials::Store;
use crate::endpoint::Bound;
use crate::event::Event;
use crate::pool::{Pool, Wire};
use crate::stats::Counters;

/// Why we close a connection, as the peer sees it.
pub(crate) mod code {
    use quinn::VarInt;

    /// The link is no longer wanted.
    pub(crate) const UNWANTED: VarInt = VarInt::from_u32(1);
    /// The member stops.
    pub(crate) const STOPPING: VarInt = VarInt::from_u32(2);
    /// Another connection of the same two members is kept.
    pub(crate) const DOUBLED: VarInt = VarInt::from_u32(3);
    /// The link table is full.
    pub(crate) const FULL: VarInt = VarInt::from_u32(4);
    /// The peer broke the protocol.
    pub(crate) const PROTOCOL: VarInt = VarInt::from_u32(5);
}

/// Shared by the handle and its tasks.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) own: MemberKey,
    pub(crate) store: Store,
    pub(crate) transport: Arc<TransportConfig>,
    pub(crate) server: ServerConfig,
    pub(crate) endpoints: Vec<Bound>,
    /// Of `endpoints`, in their order.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) silent: Arc<AtomicBool>,
    pub(crate) pool: Mutex<Pool<Connection>>,
    pub(crate) admission: Admission,
    /// Members that a dial is under way to; bounded by `dial_queue`.
    pub(crate) dialling: Mutex<BTreeSet<MemberKey>>,
    /// Places for dials, waiting or under way.
    pub(crate) dial_queue: Arc<Semaphore>,
    /// Places for dials under way.
    pub(crate) dials: Semaphore,
    /// Places for syncs that we ask.
    pub(crate) asking: Arc<Semaphore>,
    /// Places for syncs that we answer.
    pub(crate) answering: Arc<Semaphore>,
    /// Syncs that wait for the owner's reply; bounded by `answering`.
    pub(crate) replies: Mutex<BTreeMap<u64, oneshot::Sender<Vec<SyncPart>>>>,
    pub(crate) next_token: AtomicU64,
    pub(crate) cancel: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

impl Shared {
    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool<Connection>> {
        lock(&self.pool)
    }

    /// Queues an event that may be dropped when the owner is slow: a frame, or
    /// word of a stranger. The last places of the queue are not theirs.
    pub(crate) fn offer(&self, event: Event) -> bool {
        let reserved = self.config.events_max / 8;
        self.events.capacity() > reserved && self.events.try_send(event).is_ok()
    }

    /// Tells of a stranger that was turned away, if there is room.
    pub(crate) fn refused(&self, remote: SocketAddr, reason: crate::event::RefusedReason) {
        tracing::debug!(%remote, %reason, "turned away");
        if !self.offer(Event::Refused { remote, reason }) {
            self.counters.events_dropped_queue_full.inc();
        }
    }

    /// Queues an event that must not be lost, waiting for a place.
    pub(crate) async fn tell(&self, event: Event) {
        if self.events.send(event).await.is_err() {
            self.cancel.cancel();
        }
    }

    /// The endpoint for addresses of the family of `remote`.
    pub(crate) fn endpoint_for(&self, remote: SocketAddr) -> Option<&Bound> {
        self.endpoints
            .iter()
            .find(|bound| bound.address.is_ipv6() == remote.is_ipv6())
    }

    pub(crate) fn close_all(&self, code: VarInt) {
        for bound in &self.endpoints {
            bound.endpoint.close(code, b"");
        }
    }
}

impl Wire for Connection {
    fn is_open(&self) -> bool {
        self.close_reason().is_none()
    }
}

/// Locks; a panic elsewhere leaves these simple collections consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
