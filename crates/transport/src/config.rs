//! What a transport is started with.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::Identity;

use crate::credentials::CredentialsError;
use crate::event::Refusal;

/// How a transport behaves; [`Config::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this member is. The certificate must name it, after each rotation too.
    pub identity: Identity,
    /// UDP addresses to bind, one socket each; one of either family for a
    /// dual-stack host. An IPv6 socket takes no IPv4.
    pub listen: Vec<SocketAddr>,
    /// Secret from which the stateless-reset key is derived. Kept over restarts,
    /// it lets peers notice a restart in one round trip instead of after the idle
    /// timeout; so keep it in the state directory, and each member its own.
    pub reset_seed: [u8; 32],
    /// Most links; default 4,096: a member has about 20, an aggregator of a
    /// 5,000-node cluster a third of its agents and some room.
    pub links_max: usize,
    /// Most incoming handshakes at once; default 64. At about 1 ms of CPU each
    /// for both sides, they keep one core busy for 32 ms.
    pub handshakes_max: usize,
    /// Incoming handshakes above which an unvalidated address must first answer
    /// a Retry; default 16. Below it a dial is one round trip quicker.
    pub handshakes_retry_above: usize,
    /// Most incoming handshakes at once from one IP address; default 16. A host
    /// runs an agent and perhaps an aggregator, so this leaves room for restarts,
    /// and one host cannot fill `handshakes_max`. Raise it where many members
    /// share an address.
    pub handshakes_per_ip_max: usize,
    /// How long an incoming handshake may take; default 5 s.
    pub handshake_timeout: Duration,
    /// Most outgoing dials at once; default 32.
    pub dials_max: usize,
    /// Most outgoing dials at once or waiting; default 1,024. One more fails at once.
    pub dials_queued_max: usize,
    /// How long a dial tries one address before the next; default 1 s.
    pub dial_attempt_timeout: Duration,
    /// Most syncs at once, asked and answered each; default 16. An answer of
    /// 5,000 members is about 2 MB.
    pub syncs_max: usize,
    /// How long one sync may take, in either role; default 10 s.
    pub sync_timeout: Duration,
    /// How long a link may carry nothing; default 60 s, at least. Probes come
    /// each second or ten; QUIC's own keep-alive is off.
    pub idle_timeout: Duration,
    /// Capacity of the event queue; default 8,192. Frames leave the last 1,024
    /// places to link events and are dropped, counted, when the rest is full.
    pub events_max: usize,
    /// How often the credential files are looked at; default 5 s.
    pub reload_interval: Duration,
}

/// Why a transport did not start. Nothing is left bound.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No address to bind.
    #[error("no address to listen on is configured; set at least one")]
    NoAddress,
    /// An address could not be bound.
    #[error("UDP {address} cannot be bound ({source}); stop what holds it or choose another")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the operating system said, such as "Address already in use".
        source: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The certificate names another member.
    #[error("the certificate is not that of {identity}: {reason}")]
    Identity {
        /// Who this member is configured to be.
        identity: Box<Identity>,
        /// What the certificate has instead.
        reason: Refusal,
    },
    /// TLS cannot be set up with these credentials.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

impl Config {
    /// The defaults for `identity`, listening on `listen`.
    #[must_use]
    pub fn new(identity: Identity, listen: Vec<SocketAddr>, reset_seed: [u8; 32]) -> Self {
        Self {
            identity,
            listen,
            reset_seed,
            links_max: 4_096,
            handshakes_max: 64,
            handshakes_retry_above: 16,
            handshakes_per_ip_max: 16,
            handshake_timeout: Duration::from_secs(5),
            dials_max: 32,
            dials_queued_max: 1_024,
            dial_attempt_timeout: Duration::from_secs(1),
            syncs_max: 16,
            sync_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            events_max: 8_192,
            reload_interval: Duration::from_secs(5),
        }
    }
}
