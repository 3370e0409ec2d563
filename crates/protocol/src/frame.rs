//! Datagrams: probes and what rides on them.
//!
//! A frame says nothing about its sender: the link it came over is bound to one
//! certificate, and that certificate's name is the sender. Ages travel instead of
//! times, so clocks need not agree.

use std::net::SocketAddr;
use std::sync::Arc;

use bincode::{Decode, Encode};

use crate::bounded::Bounded;
use crate::identity::MemberKey;
use crate::member::{Generation, Incarnation, MemberRecord, MemberState};

/// Largest encoded frame in bytes: a QUIC datagram that fits the smallest
/// path MTU that QUIC allows (1,200 bytes) together with its overhead.
pub const FRAME_BYTES_MAX: usize = 1_100;
/// Most pieces of news in one frame; more than fit its bytes, so bytes decide.
pub const NEWS_MAX: usize = 64;
/// Most claims in one frame.
pub const CLAIMS_MAX: usize = 40;
/// Most subjects of one verification round in one frame: 38 IPv6 subjects fill 1,073 bytes.
pub const SUBJECTS_MAX: usize = 38;
/// Most self-reports in one frame.
pub const REPORTS_MAX: usize = 40;

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Frame {
    /// "Are you there?", once per round from each observer to each subject.
    Probe(Probe),
    /// The answer to a probe.
    Ack(Ack),
    /// "I miss `subject`: probe it now and tell me."
    ProbeRequest(ProbeRequest),
    /// The answer to a probe request.
    ProbeReport(ProbeReport),
    /// Membership news for neighbours.
    Gossip(News),
    /// To aggregators: whom the sender misses, and whom no longer.
    Claims(Bounded<Claim, CLAIMS_MAX>),
    /// To aggregators: what agents found at home. An agent reports itself alone,
    /// an aggregator passes on what its agents reported.
    Reports(Bounded<SelfReport, REPORTS_MAX>),
    /// From aggregators only: "try these, and answer with this round's number."
    Verify(Verify),
    /// The answer to [`Frame::Verify`].
    Verified(Verified),
    /// "I stop on purpose." From the member itself only.
    Leave(Leave),
    /// Between aggregators only: how much of the cluster the sender sees.
    View(View),
}

/// Membership news that ride on a frame.
pub type News = Bounded<Update, NEWS_MAX>;

/// A probe.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Probe {
    /// Chosen by the prober; comes back in the ack.
    pub seq: u32,
    /// The generation it believes the target to be in.
    pub target: Generation,
    /// The target's state as the prober holds it, so that a suspected member
    /// learns it at the next contact (Lifeguard's buddy, arXiv 1707.00788 §IV-C).
    pub held: MemberState,
    /// Digest of the prober's member table; see [`crate::stream::SyncRequest`].
    pub digest: u64,
    /// Piggybacked news.
    pub news: News,
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ack {
    /// The probe's number.
    pub seq: u32,
    /// The answering member's generation.
    pub generation: Generation,
    /// The answering member's incarnation: a refutation if it was raised.
    pub incarnation: Incarnation,
    /// Milliseconds from now until this observer should probe next, so that the
    /// subject's observers spread over the period.
    pub next_slot_ms: u16,
    /// Digest of the answering member's table.
    pub digest: u64,
    /// Piggybacked news.
    pub news: News,
}

/// Asks a co-observer for an indirect probe.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProbeRequest {
    /// Chosen by the asking member; comes back in the report.
    pub seq: u32,
    /// Whom to probe.
    pub subject: MemberKey,
    /// How long ago the asking member sent its earliest probe that stayed
    /// unanswered, in milliseconds.
    pub silent_ms: u32,
}

/// What an indirect probe found.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProbeReport {
    /// The request's number.
    pub seq: u32,
    /// Who was probed.
    pub subject: MemberKey,
    /// What came of it.
    pub outcome: ProbeOutcome,
}

/// What came of an indirect probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum ProbeOutcome {
    /// It answered.
    Reached,
    /// It did not answer in time.
    NotReached,
    /// Lifeguard's nack: the co-observer holds no link to the subject, or its
    /// own health forbids a statement; it is alive, and that is all it says.
    NoStatement,
}

