//! The Nodes that bear our Unknown: whose pods are to be marked.
//!
//! Fed by the watch and, so that nobody waits for the watch, by the writer. The marker works from
//! what is here and not from a queue of writes: so a leader that wrote and died before it could
//! mark the pods leaves nothing undone, the next one finds the Node here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use swimlet_verdict::{NodeRef, NodeSeen, NodeUid, ReadyStatus};
use tokio::sync::Notify;

/// See the module. At most as many entries as the watch knows Nodes.
#[derive(Debug, Default)]
pub(crate) struct Fallen {
    nodes: Mutex<BTreeMap<NodeUid, FallenNode>>,
    changed: Notify,
}

/// A Node that bears our Unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FallenNode {
    pub(crate) node: NodeRef,
    /// `lastTransitionTime` of our Unknown: tells one fall from the next.
    pub(crate) transition: Option<i64>,
}

impl Fallen {
    /// Takes in what the watch saw.
    pub(crate) fn see(&self, seen: &NodeSeen) {
        match &seen.ready {
            // A hold stops every write for the Node, those to its pods as well.
            Some(ready) if ready.status == ReadyStatus::Unknown && ready.ours && !seen.hold => {
                self.fell(&seen.node, ready.transition);
            }
            _ => self.forget(&seen.node.uid),
        }
    }

    /// Our Unknown stands on this Node.
    pub(crate) fn fell(&self, node: &NodeRef, transition: Option<i64>) {
        let fallen = FallenNode {
            node: node.clone(),
            transition,
        };
        let before = self.lock().insert(node.uid.clone(), fallen.clone());
        if before.as_ref() != Some(&fallen) {
            self.changed.notify_one();
        }
    }

    /// Our Unknown stands there no more, or the Node does not.
    pub(crate) fn forget(&self, uid: &NodeUid) {
        if self.lock().remove(uid).is_some() {
            self.changed.notify_one();
        }
    }

    /// All of them, by UID.
    pub(crate) fn all(&self) -> BTreeMap<NodeUid, FallenNode> {
        self.lock().clone()
    }

    /// Whether this fall still stands.
    pub(crate) fn contains(&self, fallen: &FallenNode) -> bool {
        self.lock().get(&fallen.node.uid) == Some(fallen)
    }

    /// Returns when something changed since the last call. One waiter at most.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeUid, FallenNode>> {
        // Every critical section is a single map operation: a poisoned map is a whole one.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
