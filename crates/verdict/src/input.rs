//! Everything the judge is told.

use std::time::Duration;

use swimlet_protocol::frame::{AgentAnswer, Check, PortAnswer};
use swimlet_protocol::{MemberKey, NodeName};

use crate::node::{NodeRef, NodeSeen};

/// One piece of news for the judge. Ages, not times: the judge turns them into
/// moments of its own clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The Node watch saw a Node.
    Node(NodeSeen),
    /// The Node watch, or a relist, says that it is gone.
    NodeGone(NodeRef),
    /// A relist finished: every Node there is has been fed.
    NodesListed,
    /// Whether the Node watch can be trusted. No decision is taken on a stale one.
    NodeWatch(WatchHealth),
    /// An observer's word about a member.
    Claim {
        /// Whose word.
        accuser: MemberKey,
        /// About whom.
        subject: MemberKey,
        /// What it found.
        finding: Finding,
        /// How long ago it found it, holding times of all hops included.
        age: Duration,
        /// The accuser's local health multiplier, 0 = healthy, 8 = sick.
        health: u8,
    },
    /// What an agent found on its own node.
    Report {
        /// Which agent.
        node: MemberKey,
        /// How long ago, as for a claim.
        age: Duration,
        /// `:10248/healthz` on its loopback.
        kubelet_healthz: Check,
        /// The kubelet's own port.
        kubelet_port: Check,
        /// A TCP connect to the API server.
        api: Check,
    },
    /// A direct answer of a member, of whatever kind.
    Heard {
        /// Which member; an agent or another aggregator.
        node: MemberKey,
        /// How long ago.
        age: Duration,
    },
    /// The mesh's membership changed. Aggregators (this one included) are fed too.
    Member {
        /// Which member.
        key: MemberKey,
        /// What happened.
        change: MemberChange,
        /// Whether it is an aggregator.
        aggregator: bool,
        /// The Node an aggregator runs on; `None` for agents, and if unknown.
        /// Aggregators of unknown hosts count as one host together. It replaces what
        /// was told before, `None` too: the edge derives it anew from the Nodes.
        host: Option<NodeName>,
        /// State sync's memory: how long ago anyone heard it, if it was within 24 h.
        ///
        /// `None` for an agent that is in the member table and of which nobody says
        /// when it was heard. Such a word neither makes its Node a monitored one nor
        /// renews the memory of one: a Node that had no agent until now stays
        /// [`crate::Verdict::Unmonitored`], and is not written, until its agent is heard
        /// once or somebody tells an age. Only after a goodbye does a `Joined` without an
        /// age count, as a return at this moment. Ignored for aggregators.
        heard_age: Option<Duration>,
    },
    /// The answer to [`crate::Output::Observe`]: who watches a member.
    Observers {
        /// Whom.
        subject: MemberKey,
        /// Who; at most [`crate::constants::OBSERVERS_MAX`] are kept.
        observers: Vec<MemberKey>,
    },
    /// A verifier's answers to one [`crate::Output::Verify`].
    Verified {
        /// Which verifier.
        verifier: MemberKey,
        /// The round it was asked in.
        round: u32,
        /// Its local health multiplier, 0 = healthy, 8 = sick.
        health: u8,
        /// What it found.
        answers: Vec<AnswerSeen>,
    },
    /// A node's Lease was read live.
    Lease {
        /// Which node.
        node: NodeRef,
        /// What was read.
        read: LeaseRead,
    },
    /// Whether our own calls to the API server succeed. Told when it changes.
    ///
    /// Failing is an outage and not one lost call: no decision is taken while it lasts, and
    /// every silence of heartbeats starts anew after it. So the edge tells it after two
    /// failures in a row, or after one that comes more than 4 s after the last answer.
    Api(ApiHealth),
    /// Whether this aggregator holds the election's Lease.
    Leadership(bool),
    /// Whether writes are paused by the `swimlet.dev/pause` annotation.
    Paused(bool),
    /// What became of a decision.
    Written {
        /// Which node.
        node: NodeRef,
        /// The decision's episode.
        episode: u64,
        /// What became of it.
        outcome: WriteOutcome,
    },
    /// What share of the nodes another aggregator sees alive.
    PeerView {
        /// Which aggregator.
        aggregator: MemberKey,
        /// What it sees.
        seen: SeenShare,
    },
    /// This process did not run: it was stopped, its machine was suspended, or it was
    /// starved. Answers may have been lost in full socket buffers meanwhile, so nothing
    /// that was found before may ripen by that time: open cases collect their evidence
    /// anew, and nothing is written for one full detection.
    ///
    /// To be fed before anything else after a wake-up that came late; feeding it twice
    /// for the same pause does no harm. The judge notices by itself when it is called
    /// later than [`crate::constants::LATE_MAX`] after [`crate::Judge::next_wake`].
    Suspended {
        /// For how long.
        missed: Duration,
    },
    /// Time passed; call at [`crate::Judge::next_wake`].
    Wake,
}

