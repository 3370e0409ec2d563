//! QUIC between members: mutual TLS by member identity, one link per peer,
//! datagrams for frames, streams for state sync, and the host checks.
//!
//! [`Transport::start`] binds the endpoints and returns a handle and the queue of
//! [`Event`]s. The handle's methods never wait; what comes of them is an event.
//! A frame is attributed to the name in the certificate of the link it came over,
//! and to nothing the frame says.
//!
//! | module | holds |
//! | --- | --- |
//! | [`ca`] | an issuing authority, for demos, tests and enrolment |
//! | [`check`] | what a host's kubelet port, healthz port or any TCP port answers |
//! | [`credentials`] | certificates from files, read anew while running |

mod accept;
pub mod ca;
pub mod check;
mod config;
pub mod credentials;
mod dial;
mod endpoint;
mod event;
mod link;
mod pool;
mod shared;
mod socket;
mod stats;
mod sync;
mod tls;
mod transport;

pub use config::{Config, StartError};
pub use credentials::{Credentials, CredentialsError};
pub use event::{
    DialError, Event, EventReceiver, JoinError, LinkLoss, Refusal, RefusedReason, SendError,
};
pub use stats::Stats;
pub use transport::Transport;
