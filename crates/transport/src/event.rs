//! What the transport tells its owner.

use std::fmt;
use std::net::SocketAddr;

use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_protocol::{Frame, Identity, MemberKey};
use tokio::sync::mpsc;

/// The bounded queue of events.
pub type EventReceiver = mpsc::Receiver<Event>;

/// Something happened on the wire.
///
/// For one peer, `LinkUp` and `LinkDown` alternate, and its frames come between
/// them. A second connection of the same peer, as after simultaneous dials, is
/// settled silently.
#[derive(Clone, Debug)]
pub enum Event {
    /// A link to a peer is up.
    LinkUp {
        /// Its certificate's name.
        peer: Identity,
        /// Where it is.
        remote: SocketAddr,
        /// Whether we dialled.
        dialled: bool,
    },
    /// The last connection to a peer is gone.
    LinkDown {
        /// Which peer.
        peer: MemberKey,
        /// How it ended.
        reason: LinkLoss,
    },
    /// A [`dial`](crate::Transport::dial) failed at every address.
    DialFailed {
        /// Who was dialled.
        peer: MemberKey,
        /// What the last address did.
        reason: DialError,
    },
    /// A datagram from a peer.
    Frame {
        /// The sender, by its certificate.
        from: MemberKey,
        /// What it says.
        frame: Frame,
    },
    /// A peer asks for a sync; answer with [`reply`](crate::Transport::reply).
    SyncRequested {
        /// The asking peer, by its certificate; `request.record` belongs to it.
        from: Identity,
        /// Names the request in the reply.
        token: u64,
        /// What it asks.
        request: SyncRequest,
    },
    /// A part of the answer to our sync.
    SyncAnswered {
        /// The answering peer, by its certificate.
        from: MemberKey,
        /// The part; `more` says whether another follows.
        part: SyncPart,
    },
    /// A [`join`](crate::Transport::join) failed.
    JoinFailed {
        /// The seed's address.
        address: SocketAddr,
        /// Why.
        reason: JoinError,
    },
    /// A stranger was turned away.
    Refused {
        /// Where it is, or claims to be.
        remote: SocketAddr,
        /// Why.
        reason: RefusedReason,
    },
}

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkLoss {
    /// We closed it.
    ClosedHere,
    /// The peer closed it.
    ClosedByPeer,
    /// The peer does not know the link any more: it restarted.
    Reset,
    /// Nothing was heard for the idle timeout.
    Idle,
    /// The peer sent more malformed datagrams than a member ever would.
    Malformed,
    /// QUIC failed, with what it said.
    Failed(String),
}

impl fmt::Display for LinkLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClosedHere => f.write_str("closed here"),
            Self::ClosedByPeer => f.write_str("closed by the peer"),
            Self::Reset => f.write_str("the peer restarted"),
            Self::Idle => f.write_str("nothing heard for the idle timeout"),
            Self::Malformed => f.write_str("too many malformed datagrams"),
            Self::Failed(what) => write!(f, "failed: {what}"),
        }
    }
}

/// What is wrong with a peer's certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No chain to a CA of this cluster.
    #[error("the certificate was not issued by this cluster's CA")]
    ForeignCa,
    /// Outside its validity period.
    #[error("the certificate is expired or not yet valid")]
    Expired,
    /// Its extended key usage does not cover this role in TLS.
    #[error("the certificate's extended key usage lacks client or server authentication")]
    Usage,
    /// It names no member, or more than one.
    #[error("the certificate must have exactly one URI SAN and that a member's name: {0}")]
    NoIdentity(String),
    /// It names a member of another cluster.
    #[error("the certificate is of cluster {found}")]
    WrongCluster {
        /// The other cluster's id.
        found: String,
    },
    /// It names another member than the one that was dialled.
    #[error("the certificate is that of {found}")]
    WrongName {
        /// Who answered.
        found: Box<Identity>,
    },
    /// It names ourselves.
    #[error("the certificate bears our own name")]
    Ourselves,
    /// Anything else that X.509 verification finds.
    #[error("the certificate is invalid: {0}")]
    Invalid(String),
}

/// Why a stranger was turned away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedReason {
    /// Its certificate was refused.
    #[error(transparent)]
    Certificate(#[from] Refusal),
    /// It began a handshake and did not finish it in time.
    #[error("the handshake was not finished in time")]
    Stalled,
    /// The handshake failed in another way.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// The link table is full.
    #[error("all links are taken")]
    LinksFull,
    /// It spoke in another member's name.
    #[error("{peer} spoke as another member")]
    Impersonation {
        /// The certificate's name.
        peer: Box<Identity>,
    },
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// No usable address was given.
    #[error("no address of a family we listen on")]
    NoAddress,
    /// Nothing came back in time.
    #[error("no answer in time")]
    Timeout,
    /// The peer's certificate was refused by us.
    #[error(transparent)]
    Certificate(#[from] Refusal),
    /// The peer refused our certificate, or closed during the handshake.
    #[error("turned away: {0}")]
    TurnedAway(String),
    /// The peer takes no more handshakes for now.
    #[error("the peer is busy with other handshakes")]
    Busy,
    /// Too many dials of ours are waiting.
    #[error("too many dials are waiting")]
    QueueFull,
    /// Our link table is full.
    #[error("all links are taken")]
    LinksFull,
    /// The dialled identity is our own.
    #[error("that is ourselves")]
    Ourselves,
    /// The transport is shutting down.
    #[error("the transport is stopping")]
    Stopping,
    /// QUIC failed in another way.
    #[error("{0}")]
    Failed(String),
}

/// Why a join failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The seed was not reached; [`DialError::Ourselves`] if it is this member,
    /// as happens with a seed name that resolves to every member.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The seed was reached, but did not answer the sync; the link stays.
    #[error("the seed did not answer the sync: {0}")]
    Sync(String),
}

/// Why a frame was not sent. Each is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no link to that member.
    #[error("no link to that member")]
    NoLink,
    /// The link's send buffer is full.
    #[error("the link's send buffer is full")]
    Full,
    /// The frame does not fit a datagram.
    #[error("the frame does not fit a datagram")]
    TooLarge,
}