/// One piece of membership news.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Update {
    /// A member joined or came back: all it says of itself.
    Joined {
        /// What it says of itself; shared, because it is kept, queued and passed on.
        record: Arc<MemberRecord>,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// A known member's state.
    Changed {
        /// Who.
        subject: MemberKey,
        /// In which generation.
        generation: Generation,
        /// At which incarnation.
        incarnation: Incarnation,
        /// What it is held to be.
        state: MemberState,
        /// Who accuses it; itself for `Alive` and `Left`.
        by: MemberKey,
    },
}

/// One observer's word about one subject, for the aggregators.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Claim {
    /// Whose word this is: the sender's own, unless an aggregator passes it on.
    pub accuser: MemberKey,
    /// About whom.
    pub subject: MemberKey,
    /// The subject's generation, as the accuser knows it.
    pub generation: Generation,
    /// What the accuser found.
    pub finding: Finding,
    /// Age of the finding in milliseconds: at sending, plus the time it was held at each hop.
    pub age_ms: u32,
    /// The accuser's local health multiplier (Lifeguard §IV-A), 0 = healthy, 8 = sick.
    pub health: u8,
}

/// What an observer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Finding {
    /// Probes stay unanswered.
    Missed {
        /// Age of the earliest unanswered probe after the last answer, in milliseconds
        /// at the moment of the finding.
        silent_ms: u32,
        /// Whether the accuser's own probes or an indirect probe asked by another observer failed.
        indirect: bool,
    },
    /// It answered (again).
    Answered,
}

/// What an agent found on its own node.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SelfReport {
    /// Which agent.
    pub node: MemberKey,
    /// Which start of it.
    pub generation: Generation,
    /// Age of the report in milliseconds, as for [`Claim::age_ms`].
    pub age_ms: u32,
    /// `GET 127.0.0.1:10248/healthz`.
    pub kubelet_healthz: Check,
    /// TLS on the kubelet's own port, 10250 by default.
    pub kubelet_port: Check,
    /// A TCP connect to the API server.
    pub api: Check,
}

/// A local check's standing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Check {
    /// Not looked at yet, or not configured.
    Unknown,
    /// The last try succeeded.
    Passing,
    /// It worked once and fails now.
    Failing,
    /// It never worked: its failure says nothing.
    NeverWorked,
}

/// An aggregator's request for active verification.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Verify {
    /// Which round; comes back in the answers.
    pub round: u32,
    /// Whom to try, an entry per known address.
    pub subjects: Bounded<VerifySubject, SUBJECTS_MAX>,
}

/// One address of one node to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct VerifySubject {
    /// The node's agent.
    pub subject: MemberKey,
    /// Where its kubelet serves; the agent is tried at its own known addresses.
    pub kubelet: SocketAddr,
}

/// The answers of one verifier to one request.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Verified {
    /// The request's round.
    pub round: u32,
    /// The verifier's local health multiplier, 0 = healthy, 8 = sick.
    pub health: u8,
    /// One answer per subject of the request that was tried.
    pub answers: Bounded<Answer, SUBJECTS_MAX>,
}

/// What a verifier found at one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Answer {
    /// Position in the request.
    pub index: u8,
    /// The subject at that position.
    pub subject: MemberKey,
    /// Whether its agent answered a probe.
    pub agent: AgentAnswer,
    /// Whether the verifier reached that agent within the baseline window
    /// before; if not, its silence says nothing.
    pub agent_baseline: bool,
    /// What its kubelet port did.
    pub port: PortAnswer,
    /// The same for the port.
    pub port_baseline: bool,
}

/// How an agent answered a verifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum AgentAnswer {
    /// It answered.
    Answers,
    /// Nothing came back in time.
    Silent,
    /// Not tried: the verifier knows no address of it.
    Untried,
}

/// What a kubelet's port did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum PortAnswer {
    /// TLS was finished and HTTP answered, with whatever status.
    Tls {
        /// Whether the served certificate names the node.
        names_node: bool,
    },
    /// The connection was accepted, and no TLS came of it: the kernel lives.
    Accepts,
    /// The connection was refused: a packet of the host (or of a firewall) came back.
    Refuses,
    /// Nothing came back in time.
    Silent,
    /// Not tried.
    Untried,
}

/// A member's goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Leave {
    /// Which start of it ends.
    pub generation: Generation,
    /// Its last incarnation.
    pub incarnation: Incarnation,
}

/// How much of the cluster an aggregator sees: the one that sees less does not
/// stand for election.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct View {
    /// Nodes seen alive.
    pub alive: u32,
    /// Nodes that had an agent within a day and did not leave on purpose.
    pub of: u32,
}
