//! The sans-IO SWIM member.
//!
//! [`Mesh`] is one member of the mesh: it is handed what happened ([`Input`]) with
//! the moment at which it happened, and is polled for what is to be done
//! ([`Output`]). It owns no socket, no clock and no randomness of its own, so the
//! same code runs over QUIC and in a simulation, and a run can be repeated from its seed.
//!
//! | module | holds |
//! | --- | --- |
//! | [`api`] | what goes in and what comes out |
//! | [`constants`] | every constant, with its reason |
//! | [`table`] | the member table: the truth about who is in the mesh |
//! | [`stats`] | counters |

pub mod api;
mod claims;
pub mod constants;
mod foca_bridge;
mod health;
mod links;
mod mesh;
mod names;
mod news;
mod rings;
pub mod stats;
mod suspicion;
mod switches;
pub mod table;
mod timers;
mod watch;

pub use api::{Config, Event, Input, Output};
pub use mesh::Mesh;
pub use names::Commons;
pub use stats::Stats;
#[doc(hidden)]
pub use switches::Switches;
pub use table::Member;
