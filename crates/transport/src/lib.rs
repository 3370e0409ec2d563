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
//! | [`credentials`] | certificates from files, read anew while running |

pub mod ca;

mod config;
pub mod credentials;
mod event;
mod stats;
mod tls;

pub use config::{Config, StartError};
pub use credentials::{Credentials, CredentialsError};
pub use event::{
    DialError, Event, EventReceiver, JoinError, LinkLoss, Refusal, RefusedReason, SendError,
};
pub use stats::Stats;
