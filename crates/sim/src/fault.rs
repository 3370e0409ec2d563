//! What can go wrong, as scenario files say it.
//!
//! Most faults last: [`World::schedule`](crate::World::schedule) takes for how long, and
//! what was broken is mended then, on exactly the nodes that were hit.

use serde::{Deserialize, Serialize};

use crate::units::{Ppm, Span};

/// Which nodes a fault hits.
///
/// `random` and `share` draw anew for each fault, by the world's seed, among nodes that
/// host no aggregator and are not hit by an earlier fault as long as there are such.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Every node.
    #[default]
    All,
    /// These, by index.
    Nodes(Vec<u32>),
    /// All but these.
    Except(Vec<u32>),
    /// So many that host no aggregator.
    Random(u32),
    /// Such a part of all nodes, none that hosts an aggregator.
    Share(Ppm),
    /// Every node of a zone.
    Zone(u16),
    /// The node that hosts the leading aggregator.
    LeaderHost,
    /// The nodes that host an aggregator.
    AggregatorHosts,
    /// The nodes that host an aggregator that does not lead.
    FollowerHosts,
}

/// Which processes of a node a fault hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// All of them: the whole machine.
    #[default]
    Host,
    /// The agent.
    Agent,
    /// The aggregator, where there is one.
    Aggregator,
    /// The kubelet.
    Kubelet,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// The mesh's UDP ports.
    Mesh,
    /// The kubelet's TCP port.
    Kubelet,
    /// The API server.
    Api,
}

/// How a firewall blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Block {
    /// Without a word.
    #[default]
    Drop,
    /// With a TCP reset or an ICMP message: to a prober it looks like the host's refusal.
    Reject,
}

/// How a kubelet fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KubeletState {
    /// It works.
    Running,
    /// It was killed: its ports refuse, nothing is renewed.
    Dead,
    /// It hangs: the kernel accepts connections, nothing answers, nothing is renewed.
    Hung,
}

/// As what a crashed node comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// As it was.
    #[default]
    Same,
    /// With another address.
    OtherAddress,
    /// As another Node object of the same name, with another address and UID.
    Replaced,
}

