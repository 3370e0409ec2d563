//! Everything the judge knows of the cluster, and what it counts in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use swimlet_protocol::{MemberKey, Moment, NodeName, Zone};

use crate::constants::{
    ALL_LEFT_SHARE, ALL_LEFT_WITHIN, API_CUT_OFF_SHARE, GRADED_NODES_MIN, GRADED_SHARE,
    GRADED_WITHIN, WITNESSES_MIN, WITNESSES_WANTED,
};
use crate::input::SeenShare;
use crate::state::{AgentMemory, Node};

/// Nodes and members. Bounded by [`crate::constants::NODES_MAX`],
/// [`crate::constants::MEMBERS_MAX`] and [`crate::constants::AGGREGATORS_MAX`].
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) nodes: BTreeMap<NodeName, Node>,
    pub(crate) by_key: BTreeMap<MemberKey, NodeName>,
    pub(crate) aggregators: BTreeMap<MemberKey, Aggregator>,
    /// What is known of agents whose Node has not been seen yet.
    pub(crate) members: BTreeMap<MemberKey, AgentMemory>,
    /// How many Nodes name an address and kubelet port as theirs.
    sockets: BTreeMap<SocketAddr, u32>,
}

/// What is known of an aggregator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Aggregator {
    pub(crate) host: Option<NodeName>,
    pub(crate) heard: Option<Moment>,
}

/// Where a member runs: two members of one host are one witness.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    Node(NodeName),
    /// Aggregators whose host nobody told: they could share one, so they count as one.
    Unknown,
}

/// What is counted over all nodes. Counted on the API's list, never on the mesh's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Census {
    pub(crate) seen: SeenShare,
    pub(crate) monitored: usize,
    pub(crate) unknown: usize,
    /// Nodes that fell within the last minute.
    pub(crate) fell: usize,
    /// These, and the nodes that somebody has begun to miss within that minute.
    pub(crate) falling: usize,
    pub(crate) left: usize,
    pub(crate) left_lately: usize,
    pub(crate) says_api_fails: usize,
    pub(crate) open: usize,
    /// Hosts from which a word against others counts.
    pub(crate) hosts: BTreeSet<Host>,
    /// Zones of monitored nodes.
    pub(crate) zones: BTreeSet<Zone>,
}

impl World {
    pub(crate) fn by_key(&self, key: MemberKey) -> Option<&Node> {
        self.nodes.get(self.by_key.get(&key)?)
    }

    pub(crate) fn by_key_mut(&mut self, key: MemberKey) -> Option<&mut Node> {
        self.nodes.get_mut(self.by_key.get(&key)?)
    }

    /// Where a member runs; `None` if it is neither a known node's agent nor a
    /// known aggregator.
    pub(crate) fn host_of(&self, key: MemberKey) -> Option<Host> {
        if let Some(name) = self.by_key.get(&key) {
            return Some(Host::Node(name.clone()));
        }
        let aggregator = self.aggregators.get(&key)?;
        Some(aggregator.host.clone().map_or(Host::Unknown, Host::Node))
    }

    pub(crate) fn zone_of(&self, host: &Host) -> Zone {
        match host {
            Host::Node(name) => self
                .nodes
                .get(name)
                .map(|node| node.seen.zone.clone())
                .unwrap_or_default(),
            Host::Unknown => Zone::default(),
        }
    }

    /// Whether a word of this host against others counts: it is not itself held
    /// silent by two hosts.
    pub(crate) fn may_accuse(&self, host: &Host) -> bool {
        match host {
            Host::Node(name) => self.nodes.get(name).is_none_or(|node| node.fell.is_none()),
            Host::Unknown => true,
        }
    }

    /// Whether at most one Node names this address and port as its kubelet's.
    pub(crate) fn is_unique(&self, socket: SocketAddr) -> bool {
        self.sockets.get(&socket).copied().unwrap_or(0) <= 1
    }

    pub(crate) fn add_sockets(&mut self, sockets: impl Iterator<Item = SocketAddr>) {
        for socket in sockets {
            *self.sockets.entry(socket).or_default() += 1;
        }
    }

    pub(crate) fn remove_sockets(&mut self, sockets: impl Iterator<Item = SocketAddr>) {
        for socket in sockets {
            if let Some(count) = self.sockets.get_mut(&socket) {
                *count -= 1;
                if *count == 0 {
                    self.sockets.remove(&socket);
                }
            }
        }
    }

    pub(crate) fn census(&self, now: Moment) -> Census {
        let mut census = Census::default();
        for (name, node) in &self.nodes {
            if node.is_open() {
                census.open += 1;
            }
            if !node.is_monitored(now) {
                continue;
            }
            census.monitored += 1;
            census.unknown += usize::from(node.bears_ours());
            census.zones.insert(node.seen.zone.clone());
            let within = |at: Option<Moment>, window| at.is_some_and(|at| now.since(at) <= window);
            census.fell += usize::from(within(node.fell, GRADED_WITHIN));
            census.falling += usize::from(node.is_falling(now, GRADED_WITHIN));
            census.left_lately += usize::from(within(node.agent.left, ALL_LEFT_WITHIN));
            census.says_api_fails +=
                usize::from(node.says_api_fails(now) || node.heartbeats_stopped(now));
            if node.agent.left.is_some() {
                census.left += 1;
                continue;
            }
            census.seen.of += 1;
            if node.is_alive(now) {
                census.seen.alive += 1;
                census.hosts.insert(Host::Node(name.clone()));
            }
        }
        for aggregator in self.aggregators.values() {
            let host = aggregator.host.clone().map_or(Host::Unknown, Host::Node);
            if self.may_accuse(&host) {
                census.hosts.insert(host);
            }
        }
        census.zones.remove(&Zone::default());
        census
    }
}

impl Census {
    /// Hosts that must find `subject` silent: max(2, min(3, unsuspected hosts other
    /// than the subject)).
    pub(crate) fn need(&self, subject: &NodeName) -> usize {
        let own = Host::Node(subject.clone());
        let others = self.hosts.len() - usize::from(self.hosts.contains(&own));
        others.clamp(WITNESSES_MIN, WITNESSES_WANTED)
    }

    /// Brake 3: many nodes fell within a minute. Those that are only missed yet count
    /// too; those that fell before do not, however long they stay.
    pub(crate) fn is_graded(&self) -> bool {
        self.is_many(self.falling)
    }

    /// The same with confirmed falls alone: what people are told.
    pub(crate) fn many_fell(&self) -> bool {
        self.is_many(self.fell)
    }

    fn is_many(&self, nodes: usize) -> bool {
        nodes >= GRADED_NODES_MIN && GRADED_SHARE.exceeded_by(nodes, self.monitored)
    }

    pub(crate) fn several_zones(&self) -> bool {
        self.zones.len() > 1
    }

    /// Whether the agents were taken away, rather than rolled. Once they were, only
    /// agents that come back end it, not the passing of time.
    pub(crate) fn all_left(&self, before: bool) -> bool {
        let most = |left| ALL_LEFT_SHARE.exceeded_by(left, self.monitored);
        let all = self.left > 0 && self.seen.of == 0;
        all || most(self.left_lately) || (before && most(self.left))
    }

    /// Whether so many nodes say that the API server fails that it must be so.
    pub(crate) fn api_fails_for_many(&self) -> bool {
        self.says_api_fails > 1
            && API_CUT_OFF_SHARE.exceeded_by(self.says_api_fails, self.monitored)
    }
}
