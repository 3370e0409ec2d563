//! Verdicts, and the rules that lead to them.

use std::fmt;

/// What the judge holds a node to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Its agent answers.
    Alive,
    /// No packet of any kind comes from the host. Written.
    Unreachable,
    /// The host lives, its kubelet does not. Written.
    KubeletDown,
    /// The host lives, its kubelet does not reach the API server. Written.
    ApiCutOff,
    /// No heartbeat for long, where nobody else watches. Written. Reserved for the
    /// heartbeat fallback; no rule of this version leads here.
    HeartbeatSilent,
    /// No peer reaches it, its kubelet reaches the API server.
    MeshCutOff,
    /// Its kubelet answers, its agent does not.
    AgentMissing,
    /// Its agent said goodbye; its kubelet is checked directly.
    Left,
    /// Too few verifiers have a path to it.
    Unverifiable,
    /// It never had an agent.
    Unmonitored,
    /// A verdict that would be written is not: a brake, a hold or a pause.
    Withheld,
}

/// Which rule led to a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The agent answers.
    AgentAnswers,
    /// No packet came from the host to any verifier, on any known address.
    NoPacketFromHost,
    /// The same on weak evidence, and its heartbeats stayed silent for two periods.
    NoPacketAndHeartbeatsSilent,
    /// The agent says that both of the kubelet's ports fail.
    AgentSaysKubeletFails,
    /// The kubelet's port refuses or accepts only, and its heartbeats are silent.
    PortDeadAndHeartbeatsSilent,
    /// The agent's check of the API server fails.
    AgentSaysApiFails,
    /// The agent answers, the node's heartbeats do not move.
    HeartbeatsSilent,
    /// A heartbeat was seen after the evidence began.
    HeartbeatAfterEvidence,
    /// The kubelet took our Unknown back, and no peer reaches it.
    TakenBack,
    /// The kubelet's port answers.
    PortAnswers,
    /// The agent said goodbye.
    SaidGoodbye,
    /// Fewer hosts with a working path than needed.
    TooFewVerifiers,
    /// No agent was ever heard, or labels say there is none.
    NoAgentEver,
    /// Brake 1: half or fewer of the nodes are seen alive.
    BrakeMinority,
    /// Brake 2: too many nodes would bear our Unknown.
    BrakeShare,
    /// Brake 3: many nodes fell at once, and a zone has not confirmed it.
    BrakeGraded,
    /// All agents left within minutes.
    BrakeCoveredByNone,
    /// The `swimlet.dev/hold` annotation.
    Hold,
    /// The `swimlet.dev/pause` annotation.
    Paused,
    /// The Node is being removed.
    BeingRemoved,
    /// A decision was overtaken before it was written: by a heartbeat, by newer
    /// evidence, or by the end of what lets this process write.
    Overtaken,
}

impl Verdict {
    /// The reason of the Ready condition that records this verdict; `None` if the
    /// verdict is not written.
    ///
    /// KEP-6371 forbids external detectors one reason only, `NodeStatusUnknown`.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Unreachable => Some("NodeUnreachableFromPeers"),
            Self::KubeletDown => Some("KubeletUnresponsive"),
            Self::ApiCutOff => Some("NodeCutOffFromApiServer"),
            Self::HeartbeatSilent => Some("HeartbeatExpired"),
            Self::Alive
            | Self::MeshCutOff
            | Self::AgentMissing
            | Self::Left
            | Self::Unverifiable
            | Self::Unmonitored
            | Self::Withheld => None,
        }
    }

    /// Whether a Ready condition's reason is one that we write.
    #[must_use]
    pub fn is_reason(reason: &str) -> bool {
        Self::WRITTEN
            .into_iter()
            .any(|verdict| verdict.reason() == Some(reason))
    }

    /// Every verdict.
    pub const ALL: [Self; 11] = [
        Self::Alive,
        Self::Unreachable,
        Self::KubeletDown,
        Self::ApiCutOff,
        Self::HeartbeatSilent,
        Self::MeshCutOff,
        Self::AgentMissing,
        Self::Left,
        Self::Unverifiable,
        Self::Unmonitored,
        Self::Withheld,
    ];

    /// The verdicts that are written.
    pub const WRITTEN: [Self; 4] = [
        Self::Unreachable,
        Self::KubeletDown,
        Self::ApiCutOff,
        Self::HeartbeatSilent,
    ];

    /// The verdict's name in metrics and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Alive => "Alive",
            Self::Unreachable => "Unreachable",
            Self::KubeletDown => "KubeletDown",
            Self::ApiCutOff => "ApiCutOff",
            Self::HeartbeatSilent => "HeartbeatSilent",
            Self::MeshCutOff => "MeshCutOff",
            Self::AgentMissing => "AgentMissing",
            Self::Left => "Left",
            Self::Unverifiable => "Unverifiable",
            Self::Unmonitored => "Unmonitored",
            Self::Withheld => "Withheld",
        }
    }
}

impl Rule {
    /// The rule's name in metrics and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentAnswers => "AgentAnswers",
            Self::NoPacketFromHost => "NoPacketFromHost",
            Self::NoPacketAndHeartbeatsSilent => "NoPacketAndHeartbeatsSilent",
            Self::AgentSaysKubeletFails => "AgentSaysKubeletFails",
            Self::PortDeadAndHeartbeatsSilent => "PortDeadAndHeartbeatsSilent",
            Self::AgentSaysApiFails => "AgentSaysApiFails",
            Self::HeartbeatsSilent => "HeartbeatsSilent",
            Self::HeartbeatAfterEvidence => "HeartbeatAfterEvidence",
            Self::TakenBack => "TakenBack",
            Self::PortAnswers => "PortAnswers",
            Self::SaidGoodbye => "SaidGoodbye",
            Self::TooFewVerifiers => "TooFewVerifiers",
            Self::NoAgentEver => "NoAgentEver",
            Self::BrakeMinority => "BrakeMinority",
            Self::BrakeShare => "BrakeShare",
            Self::BrakeGraded => "BrakeGraded",
            Self::BrakeCoveredByNone => "BrakeCoveredByNone",
            Self::Hold => "Hold",
            Self::Paused => "Paused",
            Self::BeingRemoved => "BeingRemoved",
            Self::Overtaken => "Overtaken",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
