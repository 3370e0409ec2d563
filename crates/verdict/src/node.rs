//! What the API server says of a Node, as the judge needs it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use swimlet_protocol::{MemberKey, NodeName, Zone};

use crate::constants::KUBELET_PORT;

/// A Node object's UID; opaque, only compared.
///
/// A Node re-created under the same name is another node: evidence about the
/// one never reaches the other.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeUid(Arc<str>);

/// One Node object: its name and which object of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRef {
    /// Its name.
    pub name: NodeName,
    /// Its UID.
    pub uid: NodeUid,
}

/// What the Node watch says of a Node. Fed on every change of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSeen {
    /// Which Node.
    pub node: NodeRef,
    /// The key its agent has in the mesh: a function of cluster and name, never
    /// the agent's word.
    pub key: MemberKey,
    /// `topology.kubernetes.io/zone`; empty if unset.
    pub zone: Zone,
    /// Its InternalIPs, both families; the first [`crate::constants::ADDRESSES_MAX`] are tried.
    pub addresses: Vec<IpAddr>,
    /// `status.daemonEndpoints.kubeletEndpoint.Port`; 0 if the kubelet never reported.
    pub kubelet_port: u16,
    /// Its Ready condition; `None` until the kubelet wrote one.
    pub ready: Option<ReadyCondition>,
    /// Whether the `swimlet.dev/hold` annotation stops writes for it.
    pub hold: bool,
    /// Whether it is being removed: a deletion timestamp, or an autoscaler's deletion taint.
    pub deleting: bool,
    /// The KEP-5683 conditions that are True on it.
    pub lifecycle: Vec<Lifecycle>,
    /// Whether labels or taints say that it runs no agent (virtual kubelets, opt-outs).
    pub agentless: bool,
}

/// A Node's Ready condition, as far as the judge compares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Its status.
    pub status: ReadyStatus,
    /// Its reason.
    pub reason: String,
    /// `lastHeartbeatTime` in µs since the Unix epoch, by the *node's* clock: it is
    /// compared for change and never with any other clock.
    pub heartbeat: Option<i64>,
    /// `lastTransitionTime` in µs since the Unix epoch, likewise opaque.
    pub transition: Option<i64>,
    /// Whether the reason is one of [`crate::Verdict::reason`].
    pub ours: bool,
}

/// The status of a Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadyStatus {
    /// The kubelet says that it is ready.
    True,
    /// The kubelet says that it is not: a living kubelet all the same.
    False,
    /// Someone else says that the kubelet is not heard of; the kubelet never writes this.
    Unknown,
}

/// Node lifecycle conditions of KEP-5683. They explain a silence; they make no
/// dead node alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifecycle {
    /// `GracefulNodeShutdownInProgress`.
    GracefulNodeShutdownInProgress,
    /// `DrainInProgress`.
    DrainInProgress,
    /// `Drained`.
    Drained,
    /// `MaintenancePlanned`.
    MaintenancePlanned,
    /// `MaintenanceInProgress`.
    MaintenanceInProgress,
}

impl NodeSeen {
    /// Where its kubelet serves, an entry per address.
    pub fn kubelets(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        let port = match self.kubelet_port {
            0 => KUBELET_PORT,
            port => port,
        };
        self.addresses
            .iter()
            .map(move |address| SocketAddr::new(*address, port))
    }
}

impl NodeUid {
    /// The UID as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for NodeUid {
    fn from(uid: &str) -> Self {
        Self(uid.into())
    }
}

impl From<String> for NodeUid {
    fn from(uid: String) -> Self {
        Self(uid.into())
    }
}

impl fmt::Display for NodeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.name, f)
    }
}

impl Lifecycle {
    /// Every condition, in the order of a node's life.
    pub const ALL: [Self; 5] = [
        Self::MaintenancePlanned,
        Self::DrainInProgress,
        Self::Drained,
        Self::GracefulNodeShutdownInProgress,
        Self::MaintenanceInProgress,
    ];

    /// The condition's type on the Node.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::GracefulNodeShutdownInProgress => "GracefulNodeShutdownInProgress",
            Self::DrainInProgress => "DrainInProgress",
            Self::Drained => "Drained",
            Self::MaintenancePlanned => "MaintenancePlanned",
            Self::MaintenanceInProgress => "MaintenanceInProgress",
        }
    }

    /// The condition with this type, if it is one of them.
    #[must_use]
    pub fn from_condition(condition_type: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|lifecycle| lifecycle.as_str() == condition_type)
    }
}
