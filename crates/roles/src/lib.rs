//! The two roles of swimlet around its cores: what an agent does beside [`swimlet_mesh`],
//! and what an aggregator does between the mesh and [`swimlet_verdict`].
//!
//! Like the cores it joins, the crate owns no socket, no clock and no randomness. Each of
//! its machines has their shape: `handle(now, Input)`, then `poll() -> Option<Output>`
//! until nothing is left, and `next_wake()` for the time without news. The binary drives
//! them with QUIC, kube-rs and a real clock, the tests and the simulator in virtual time,
//! so what is simulated is what runs.
//!
//! | machine | of | does |
//! | --- | --- | --- |
//! | [`Member`] | both | the mesh's core, frames for members without a link, verification and its baseline |
//! | [`Verifier`] | inside [`Member`] | tries agents and kubelet ports when an aggregator asks, and keeps the baseline by which its "no" counts |
//! | [`SelfChecks`] | agents | turns what an agent finds at its own node into its reports |
//! | [`Aggregator`] | aggregators | owns the judge; feeds it, and turns what it wants into orders |
//!
//! How they are wired, in the binary and in a simulation alike:
//!
//! ```text
//! links, checks of ports ──► Member ──Event──► Aggregator ──► decisions, Lease reads ──► API server
//!                              ▲                 │    ▲
//!                              └─Output::Member──┘    └── Nodes, heartbeats, leadership, outcomes
//! ```
//!
//! Whoever drives a machine drains it after each input. Inputs that have arrived go in
//! before a due [`Member::next_wake`]: what waits unread is no silence.

pub mod aggregator;
pub mod baseline;
pub mod checks;
pub mod member;
mod sweep;
pub mod verifier;

pub use aggregator::Aggregator;
pub use baseline::{Baseline, KubeletPort};
pub use checks::SelfChecks;
pub use member::Member;
pub use verifier::Verifier;
