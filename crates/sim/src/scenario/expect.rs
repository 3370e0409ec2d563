//! What must hold.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use swimlet_verdict::{Brake, Notice, Rule, Verdict};

use crate::record::NodeId;
use crate::units::Span;

/// One thing that must hold.
///
/// Times are counted from the beginning of the fault that `of` names (its first, if it
/// happens more than once), or from the start of the run where nodes are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Expect {
    /// Each of these nodes is written, `times` times.
    Written {
        /// Which nodes.
        of: Of,
        /// As what.
        #[serde(default)]
        verdict: VerdictName,
        /// The first write comes no later.
        within: Span,
        /// Nor before.
        #[serde(default)]
        after: Span,
        /// How often each is written.
        #[serde(default = "once")]
        times: u32,
    },
    /// These nodes may be written, so often each; nothing says that they are.
    MayBeWritten {
        /// Which nodes.
        of: Of,
        /// As what; anything without it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        verdict: Option<VerdictName>,
        /// At most so often each.
        #[serde(default = "once")]
        times: u32,
        /// None before.
        #[serde(default)]
        after: Span,
        /// None later.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<Span>,
    },
    /// Some of these nodes are not written: at most so many are.
    WrittenAtMost {
        /// Which nodes.
        of: Of,
        /// So many of them.
        nodes: u32,
    },
    /// People are told of it.
    Noticed {
        /// What.
        notice: NoticeKind,
        /// About one of these, where it is about a node.
        #[serde(default)]
        of: Of,
        /// No later.
        within: Span,
    },
    /// People are not bothered with it.
    NotNoticed {
        /// What.
        notice: NoticeKind,
    },
    /// A leader's judge decided this of each of these nodes.
    Decided {
        /// Which nodes.
        of: Of,
        /// What.
        verdict: VerdictName,
        /// No later.
        within: Span,
    },
    /// From then to the end no judge of a leader holds these nodes to be anything else.
    EndsAs {
        /// Which nodes.
        of: Of,
        /// What.
        verdict: VerdictName,
    },
    /// By then the kubelets of these nodes have their Ready condition `True` again, and
    /// keep it.
    ReadyBy {
        /// Which nodes.
        of: Of,
        /// No later.
        within: Span,
    },
    /// By then all members that run hold all others that run alive.
    OneMesh {
        /// Since when it is counted.
        #[serde(default)]
        of: Of,
        /// No later.
        within: Span,
    },
    /// No member that nothing is wrong with holds another such one to be down, ever.
    NoFalseDowns,
    /// At most so many such events, over all members.
    FalseDownsAtMost {
        /// So many.
        events: u64,
    },
    /// The leadership changes so often at most, after the start.
    LeaderChangesAtMost {
        /// So often.
        changes: u32,
    },
    /// A Ready=True of a kubelet over our Unknown comes at most so often, over all nodes.
    TakenBackAtMost {
        /// So often.
        times: u32,
    },
    /// The in-tree controller writes nothing about any node but these.
    InTreeOnly {
        /// Which nodes.
        of: Of,
    },
    /// No member knows more than so many others at the end.
    MembersAtMost {
        /// So many.
        members: usize,
    },
    /// No more packets than that wait at any process at any time.
    InboxAtMost {
        /// So many.
        packets: u64,
    },
    /// A member notices that it was not run.
    Suspended {
        /// On one of these nodes.
        of: Of,
    },
    /// Each member sends no more than that, on average over the run.
    TrafficAtMost {
        /// Datagrams a second.
        datagrams_per_s: u64,
        /// Bytes a second.
        bytes_per_s: u64,
    },
}

const fn once() -> u32 {
    1
}

/// Which nodes an expectation is about: `"name"` of a fault stands for the nodes that it
/// hit, `[1, 2]` lists them, and leaving it out means those of every fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Of {
    /// Those that any fault hit.
    #[default]
    Every,
    /// Those that the fault of that name hit.
    Fault(String),
    /// These.
    Nodes(Vec<NodeId>),
}

/// A verdict, as files write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictName {
    /// [`Verdict::Alive`]
    Alive,
    /// [`Verdict::Unreachable`]
    #[default]
    Unreachable,
    /// [`Verdict::KubeletDown`]
    KubeletDown,
    /// [`Verdict::ApiCutOff`]
    ApiCutOff,
    /// [`Verdict::HeartbeatSilent`]
    HeartbeatSilent,
    /// [`Verdict::MeshCutOff`]
    MeshCutOff,
    /// [`Verdict::AgentMissing`]
    AgentMissing,
    /// [`Verdict::Left`]
    Left,
    /// [`Verdict::Unverifiable`]
    Unverifiable,
    /// [`Verdict::Unmonitored`]
    Unmonitored,
    /// [`Verdict::Withheld`]
    Withheld,
}

