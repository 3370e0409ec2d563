//! What the judge holds, for pages, metrics and `explain`.

use swimlet_protocol::{MemberKey, Moment};

use crate::node::NodeRef;
use crate::verdict::{Rule, Verdict};

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which Node.
    pub node: NodeRef,
    /// Its agent's key.
    pub key: MemberKey,
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that led to it.
    pub rule: Rule,
    /// Since when.
    pub since: Moment,
    /// Whether it is accused and the matter is open.
    pub suspected: bool,
    /// Distinct accusers whose accusation stands.
    pub accusers: usize,
    /// When its agent was last heard.
    pub heard: Option<Moment>,
    /// What is known, in a sentence for people.
    pub summary: String,
}

/// What the judge counted since it was made, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Nodes held.
    pub nodes: usize,
    /// Nodes with an open case.
    pub open_cases: usize,
    /// Answers awaited from verifiers.
    pub asks_open: usize,
    /// Claims taken.
    pub claims: u64,
    /// Claims about members that are no known node's agent.
    pub claims_unknown: u64,
    /// Claims older than a later answer, or too old.
    pub claims_stale: u64,
    /// Claims ignored because their accuser was refuted too often of late.
    pub claims_discredited: u64,
    /// Accusers beyond the bound of a case.
    pub accusers_overflow: u64,
    /// Rounds of verification asked.
    pub rounds: u64,
    /// Answers taken.
    pub answers: u64,
    /// Answers to nothing we asked, or too late.
    pub answers_unasked: u64,
    /// Asks that found no room.
    pub asks_overflow: u64,
    /// Lease reads asked for.
    pub lease_reads: u64,
    /// Nodes beyond the bound.
    pub nodes_overflow: u64,
    /// Members beyond the bound.
    pub members_overflow: u64,
    /// Outputs that found no room and are decided again later.
    pub outputs_overflow: u64,
    /// Lease reads put off because too many were in flight.
    pub lease_reads_put_off: u64,
    /// Decisions whose outcome was never told.
    pub outcomes_lost: u64,
    /// Episodes opened by a written verdict.
    pub episodes: u64,
    /// Decisions with a verdict that is written.
    pub decisions_written: u64,
    /// Our Unknowns that were taken back by a kubelet no peer reached.
    pub taken_back: u64,
    /// Pauses of our process, told or noticed.
    pub suspensions: u64,
    /// Decisions voided by a newer Ready condition, a heartbeat or an answer.
    pub voided: u64,
}
