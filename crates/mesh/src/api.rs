//! What goes into a mesh member and what comes out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use swimlet_protocol::frame::{Claim, ProbeOutcome, SelfReport};
use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_protocol::{
    ClusterId, Frame, Generation, Identity, Incarnation, MemberKey, MemberRecord, MemberState,
};

/// How a member starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster; frames of another never reach us, because its certificates do not.
    pub cluster: ClusterId,
    /// What this member says of itself.
    pub me: MemberRecord,
    /// Seeds every random choice: two members with equal inputs and seeds behave alike.
    pub seed: u64,
    /// Addresses to join through, from a list or from DNS. The first
    /// [`SEEDS_MAX`](crate::constants::SEEDS_MAX) are kept.
    pub seeds: Vec<SocketAddr>,
    /// Addresses of peers remembered from an earlier start. The first
    /// [`PEERS_MAX`](crate::constants::PEERS_MAX) are kept.
    pub peers: Vec<SocketAddr>,
}

/// Something happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time passed. Due at [`Mesh::next_wake`](crate::Mesh::next_wake); packets that arrived before must be handed in first.
    Wake,
    /// A datagram came over a link bound to that identity by its certificate.
    Frame {
        /// The link's other end.
        from: MemberKey,
        /// What it said.
        frame: Frame,
    },
    /// A link stands, whoever dialled it.
    LinkUp {
        /// Who is at its other end, by its certificate.
        peer: Identity,
        /// The address its packets come from.
        addresses_seen: SocketAddr,
    },
    /// A link is gone: closed by either side, or idle for too long.
    LinkDown {
        /// Who was at its other end.
        peer: MemberKey,
    },
    /// No address of the peer answered as the peer.
    DialFailed {
        /// Who was dialled.
        peer: MemberKey,
    },
    /// A member opened a sync stream to us. Answered with [`Output::SyncReply`].
    SyncRequested {
        /// Who asks, by its certificate.
        from: Identity,
        /// Names the stream; comes back in the reply.
        token: u64,
        /// What it asks and says of itself.
        request: SyncRequest,
    },
    /// A part of the answer to a sync stream of ours.
    SyncAnswered {
        /// Who answered.
        from: MemberKey,
        /// One part.
        part: SyncPart,
    },
    /// A [`Output::Join`] came to nothing.
    JoinFailed {
        /// The address that was tried.
        address: SocketAddr,
    },
    /// Active verification: try the subject now. Answered with [`Output::Probed`].
    ProbeNow {
        /// Whom.
        subject: MemberKey,
        /// Comes back in the answer.
        token: u64,
    },
    /// What this member's own local checks found; it goes to the aggregators.
    SelfReport(SelfReport),
    /// On aggregators: the judge's word, to be spread.
    Verdict {
        /// About whom.
        subject: MemberKey,
        /// In which generation.
        generation: Generation,
        /// Down, or alive again.
        down: bool,
    },
    /// Name resolution answered (again); replaces the configured seeds.
    Seeds(Vec<SocketAddr>),
    /// Say goodbye to all neighbours. What comes after is only polled out.
    Leave,
}

/// Something to be done at the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Build a link to this member, trying the addresses in order. Answered by
    /// [`Input::LinkUp`] or [`Input::DialFailed`].
    Dial {
        /// Whom; its certificate must say so.
        peer: MemberKey,
        /// Where.
        addresses: Vec<SocketAddr>,
    },
    /// The link is of no more use.
    Close {
        /// Whose.
        peer: MemberKey,
    },
    /// Send a datagram over the link to this member.
    Send {
        /// To whom.
        to: MemberKey,
        /// What.
        frame: Frame,
    },
    /// Dial an address whose member we do not know yet, and open a sync stream.
    /// Answered by [`Input::LinkUp`] and [`Input::SyncAnswered`], or [`Input::JoinFailed`].
    Join {
        /// Where.
        address: SocketAddr,
        /// What to ask there.
        request: SyncRequest,
    },
    /// Open a sync stream on the link to this member.
    Sync {
        /// With whom.
        to: MemberKey,
        /// What to ask.
        request: SyncRequest,
    },
    /// Answer a sync stream that was opened to us, with these messages in order.
    SyncReply {
        /// The stream.
        token: u64,
        /// The answer; the last part has `more == false`.
        parts: Vec<SyncPart>,
    },
    /// What a [`Input::ProbeNow`] found.
    Probed {
        /// The request's token.
        token: u64,
        /// Who was probed.
        subject: MemberKey,
        /// What came of it.
        outcome: ProbeOutcome,
    },
    /// Something worth telling.
    Event(Event),
}

/// What a member notices: for logs, metrics, the story a demo tells and, on
/// aggregators, for the judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member is new here, or came back in a new generation.
    Joined {
        /// Who.
        key: MemberKey,
        /// What it says of itself.
        record: Arc<MemberRecord>,
    },
    /// On aggregators: a state sync told of a member that was unknown here, or, soon after
    /// our start, of one that we know by others' news alone. A living one was announced by
    /// [`Event::Joined`] before; a gone one does not enter the table, so further syncs may
    /// tell of it again. At most one per member of a sync.
    ///
    /// A judge that starts while its predecessors are gone knows from this alone whom the
    /// mesh gave up meanwhile.
    Remembered {
        /// Who.
        key: MemberKey,
        /// What it said of itself.
        record: Arc<MemberRecord>,
        /// What the answering side holds it to be.
        state: MemberState,
        /// How long ago anyone is known to have heard it, to the second; at most
        /// `u32::MAX` seconds. The age a judge may go by, where `Joined` tells none.
        heard: Duration,
    },
    /// A member's state in the table changed.
    StateChanged {
        /// Who.
        key: MemberKey,
        /// What it was held to be.
        from: MemberState,
        /// What it is held to be now.
        to: MemberState,
        /// On whose word; `None` for our own observation.
        by: Option<MemberKey>,
    },
    /// A member said goodbye.
    Left {
        /// Who.
        key: MemberKey,
    },
    /// A member that was long gone is no longer known here.
    Forgotten {
        /// Who it was.
        key: MemberKey,
    },
    /// A probe of ours went unanswered.
    Missed {
        /// By whom.
        subject: MemberKey,
        /// Time since the earliest probe that stayed unanswered after its last answer.
        silent: Duration,
        /// How many in a row, this one included.
        in_row: u32,
    },
    /// On aggregators: a claim arrived or was made by ourselves; its age is as of now.
    Claim(Claim),
    /// On aggregators: an agent's self-report arrived, from itself or passed on.
    Report(SelfReport),
    /// Others suspected us and we raised our incarnation.
    Refuted {
        /// Our new incarnation.
        incarnation: Incarnation,
    },
    /// Two names share one key; the later member is refused.
    NameCollision {
        /// The key.
        key: MemberKey,
    },
    /// Two members claim one address. The one whose link answers there keeps it.
    AddressConflict {
        /// Who had it before.
        before: MemberKey,
        /// Who claims it now.
        now: MemberKey,
        /// The address.
        address: SocketAddr,
    },
    /// We were not run for so long that no timer of ours could be trusted.
    Suspended {
        /// How late the wake-up came.
        late: Duration,
    },
}
