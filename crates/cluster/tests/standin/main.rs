//! The edge against the stand-in API server: races and refusals that a real one cannot be
//! asked for.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests are tests; clippy tells them apart by the attribute alone"
)]

#[path = "../common/mod.rs"]
mod common;
mod election;
mod leases;
mod notices;
mod pods;
mod support;
mod waiting;
mod watching;
mod writing;
