//! What a world consists of, and what its network is like, as scenario files say it.

use serde::{Deserialize, Serialize};

use crate::units::{Ppm, Span};

/// The cluster: nodes, zones, aggregators, and how they are set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Nodes at the start, each with a kubelet and an agent.
    pub nodes: u32,
    /// Zones; nodes are dealt to them in turn, so node `i` is in zone `i % zones`.
    pub zones: u16,
    /// Aggregators. The `i`th runs on node `i` beside its agent, so with as many zones each has one.
    pub aggregators: u16,
    /// How fast and how cautious the judges are.
    pub profile: Profile,
    /// `nodeLeaseDurationSeconds`; zero: kubelets write no Lease.
    pub lease: Span,
    /// `nodeStatusReportFrequency`.
    pub status_report: Span,
    /// In-tree's `--node-monitor-grace-period`; zero: the controller manager writes no Unknown of its own.
    pub in_tree_grace: Span,
    /// Brake 2, in whole percent; `None`: the judge's default.
    pub brake_share: Option<u8>,
    /// How it starts.
    pub start: Start,
    /// Nodes without an agent, the last ones.
    pub agentless: u32,
    /// Guards that are switched off, to show that tests go red without them.
    pub without: Vec<Guard>,
}

/// Why no world can be built from a topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No node, or more than the product knows.
    #[error("nodes = {0}: a cluster has 1 to {NODES_MAX}")]
    Nodes(u32),
    /// No zone, or more zones than nodes.
    #[error("zones = {zones}: there are {nodes} nodes, so it must be 1 to {nodes}")]
    Zones {
        /// The zones asked for.
        zones: u16,
        /// The nodes asked for.
        nodes: u32,
    },
    /// More aggregators than nodes, or than a mesh keeps links to.
    #[error(
        "aggregators = {aggregators}: it must be at most {AGGREGATORS_MAX}, one a node, and there are {nodes} nodes"
    )]
    Aggregators {
        /// The aggregators asked for.
        aggregators: u16,
        /// The nodes asked for.
        nodes: u32,
    },
    /// Aggregators need agents on their hosts here.
    #[error(
        "agentless = {agentless}: of {nodes} nodes those that host an aggregator have an agent"
    )]
    Agentless {
        /// The nodes without an agent asked for.
        agentless: u32,
        /// The nodes asked for.
        nodes: u32,
    },
    /// Not a percentage.
    #[error("brake_share = {0}: it is a percentage, 1 to 100")]
    BrakeShare(u8),
    /// A lease without renewals.
    #[error("lease = {0}: kubelets renew every quarter of it; use at least 4s, or 0s for no Lease")]
    Lease(Span),
    /// No status report ever.
    #[error("status_report = {0}: use at least 10s")]
    StatusReport(Span),
}

/// Most nodes: what the mesh's table holds, aggregators and replaced nodes besides.
pub const NODES_MAX: u32 = 15_000;
/// Most aggregators.
pub const AGGREGATORS_MAX: u16 = 8;

/// How a world starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The mesh is joined, links stand, every path has its baseline, and an aggregator leads.
    #[default]
    Formed,
    /// Everything is started at once and has to find together.
    Cold,
}

/// The judge's profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// 4 s of silence.
    #[default]
    Default,
    /// 1 s of silence.
    Fast,
    /// 15 s of silence.
    Cautious,
}

/// A guard that a world can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// Lifeguard's local health in the mesh.
    LocalHealth,
    /// Co-observers are asked before a subject is accused.
    IndirectProbes,
    /// Several distinct accusers: before Down in the mesh, and before a decision.
    DistinctAccusers,
    /// Active verification before a decision.
    Verification,
    /// Only a path that worked can fail.
    Baseline,
    /// Brake 1: no writes by who sees half of the nodes or fewer.
    BrakeMinority,
    /// Brake 2: no writes beyond a share of the nodes.
    BrakeShare,
    /// Brake 3: every zone must confirm when many fall at once.
    BrakeGraded,
}

/// The network between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// One way between two hosts of a zone.
    pub within: Latency,
    /// One way between two zones.
    pub between: Latency,
    /// Packets lost, each way.
    pub loss: Ppm,
    /// Packets that arrive twice.
    pub duplicate: Ppm,
    /// Packets that are overtaken: they take up to 20 ms more.
    pub reorder: Ppm,
    /// Largest UDP payload that arrives, in bytes.
    pub mtu: u16,
    /// One way between an aggregator or kubelet and the API server.
    pub api: Latency,
    /// What a change of a Node takes to reach a watch, beside the way.
    pub watch_lag: Span,
}

/// How long one way takes: between `min` and `max`, evenly, and a straggler up to `tail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The shortest.
    pub min: Span,
    /// The longest of the usual.
    pub max: Span,
    /// The longest of all.
    #[serde(default)]
    pub tail: Span,
    /// How many straggle.
    #[serde(default)]
    pub straggle: Ppm,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            nodes: 20,
            zones: 3,
            aggregators: 3,
            profile: Profile::Default,
            lease: Span::from_secs(40),
            status_report: Span::from_secs(300),
            in_tree_grace: Span::ZERO,
            brake_share: None,
            start: Start::Formed,
            agentless: 0,
            without: Vec::new(),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            within: Latency::even(Span::from_micros(100), Span::from_micros(400)),
            between: Latency {
                min: Span::from_micros(400),
                max: Span::from_millis(2),
                tail: Span::from_millis(60),
                straggle: Ppm::percent(1),
            },
            loss: Ppm::ZERO,
            duplicate: Ppm::ZERO,
            reorder: Ppm::ZERO,
            mtu: 1_452,
            api: Latency {
                min: Span::from_millis(1),
                max: Span::from_millis(4),
                tail: Span::from_millis(100),
                straggle: Ppm::percent(1),
            },
            watch_lag: Span::from_millis(5),
        }
    }
}

impl Topology {
    /// Looks for what no world can be built from.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), TopologyError> {
        let Self {
            nodes,
            zones,
            aggregators,
            agentless,
            lease,
            status_report,
            ..
        } = *self;
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(TopologyError::Nodes(nodes));
        }
        if zones == 0 || u32::from(zones) > nodes {
            return Err(TopologyError::Zones { zones, nodes });
        }
        if aggregators > AGGREGATORS_MAX || u32::from(aggregators) > nodes {
            return Err(TopologyError::Aggregators { aggregators, nodes });
        }
        if agentless > nodes - u32::from(aggregators) {
            return Err(TopologyError::Agentless { agentless, nodes });
        }
        if let Some(share) = self.brake_share
            && !(1..=100).contains(&share)
        {
            return Err(TopologyError::BrakeShare(share));
        }
        if lease != Span::ZERO && lease < Span::from_secs(4) {
            return Err(TopologyError::Lease(lease));
        }
        if status_report < Span::from_secs(10) {
            return Err(TopologyError::StatusReport(status_report));
        }
        Ok(())
    }
}

impl Latency {
    /// Between `min` and `max`, without stragglers.
    #[must_use]
    pub const fn even(min: Span, max: Span) -> Self {
        Self {
            min,
            max,
            tail: Span::ZERO,
            straggle: Ppm::ZERO,
        }
    }
}