/// A kind of notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// Brake 1 went on.
    BrakeMinority,
    /// Brake 2 went on.
    BrakeShare,
    /// Brake 3 went on.
    BrakeGraded,
    /// The brake of a mesh that left went on.
    BrakeCoveredByNone,
    /// [`Notice::AgentMissing`]
    AgentMissing,
    /// [`Notice::MeshCutOff`]
    MeshCutOff,
    /// [`Notice::Unverifiable`]
    Unverifiable,
    /// [`Notice::Withheld`], by a hold on the node.
    WithheldByHold,
    /// [`Notice::Withheld`], by a pause.
    WithheldByPause,
    /// [`Notice::Withheld`], by a brake.
    WithheldByBrake,
    /// [`Notice::CoveredByNone`]
    CoveredByNone,
    /// [`Notice::TakenBack`]
    TakenBack,
    /// [`Notice::ApiCutOffMany`]
    ApiCutOffMany,
}

impl VerdictName {
    /// The verdict itself.
    #[must_use]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::Alive => Verdict::Alive,
            Self::Unreachable => Verdict::Unreachable,
            Self::KubeletDown => Verdict::KubeletDown,
            Self::ApiCutOff => Verdict::ApiCutOff,
            Self::HeartbeatSilent => Verdict::HeartbeatSilent,
            Self::MeshCutOff => Verdict::MeshCutOff,
            Self::AgentMissing => Verdict::AgentMissing,
            Self::Left => Verdict::Left,
            Self::Unverifiable => Verdict::Unverifiable,
            Self::Unmonitored => Verdict::Unmonitored,
            Self::Withheld => Verdict::Withheld,
        }
    }
}

impl NoticeKind {
    /// Whether a notice is of this kind.
    #[must_use]
    pub const fn is(self, notice: &Notice) -> bool {
        match (self, notice) {
            (Self::BrakeMinority, Notice::BrakeOn { brake }) => matches!(brake, Brake::Minority),
            (Self::BrakeShare, Notice::BrakeOn { brake }) => matches!(brake, Brake::Share),
            (Self::BrakeGraded, Notice::BrakeOn { brake }) => matches!(brake, Brake::Graded),
            (Self::BrakeCoveredByNone, Notice::BrakeOn { brake }) => {
                matches!(brake, Brake::CoveredByNone)
            }
            (Self::WithheldByHold, Notice::Withheld { rule, .. }) => matches!(rule, Rule::Hold),
            (Self::WithheldByPause, Notice::Withheld { rule, .. }) => matches!(rule, Rule::Paused),
            (Self::WithheldByBrake, Notice::Withheld { rule, .. }) => matches!(
                rule,
                Rule::BrakeMinority
                    | Rule::BrakeShare
                    | Rule::BrakeGraded
                    | Rule::BrakeCoveredByNone
            ),
            (Self::AgentMissing, Notice::AgentMissing { .. })
            | (Self::MeshCutOff, Notice::MeshCutOff { .. })
            | (Self::Unverifiable, Notice::Unverifiable { .. })
            | (Self::CoveredByNone, Notice::CoveredByNone { .. })
            | (Self::TakenBack, Notice::TakenBack { .. })
            | (Self::ApiCutOffMany, Notice::ApiCutOffMany { .. }) => true,
            _ => false,
        }
    }
}

impl Serialize for Of {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Every => to.serialize_str("every"),
            Self::Fault(name) => to.serialize_str(name),
            Self::Nodes(nodes) => to.collect_seq(nodes.iter().map(|node| node.0)),
        }
    }
}

impl<'de> Deserialize<'de> for Of {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OfVisitor)
    }
}

struct OfVisitor;

impl<'de> Visitor<'de> for OfVisitor {
    type Value = Of;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a fault, \"every\", or a list of node numbers")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Of, E> {
        Ok(match name {
            "every" => Of::Every,
            name => Of::Fault(name.to_owned()),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Of, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(NodeId(node));
        }
        Ok(Of::Nodes(nodes))
    }
}
