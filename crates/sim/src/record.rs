//! What a run tells: records in the order in which things happened, the truth about
//! every node, and counters.

use std::time::Duration;

use serde::Serialize;
use swimlet_protocol::{MemberState, Moment, NodeName};
use swimlet_verdict::{Decision, Notice, StepDownReason, Verdict, WriteOutcome};

use crate::fault::{Fault, KubeletState};

/// A node, by its index in the world. Never used anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct NodeId(pub u32);

/// A process that is a member of the mesh, by its index in the world: an agent or an
/// aggregator, the same one over its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct MemberId(pub u32);

/// A fault that was scheduled or injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FaultId(pub u32);

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Record {
    /// When, on the world's clock.
    pub at: Moment,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum What {
    /// A fault began; the nodes are those that it hits.
    FaultBegan {
        /// Which.
        id: FaultId,
        /// What it is.
        fault: Fault,
        /// The nodes that were drawn.
        nodes: Vec<NodeId>,
    },
    /// A fault ended.
    FaultEnded {
        /// Which.
        id: FaultId,
    },
    /// A host lost its power.
    Crashed {
        /// Which.
        node: NodeId,
    },
    /// A host booted.
    Booted {
        /// Which.
        node: NodeId,
    },
    /// A node joined the cluster.
    Added {
        /// Which.
        node: NodeId,
    },
    /// A node's object is gone.
    Removed {
        /// Which.
        node: NodeId,
    },
    /// A member's process started.
    Started {
        /// Which.
        member: MemberId,
    },
    /// A member's process ended.
    Stopped {
        /// Which.
        member: MemberId,
        /// Whether it said goodbye.
        goodbye: bool,
    },
    /// A member's own table changed about another.
    Held {
        /// Whose table.
        by: MemberId,
        /// About whom.
        about: MemberId,
        /// What it was held to be.
        from: MemberState,
        /// What it is held to be now.
        to: MemberState,
    },
    /// An aggregator heard that a member is missed.
    Accused {
        /// Where it was heard.
        at: MemberId,
        /// Who misses it.
        by: MemberId,
        /// Whom.
        about: MemberId,
    },
    /// A member refuted a suspicion.
    Refuted {
        /// Who.
        member: MemberId,
    },
    /// A member noticed that it was not run.
    Suspended {
        /// Who.
        member: MemberId,
        /// For how long.
        late: Duration,
    },
    /// A judge decided.
    Decided {
        /// Whose judge.
        by: MemberId,
        /// About which node.
        node: NodeId,
        /// What.
        decision: Box<Decision>,
    },
    /// The API server took our Unknown.
    Written {
        /// Whose.
        by: MemberId,
        /// About which node.
        node: NodeId,
        /// With which verdict.
        verdict: Verdict,
        /// In which episode of that judge.
        episode: u64,
        /// When the evidence began, on the world's clock.
        evidence_began: Moment,
        /// When the kubelet last wrote the Node's status.
        kubelet_wrote: Option<Moment>,
    },
    /// A decision was not written.
    NotWritten {
        /// Whose.
        by: MemberId,
        /// About which node.
        node: NodeId,
        /// What became of it.
        outcome: WriteOutcome,
    },
    /// The controller manager wrote an Unknown of its own.
    InTree {
        /// About which node.
        node: NodeId,
    },
    /// A kubelet wrote `Ready=True` over an Unknown.
    TakenBack {
        /// Which node's.
        node: NodeId,
        /// Whether the Unknown was ours.
        ours: bool,
    },
    /// An aggregator leads now.
    Leads {
        /// Which.
        member: MemberId,
    },
    /// An aggregator does not lead any more.
    Follows {
        /// Which.
        member: MemberId,
    },
    /// A leader makes way.
    StepsDown {
        /// Which.
        member: MemberId,
        /// Why.
        reason: StepDownReason,
    },
    /// A judge tells people something.
    Noticed {
        /// Whose.
        by: MemberId,
        /// What.
        notice: Notice,
    },
}

/// What is true of a node, whoever believes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Its Node object exists.
    pub exists: bool,
    /// The host has power.
    pub power: bool,
    /// Nothing is run on the host.
    pub frozen: bool,
    /// Its packets are held: Lifeguard's anomaly.
    pub sick: bool,
    /// What its kubelet does, frozen or not.
    pub kubelet: KubeletState,
    /// Whether its kubelet is stopped as a process is.
    pub kubelet_frozen: bool,
    /// Its agent's process runs.
    pub agent: bool,
    /// Its agent's process is stopped as a process is.
    pub agent_frozen: bool,
    /// Its agent gets too little CPU, or loses packets by a fault of its own.
    pub impaired: bool,
    /// How many of the other nodes with power it exchanges mesh packets with.
    pub mesh: Reach,
    /// How many of the other nodes with power get through to its kubelet's port and back.
    pub kubelet_port: Reach,
    /// Its kubelet gets through to the API server.
    pub api: bool,
}

/// How many others there is a path with, both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// None.
    Nobody,
    /// Half of them or fewer.
    Few,
    /// More than half.
    Most,
    /// All.
    All,
}

/// What was counted, summed over all members since the world began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Events handled: packets, timers and calls.
    pub events: u64,
    /// Inputs handed to meshes.
    pub inputs: u64,
    /// Mesh datagrams sent.
    pub frames_sent: u64,
    /// Bytes of them with QUIC, UDP and IP around, and of handshakes, streams and QUIC's acks.
    pub bytes_sent: u64,
    /// Datagrams on the wire: frames, handshakes, stream packets and acks.
    pub datagrams_sent: u64,
    /// Frames lost on the way: by the network, a fault, or at a host that is off.
    pub frames_lost: u64,
    /// Frames that a full socket buffer dropped.
    pub frames_overflow: u64,
    /// Frames above the path's MTU.
    pub frames_too_large: u64,
    /// Handshakes that were completed.
    pub handshakes: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// Streams opened.
    pub streams: u64,
    /// Kubelet ports tried.
    pub port_checks: u64,
    /// API requests of aggregators, by kind.
    pub api_reads: u64,
    /// Patches of Nodes by aggregators that were taken.
    pub api_patches: u64,
    /// Writes of the election's Lease.
    pub api_elections: u64,
    /// Times a member's table changed to Down about another.
    pub downs: u64,
    /// Longest event queue.
    pub queue_max: u64,
    /// Most packets that waited at one process.
    pub inbox_max: u64,
    /// Most bytes sent by one member, and which is in [`crate::World::traffic`].
    pub bytes_sent_max: u64,
}

/// What one member sent since the world began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Datagrams on the wire.
    pub datagrams: u64,
    /// Bytes with QUIC, UDP and IP around.
    pub bytes: u64,
}

/// What one member sees and holds.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// Its process runs.
    pub running: bool,
    /// Its host.
    pub host: NodeId,
    /// Whether it is an aggregator.
    pub aggregator: bool,
    /// Its name in the mesh.
    pub name: NodeName,
    /// Members it knows, itself not counted.
    pub members: usize,
    /// Of them held alive or suspected.
    pub alive: usize,
    /// Its links.
    pub links: usize,
    /// Its local health multiplier.
    pub health: u8,
    /// The mesh's counters.
    pub stats: swimlet_mesh::Stats,
}