/// One thing that goes wrong, or is done to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Power is lost. Ends with a boot.
    Crash {
        /// Which nodes.
        target: Target,
        /// As what they come back.
        #[serde(default)]
        returns: Return,
    },
    /// Nothing is run; packets queue in the sockets. Ends with a resume.
    Freeze {
        /// On which nodes.
        target: Target,
        /// What.
        #[serde(default)]
        part: Part,
    },
    /// Lifeguard's anomaly (arXiv 1707.00788 §V): all packets to and from the host are held
    /// while its timers go on, and released after it.
    Sick {
        /// Which nodes.
        target: Target,
        /// How long packets are held at a time; zero: as long as the fault lasts.
        #[serde(default)]
        held: Span,
        /// How long they flow in between.
        #[serde(default)]
        free: Span,
    },
    /// Each packet takes the mesh's process that long.
    Slow {
        /// On which nodes.
        target: Target,
        /// CPU time of one packet.
        per_packet: Span,
    },
    /// The mesh's process has that part of one CPU, in periods of 100 ms as cgroups have it.
    Starve {
        /// On which nodes.
        target: Target,
        /// The part.
        quota: Ppm,
    },
    /// The kubelet fails. Ends with a start.
    Kubelet {
        /// On which nodes.
        target: Target,
        /// How.
        state: KubeletState,
    },
    /// A process of ours ends. Ends with its start.
    Stop {
        /// On which nodes.
        target: Target,
        /// Agent, aggregator, or both.
        part: Part,
        /// Whether it says goodbye.
        #[serde(default)]
        goodbye: bool,
        /// Not at once, but spread over that time.
        #[serde(default)]
        over: Span,
    },
    /// An agent is killed and started again and again.
    RestartLoop {
        /// On which nodes.
        target: Target,
        /// From start to start.
        every: Span,
        /// How long it runs each time.
        up: Span,
    },
    /// All agents are restarted, each after a goodbye.
    Roll {
        /// How many at a time.
        at_once: Ppm,
        /// How long each is away.
        down: Span,
    },
    /// The wall clock steps: seen in generations and heartbeat times.
    ClockStep {
        /// On which nodes.
        target: Target,
        /// By how much.
        by: Span,
        /// Whether into the past.
        #[serde(default)]
        back: bool,
    },
    /// Packets from some nodes to others do not arrive.
    Cut {
        /// From which nodes.
        from: Target,
        /// To which nodes; for [`Port::Api`] it is not looked at.
        #[serde(default)]
        to: Target,
        /// Which of them.
        ports: Vec<Port>,
        /// The other way as well.
        #[serde(default)]
        both: bool,
        /// How.
        #[serde(default)]
        block: Block,
    },
    /// Some nodes and all others do not reach each other.
    Partition {
        /// One side.
        target: Target,
        /// On which ports.
        ports: Vec<Port>,
    },
    /// Packets are lost on some paths, in addition to what the network loses.
    Loss {
        /// From which nodes.
        from: Target,
        /// To which nodes.
        #[serde(default)]
        to: Target,
        /// How many.
        rate: Ppm,
        /// The other way as well.
        #[serde(default)]
        both: bool,
    },
    /// Every packet may be lost, doubled or overtaken.
    Weather {
        /// How many are lost.
        #[serde(default)]
        loss: Ppm,
        /// How many arrive twice.
        #[serde(default)]
        duplicate: Ppm,
        /// How many are overtaken.
        #[serde(default)]
        reorder: Ppm,
    },
    /// Network cards drop UDP payloads above so many bytes, in and out.
    Mtu {
        /// On which nodes.
        target: Target,
        /// The largest that passes.
        bytes: u16,
    },
    /// The API server does not answer.
    ApiDown,
    /// The API server takes that much longer.
    ApiSlow {
        /// How much longer.
        by: Span,
    },
    /// Watches show changes that much later.
    WatchLag {
        /// How much later.
        by: Span,
    },
    /// New nodes join.
    Join {
        /// How many.
        count: u32,
        /// Spread over that time.
        #[serde(default)]
        over: Span,
        /// The first takes the address of this node, which keeps its Node object.
        #[serde(default)]
        address_of: Option<u32>,
    },
    /// The autoscaler removes nodes: a deletion taint, then the machine and its Node object go.
    Remove {
        /// Which.
        target: Target,
        /// From the taint to the end.
        #[serde(default)]
        grace: Span,
    },
    /// An agent claims that it reaches nobody: as an observer, a co-observer and a verifier.
    Liar {
        /// Which nodes'.
        target: Target,
    },
    /// `swimlet.dev/pause` on our Lease.
    Pause,
    /// `swimlet.dev/hold` on Nodes.
    Hold {
        /// Which.
        target: Target,
    },
}

impl Fault {
    /// Whose it is, where it is about nodes.
    #[must_use]
    pub const fn target(&self) -> Option<&Target> {
        match self {
            Self::Crash { target, .. }
            | Self::Freeze { target, .. }
            | Self::Sick { target, .. }
            | Self::Slow { target, .. }
            | Self::Starve { target, .. }
            | Self::Kubelet { target, .. }
            | Self::Stop { target, .. }
            | Self::RestartLoop { target, .. }
            | Self::ClockStep { target, .. }
            | Self::Partition { target, .. }
            | Self::Mtu { target, .. }
            | Self::Remove { target, .. }
            | Self::Liar { target }
            | Self::Hold { target } => Some(target),
            Self::Cut { from, .. } | Self::Loss { from, .. } => Some(from),
            Self::Roll { .. }
            | Self::Weather { .. }
            | Self::ApiDown
            | Self::ApiSlow { .. }
            | Self::WatchLag { .. }
            | Self::Join { .. }
            | Self::Pause => None,
        }
    }
}