/// What an observer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Probes stay unanswered.
    Missed {
        /// Age of its earliest unanswered probe after the last answer, when it found this.
        silent: Duration,
    },
    /// It answered (again).
    Answered,
}

/// Whether the Node watch is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchHealth {
    /// Events or bookmarks arrived recently.
    Fresh,
    /// Nothing arrived for longer than a watch may idle.
    Stale,
}

/// Whether our own calls to the API server succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiHealth {
    /// They do.
    Working,
    /// They fail.
    Failing,
}

/// What happened to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// It joined, or came back.
    Joined,
    /// It said goodbye.
    Left,
    /// The mesh holds it down, or forgot it.
    Gone,
}

/// One verifier's answer about one [`swimlet_protocol::frame::VerifySubject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerSeen {
    /// The agent that was asked about.
    pub subject: MemberKey,
    /// Position in the [`crate::Ask`]; says which address was tried.
    pub index: u8,
    /// Whether its agent answered a probe.
    pub agent: AgentAnswer,
    /// Whether the verifier reached that agent within the baseline window before.
    pub agent_baseline: bool,
    /// What its kubelet's port did.
    pub port: PortAnswer,
    /// The same for the port.
    pub port_baseline: bool,
}

/// What a live read of a node's Lease gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRead {
    /// There is one.
    Renewed {
        /// Changes with each renewal, and with nothing else.
        fingerprint: u64,
        /// `spec.leaseDurationSeconds`: a kubelet renews every quarter of it. `None`
        /// if unset: the kubelet's default of 40 s is assumed.
        duration: Option<Duration>,
    },
    /// There is none (404), or one that is not in use: a kubelet with
    /// `enableNodeLease: false` leaves its old Lease behind. Its `renewTime` then lies
    /// before the Node's `lastHeartbeatTime` by more than its duration; both are the
    /// node's own clock, so the edge can tell.
    None,
    /// The read failed: it says nothing.
    Failed,
}

/// What became of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The condition was written.
    Written,
    /// Observe mode: it would have been written.
    WouldWrite,
    /// The fresh read showed another Ready condition than the judge saw.
    Superseded,
    /// The Node changed between read and write.
    Conflict,
    /// The Node is gone, or is another one of that name.
    Gone,
    /// The write failed, or its outcome is unknown.
    Failed,
}

/// How much of the cluster someone sees alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenShare {
    /// Nodes seen alive.
    pub alive: u32,
    /// Nodes of the API's list that had an agent within 24 h and did not leave on purpose.
    pub of: u32,
}

impl SeenShare {
    /// Whether this is more than half; exactly half is not.
    #[must_use]
    pub fn is_majority(self) -> bool {
        u64::from(self.alive) * 2 > u64::from(self.of)
    }

    /// Whether this is a larger share than `other`.
    #[must_use]
    pub fn exceeds(self, other: Self) -> bool {
        u64::from(self.alive) * u64::from(other.of) > u64::from(other.alive) * u64::from(self.of)
    }
}
