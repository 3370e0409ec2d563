//! The decisions that wait to be written, at most one per Node.
//!
//! The judge's side hands in here directly, and not through a channel: a withdrawal takes effect
//! the moment it is said, also while the writer's task waits for something, and needs no room.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use swimlet_verdict::{Decision, NodeUid};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{PENDING_MAX, WriterStats, add_one};

/// Longest time from the moment at which a decision is handed in to the begin of its attempt.
///
/// The node may be alive again by then without a trace on its Node object, and the judge, whose
/// word would have withdrawn the decision, may be late itself. The third of 5,000 Nodes that a
/// zone has is begun within this time at 420 Nodes a second, where 660 patches a second were seen
/// of a real API server. Of what remains the judge decides anew at once, on what it knows by then;
/// the oldest go first, so that each time some are written however slow the server is.
pub const DECISION_AGE_MAX: Duration = Duration::from_secs(4);

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Notify,
    stats: Arc<WriterStats>,
}

/// A decision whose attempt begins.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) decision: Decision,
    /// Set when the decision is withdrawn meanwhile.
    pub(super) withdrawn: Arc<AtomicBool>,
}

/// Places grow, so that they order by age: the oldest decision is the first, and none is passed
/// over for ever by others.
#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<u64, Waiting>,
    places: BTreeMap<NodeUid, u64>,
    next_place: u64,
    busy: BTreeMap<NodeUid, Arc<AtomicBool>>,
}

#[derive(Debug)]
struct Waiting {
    decision: Decision,
    since: Instant,
}

impl Queue {
    pub(crate) fn new(stats: Arc<WriterStats>) -> Self {
        Self {
            state: Mutex::default(),
            changed: Notify::new(),
            stats,
        }
    }

    /// Takes a decision; the newest about a Node wins. One that writes nothing withdraws what
    /// waits, and what is under way and has not sent its patch yet.
    ///
    /// # Errors
    /// If [`PENDING_MAX`] wait: the decision comes back. A withdrawal always finds room.
    pub(crate) fn put(&self, decision: Decision) -> Result<(), Box<Decision>> {
        add_one(&self.stats.decisions);
        let writes = decision.verdict.reason().is_some();
        let mut state = self.lock();
        if !writes && let Some(withdrawn) = state.busy.get(&decision.node.uid) {
            withdrawn.store(true, Ordering::Relaxed);
        }
        if state.remove(&decision.node.uid).is_some() {
            add_one(&self.stats.replaced);
        }
        if writes {
            if state.waiting.len() >= PENDING_MAX {
                add_one(&self.stats.overflow);
                return Err(Box::new(decision));
            }
            state.push(decision, Instant::now());
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Puts a decision back whose attempt failed, unless a newer one waits.
    pub(super) fn put_back(&self, decision: Decision) {
        let mut state = self.lock();
        if !state.places.contains_key(&decision.node.uid) {
            state.push(decision, Instant::now());
        }
    }

    /// The oldest decision about a Node that is not being written, to be written now.
    pub(super) fn begin(&self) -> Option<Begun> {
        let mut state = self.lock();
        // Not two attempts on one Node. As many are passed over as attempts are under way.
        let uid = state
            .waiting
            .values()
            .map(|waiting| &waiting.decision.node.uid)
            .find(|uid| !state.busy.contains_key(*uid))?
            .clone();
        let decision = state.remove(&uid)?;
        let withdrawn = Arc::new(AtomicBool::new(false));
        state.busy.insert(uid, Arc::clone(&withdrawn));
        Some(Begun {
            decision,
            withdrawn,
        })
    }

    /// The attempt on this Node is over.
    pub(super) fn finished(&self, uid: &NodeUid) {
        self.lock().busy.remove(uid);
    }

    /// Takes out a decision that is too old to be begun.
    pub(super) fn take_aged(&self) -> Option<Decision> {
        let mut state = self.lock();
        let oldest = state.waiting.first_entry()?;
        if oldest.get().since.elapsed() <= DECISION_AGE_MAX {
            return None;
        }
        let uid = oldest.get().decision.node.uid.clone();
        add_one(&self.stats.aged);
        state.remove(&uid)
    }

    /// Takes out everything that waits, the oldest first.
    pub(super) fn take_all(&self) -> Vec<Decision> {
        let mut state = self.lock();
        state.places.clear();
        let waiting = std::mem::take(&mut state.waiting);
        waiting
            .into_values()
            .map(|waiting| waiting.decision)
            .collect()
    }

    /// Withdraws every attempt that has not sent its patch yet.
    pub(super) fn withdraw_busy(&self) {
        for withdrawn in self.lock().busy.values() {
            withdrawn.store(true, Ordering::Relaxed);
        }
    }

    /// How many Nodes wait or are being written.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.busy.len()
    }

    /// Returns when something was handed in since the last call. One waiter at most.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in a critical section calls out or panics; whatever a poisoned queue held is
        // better reported than lost.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, decision: Decision, since: Instant) {
        let place = self.next_place;
        self.next_place += 1;
        self.places.insert(decision.node.uid.clone(), place);
        self.waiting.insert(place, Waiting { decision, since });
    }

    fn remove(&mut self, uid: &NodeUid) -> Option<Decision> {
        let place = self.places.remove(uid)?;
        let waiting = self.waiting.remove(&place)?;
        Some(waiting.decision)
    }
}

#[cfg(test)]
mod tests;
