//! The total table: agent × kubelet port × heartbeats → row.

use crate::verdict::{Rule, Verdict};

/// What is known of a node's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Agent {
    /// It answers someone.
    Answers,
    /// It answers nobody.
    Silent,
    /// It said goodbye.
    Left,
}

/// What is known of a node's kubelet port: the most alive answer that any
/// verifier got and that counts for this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// TLS was finished and HTTP answered.
    AnswersTls,
    /// The kernel accepts, and nobody answers.
    AcceptsOnly,
    /// It refuses: a packet of the host, or of a firewall before it.
    Refuses,
    /// Nothing comes back on a path that worked.
    Silent,
    /// No verifier had a path that worked, so silence says nothing.
    NeverReachable,
}

/// What is known of a node's heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Heartbeats {
    /// One was seen after the evidence began.
    Moving,
    /// None was, and there is a Lease to show it.
    Silent,
    /// There is no Lease to look at (external regime), and nothing else moved.
    None,
}

/// What a cell of the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The verdict once the row's conditions hold.
    pub verdict: Verdict,
    /// How long the evidence must have stood.
    pub persistence: Persistence,
    /// Whether heartbeats must be silent for two observed periods besides.
    pub needs_silence: bool,
    /// The rule that the decision names.
    pub rule: Rule,
    /// Why this cell has this row.
    pub because: &'static str,
}

/// How long evidence must have stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing is written: the row holds at once.
    None,
    /// The profile's interval: the host is silent.
    Profile,
    /// In-tree's default grace: the host, and so its data plane, may live.
    InTreeGrace,
}

impl Agent {
    /// Every value, for tests and metrics.
    pub const ALL: [Self; 3] = [Self::Answers, Self::Silent, Self::Left];
}

impl Port {
    /// Every value, the most alive first.
    pub const ALL: [Self; 5] = [
        Self::AnswersTls,
        Self::AcceptsOnly,
        Self::Refuses,
        Self::Silent,
        Self::NeverReachable,
    ];
}

impl Heartbeats {
    /// Every value, for tests and metrics.
    pub const ALL: [Self; 3] = [Self::Moving, Self::Silent, Self::None];
}

/// The row of a cell. Total by construction: the compiler checks that no cell is
/// missing.
///
/// An agent's own word about its node (its checks of the kubelet and of the API
/// server) is no column: it exists only where the agent answers, and stands beside
/// this table.
#[must_use]
pub const fn row(agent: Agent, port: Port, heartbeats: Heartbeats) -> Row {
    match agent {
        Agent::Answers => agent_answers(port, heartbeats),
        Agent::Silent => agent_silent(port, heartbeats),
        Agent::Left => agent_left(port, heartbeats),
    }
}

const fn agent_answers(port: Port, heartbeats: Heartbeats) -> Row {
    match (port, heartbeats) {
        (_, Heartbeats::Moving) => unwritten(
            Verdict::Alive,
            Rule::AgentAnswers,
            "agent and kubelet both live",
        ),
        (_, Heartbeats::None) => unwritten(
            Verdict::Alive,
            Rule::AgentAnswers,
            "the agent answers; without heartbeats its own checks alone can say more",
        ),
        (Port::AcceptsOnly | Port::Refuses, Heartbeats::Silent) => slow(
            Verdict::KubeletDown,
            Rule::PortDeadAndHeartbeatsSilent,
            "the host lives; the port and the heartbeats agree that the kubelet does not",
        ),
        (Port::AnswersTls | Port::Silent | Port::NeverReachable, Heartbeats::Silent) => slow(
            Verdict::ApiCutOff,
            Rule::HeartbeatsSilent,
            "the host lives, and nothing of its kubelet reaches the API server",
        ),
    }
}

const fn agent_silent(port: Port, heartbeats: Heartbeats) -> Row {
    match (port, heartbeats) {
        (Port::AnswersTls, _) => unwritten(
            Verdict::AgentMissing,
            Rule::PortAnswers,
            "the kubelet answers its port: only the agent is missing",
        ),
        (Port::AcceptsOnly | Port::Refuses, Heartbeats::Moving) => unwritten(
            Verdict::AgentMissing,
            Rule::HeartbeatAfterEvidence,
            "the kubelet reports to the API server, so it lives, whatever its port does",
        ),
        (Port::AcceptsOnly, Heartbeats::Silent | Heartbeats::None) => slow(
            Verdict::KubeletDown,
            Rule::PortDeadAndHeartbeatsSilent,
            "the kernel accepts and nothing behind it answers: a hung userland",
        ),
        (Port::Refuses, Heartbeats::Silent | Heartbeats::None) => slow(
            Verdict::KubeletDown,
            Rule::PortDeadAndHeartbeatsSilent,
            "a refusal is a packet of the host: it lives, its kubelet and agent do not",
        ),
        (Port::Silent | Port::NeverReachable, Heartbeats::Moving) => unwritten(
            Verdict::MeshCutOff,
            Rule::HeartbeatAfterEvidence,
            "no peer reaches it, and its kubelet reaches the API server",
        ),
        (Port::Silent, Heartbeats::Silent | Heartbeats::None) => Row {
            verdict: Verdict::Unreachable,
            persistence: Persistence::Profile,
            needs_silence: false,
            rule: Rule::NoPacketFromHost,
            because: "no packet of any kind comes from the host, and no heartbeat either",
        },
        (Port::NeverReachable, Heartbeats::Silent | Heartbeats::None) => Row {
            verdict: Verdict::Unreachable,
            persistence: Persistence::Profile,
            needs_silence: true,
            rule: Rule::NoPacketAndHeartbeatsSilent,
            because: "only the mesh port ever had a path: one port's silence is weak evidence",
        },
    }
}

const fn agent_left(port: Port, heartbeats: Heartbeats) -> Row {
    match (port, heartbeats) {
        (_, Heartbeats::Moving) => unwritten(
            Verdict::Left,
            Rule::SaidGoodbye,
            "the agent stopped on purpose, the kubelet reports",
        ),
        (Port::AnswersTls, Heartbeats::Silent | Heartbeats::None) => unwritten(
            Verdict::Left,
            Rule::SaidGoodbye,
            "the agent stopped on purpose, the kubelet answers its port",
        ),
        (Port::AcceptsOnly | Port::Refuses, Heartbeats::Silent | Heartbeats::None) => slow(
            Verdict::KubeletDown,
            Rule::PortDeadAndHeartbeatsSilent,
            "the agent stopped on purpose, and its host lives on without a kubelet",
        ),
        (Port::Silent, Heartbeats::Silent | Heartbeats::None) => Row {
            verdict: Verdict::Unreachable,
            persistence: Persistence::Profile,
            needs_silence: true,
            rule: Rule::NoPacketAndHeartbeatsSilent,
            because: "after a goodbye the kubelet's port is the only path: weak evidence",
        },
        (Port::NeverReachable, Heartbeats::Silent | Heartbeats::None) => unwritten(
            Verdict::Unverifiable,
            Rule::TooFewVerifiers,
            "the agent stopped on purpose, and nobody has another path to the host",
        ),
    }
}

const fn unwritten(verdict: Verdict, rule: Rule, because: &'static str) -> Row {
    Row {
        verdict,
        persistence: Persistence::None,
        needs_silence: false,
        rule,
        because,
    }
}

/// Where the data plane may live we are never faster than in-tree.
const fn slow(verdict: Verdict, rule: Rule, because: &'static str) -> Row {
    Row {
        verdict,
        persistence: Persistence::InTreeGrace,
        needs_silence: true,
        rule,
        because,
    }
}

#[cfg(test)]
mod tests;
