//! The sans-IO SWIM member.
//!
//! [`Mesh`] is one member of the mesh: it is handed what happened ([`Input`]) with
//! the moment at which it happened, and is polled for what is to be done
//! ([`Output`]). It owns no socket, no clock and no randomness of its own, so the
//! same code runs over QUIC and in a simulation, and a run can be repeated from its seed.

pub mod api;
pub mod constants;
mod mesh;
pub mod stats;
pub mod table;

pub use api::{Config, Event, Input, Output};
pub use mesh::Mesh;
pub use stats::Stats;
pub use table::Member;
