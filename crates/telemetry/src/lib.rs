//! What swimlet tells its operators, and the clock it runs by.
//!
//! | module | holds |
//! | --- | --- |
//! | [`clock`] | the one place that turns the machine's monotonic clock into [`Moment`](swimlet_protocol::Moment)s |
//! | [`catalogue`] | every metric: name, kind, labels, meaning |
//! | [`logs`] | structured logs, as text or JSON |
//! | [`admin`] | `/livez`, `/readyz`, `/metrics` |

pub mod admin;
pub mod catalogue;
pub mod clock;
pub mod logs;

pub use clock::Clock;
