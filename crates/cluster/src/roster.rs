//! The Nodes that there are, as the watch last saw them.
//!
//! The watch keeps it, and what happens beside the watch asks it: which object a name stands for
//! now, and when its kubelet last wrote its Ready condition.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use swimlet_protocol::NodeName;
use swimlet_verdict::{NodeRef, NodeSeen, NodeUid};

use crate::nodes::NODES_MAX;

/// See the module. At most [`NODES_MAX`] entries of under 100 bytes.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    nodes: Mutex<BTreeMap<NodeName, Entry>>,
}

#[derive(Debug)]
struct Entry {
    uid: NodeUid,
    /// `lastHeartbeatTime` of its Ready condition, in µs, by the node's clock.
    heartbeat: Option<i64>,
}

/// There is no room for one more Node.
#[derive(Debug)]
pub(crate) struct Full;

impl Roster {
    /// Takes in what the watch saw; returns the object of that name that this one replaced.
    ///
    /// # Errors
    /// If [`NODES_MAX`] others are known.
    pub(crate) fn see(&self, seen: &NodeSeen) -> Result<Option<NodeRef>, Full> {
        let entry = Entry {
            uid: seen.node.uid.clone(),
            heartbeat: seen.ready.as_ref().and_then(|ready| ready.heartbeat),
        };
        let mut nodes = self.lock();
        if nodes.len() >= NODES_MAX && !nodes.contains_key(&seen.node.name) {
            return Err(Full);
        }
        let before = nodes.insert(seen.node.name.clone(), entry);
        Ok(before
            .filter(|before| before.uid != seen.node.uid)
            .map(|before| NodeRef {
                name: seen.node.name.clone(),
                uid: before.uid,
            }))
    }

    /// The object is gone. A late deletion of an older one of its name drops nothing.
    pub(crate) fn forget(&self, node: &NodeRef) {
        let mut nodes = self.lock();
        if nodes
            .get(&node.name)
            .is_some_and(|known| known.uid == node.uid)
        {
            nodes.remove(&node.name);
        }
    }

    /// The object that a name stands for.
    pub(crate) fn find(&self, name: &NodeName) -> Option<NodeRef> {
        let nodes = self.lock();
        let uid = nodes.get(name)?.uid.clone();
        Some(NodeRef {
            name: name.clone(),
            uid,
        })
    }

    /// When its kubelet last wrote its Ready condition: µs since the Unix epoch, by the node's
    /// clock.
    pub(crate) fn heartbeat(&self, node: &NodeRef) -> Option<i64> {
        let nodes = self.lock();
        nodes
            .get(&node.name)
            .filter(|known| known.uid == node.uid)?
            .heartbeat
    }

    /// Every object, by name.
    pub(crate) fn all(&self) -> Vec<NodeRef> {
        let nodes = self.lock();
        nodes
            .iter()
            .map(|(name, known)| NodeRef {
                name: name.clone(),
                uid: known.uid.clone(),
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeName, Entry>> {
        // Every critical section is a single map operation: a poisoned map is a whole one.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
