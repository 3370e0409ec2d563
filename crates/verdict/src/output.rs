//! What the judge concludes, and what it asks for.

use swimlet_protocol::frame::VerifySubject;
use swimlet_protocol::{MemberKey, NodeName};

use crate::evidence::Evidence;
use crate::input::SeenShare;
use crate::node::NodeRef;
use crate::verdict::{Rule, Verdict};

/// One thing the judge wants done. [`Output::Decide`] alone is a conclusion; the
/// others ask for evidence, or announce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A verdict about a node changed. Boxed: evidence is large, and rare.
    Decide(Box<Decision>),
    /// Tell me who watches this member: [`crate::Input::Observers`].
    Observe {
        /// Whom.
        subject: MemberKey,
    },
    /// Ask these verifiers, and feed what they answer as [`crate::Input::Verified`].
    Verify {
        /// Comes back with each answer.
        round: u32,
        /// Whom to ask for what; one datagram each.
        asks: Vec<Ask>,
    },
    /// Read this node's Lease live: [`crate::Input::Lease`].
    ReadLease(NodeRef),
    /// Release the election's Lease, and do not stand while
    /// [`crate::Judge::may_stand`] says no.
    StepDown {
        /// Why.
        reason: StepDownReason,
    },
    /// Something people should know.
    Notice(Notice),
}

/// A verdict about one node, with what it rests on.
///
/// If [`Verdict::reason`] is `Some`, the decision asks for `Ready=Unknown` to be
/// written, and its evidence carries the Ready condition as the judge saw it: a
/// fresh read that shows another status or heartbeat voids the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Which Node object.
    pub node: NodeRef,
    /// Numbers this judge's decisions that write, anew also where one was withdrawn or refused
    /// before; what withdraws one bears its number. Comes back in [`crate::Input::Written`].
    pub episode: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// What it rests on.
    pub evidence: Evidence,
    /// Which rule led to it.
    pub rule: Rule,
}

/// What one verifier is asked in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whom to ask; may be ourselves.
    pub verifier: MemberKey,
    /// What to try, at most [`swimlet_protocol::frame::SUBJECTS_MAX`].
    pub subjects: Vec<VerifySubject>,
}

/// Why a leader releases its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepDownReason {
    /// It sees half of the nodes or fewer, and another aggregator sees more.
    AnotherSeesMore {
        /// What we see.
        mine: SeenShare,
        /// What the other sees.
        other: SeenShare,
    },
    /// It sees half of the nodes or fewer, and no other aggregator.
    Isolated {
        /// What we see.
        mine: SeenShare,
    },
}

/// Something people should know; each is said once when it begins and once when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A brake went on.
    BrakeOn {
        /// Which.
        brake: Brake,
    },
    /// A brake went off.
    BrakeOff {
        /// Which.
        brake: Brake,
    },
    /// A node's kubelet port answers, its agent does not.
    AgentMissing {
        /// Which node.
        node: NodeName,
    },
    /// No peer reaches a node whose kubelet reaches the API server.
    MeshCutOff {
        /// Which node.
        node: NodeName,
    },
    /// Too few verifiers have a path to a silent node.
    Unverifiable {
        /// Which node.
        node: NodeName,
        /// Hosts that found it silent over a path that worked.
        witnesses: usize,
        /// Hosts needed.
        need: usize,
    },
    /// A verdict that would be written is not.
    Withheld {
        /// Which node.
        node: NodeName,
        /// Why not.
        rule: Rule,
    },
    /// All agents left within minutes: nodes are covered by none.
    CoveredByNone {
        /// How many left.
        left: usize,
    },
    /// Our Unknown was taken back by a kubelet that no peer reaches.
    TakenBack {
        /// Which node.
        node: NodeName,
    },
    /// Many nodes say that they cannot reach the API server: it is the control
    /// plane, not they.
    ApiCutOffMany {
        /// How many.
        nodes: usize,
    },
}

/// What can stop writes for many nodes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Brake {
    /// (1) Half or fewer of the nodes with an agent are seen alive.
    Minority,
    /// (2) More nodes than the configured share would bear our Unknown.
    Share,
    /// (3) Many nodes fell within a minute: each other zone must confirm.
    Graded,
    /// All agents left within minutes.
    CoveredByNone,
}

/// Which brakes are on, and on what figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brakes {
    /// Brake 1.
    pub minority: bool,
    /// Brake 2: the next write would exceed the share.
    pub share: bool,
    /// Brake 3.
    pub graded: bool,
    /// All agents left.
    pub covered_by_none: bool,
    /// Writes are paused by hand.
    pub paused: bool,
    /// What we see alive.
    pub seen: SeenShare,
    /// Nodes that bear our Unknown.
    pub unknown: usize,
    /// Nodes with an agent: the measure for brakes 2 and 3.
    pub monitored: usize,
    /// Nodes that fell within the last minute.
    pub fell: usize,
}

impl Brake {
    /// The brake's name in metrics and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Minority => "minority",
            Self::Share => "share",
            Self::Graded => "graded",
            Self::CoveredByNone => "covered-by-none",
        }
    }
}
