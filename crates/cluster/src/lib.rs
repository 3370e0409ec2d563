//! The Kubernetes edge of swimlet: what it sees of the cluster, and what it writes to it.
//!
//! Nothing here decides about liveness. The Node watch, the election and live reads of Leases
//! become [`swimlet_verdict::Input`]s; a [`swimlet_verdict::Decision`] becomes one patch of one
//! condition, under preconditions that make a stale one fail.
//!
//! | module | does |
//! | --- | --- |
//! | [`client`] | the client: no retries of its own, bounds, Retry-After brought to the surface |
//! | [`nodes`] | list and watch of Nodes |
//! | [`election`] | leader election over a Lease, with the pause annotation |
//! | [`writer`] | `Ready=Unknown`, by the contract of KEP-6371 |
//! | [`pods`] | Ready=False on the pods of such a Node, as the in-tree controller would |
//! | [`events`] | Events for people |
//! | [`leases`] | live reads of the kubelets' Leases |
//! | [`access`] | what RBAC lets us do, and what it does not |
//! | [`edge`] | all of them together, behind one `run()` |
//!
//! Three parts are pure, for whoever models an API server: the election ([`election::Election`]),
//! whether the API server works ([`health::CallHealth`]), and what a fresh read of a Node says
//! against a decision ([`writer::overtaken`]).
//!
//! Never written: a node's Lease, a taint, `Ready=True`, `lastHeartbeatTime`.

pub mod access;
mod authority;
mod backoff;
pub mod client;
mod clock;
pub mod edge;
pub mod election;
pub mod events;
mod fallen;
pub mod fault;
pub mod health;
pub mod leases;
pub mod mode;
mod node;
pub mod nodes;
pub mod pods;
mod roster;
pub mod writer;

pub use client::{ClientError, Clients, Source};
pub use edge::{Edge, EdgeConfig, EdgeError, EdgeHandle, Readiness};
pub use election::{ElectionConfig, Leadership, PAUSE_ANNOTATION};
pub use fault::Fault;
pub use mode::Mode;
pub use node::{AGENT_LABEL, HOLD_ANNOTATION};

/// Under which name our patches stand in `managedFields`.
pub const FIELD_MANAGER: &str = "swimlet";
