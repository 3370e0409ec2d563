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
