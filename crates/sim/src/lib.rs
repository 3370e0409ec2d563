//! A deterministic discrete-event simulator of a whole cluster.
//!
//! It runs the production code: the members of `swimlet-mesh`, the judges of
//! `swimlet-verdict`, the roles around them, and the election and the writer's rule of
//! `swimlet-cluster`. What it models is what those cores do not hold: hosts, the network
//! with QUIC and TCP on it, kubelets, and the API server.
//!
//! One seed decides everything. Whatever decides is an integer, and no order comes from a
//! hash map, so [`World::trace_hash`] is equal on every run and machine.
//!
//! | module | holds |
//! | --- | --- |
//! | [`topology`] | the cluster and its network, as scenario files say it |
//! | [`fault`] | what can go wrong |
//! | [`world`] | the engine: [`World`] |
//! | [`record`] | what a run tells: records, truth, counters |
//! | [`scenario`] | a world's faults and what must hold, as files say it, and their runs |
//! | [`invariants`] | what must hold in every run |
//! | [`baseline`] | plain foca on the same network, for comparison |
//! | [`measure`] | the figures, each by one function of sizes and seeds |
//! | [`explore`] | random schedules of faults, and the shrinking of one that breaks something |
//! | [`units`] | lengths of time and shares, as files write them |

mod api;
pub mod baseline;
mod edge;
pub mod explore;
pub mod fault;
mod form;
mod host;
mod inject;
pub mod invariants;
mod kubelet;
mod liar;
mod link;
pub mod measure;
mod net;
mod port;
mod process;
mod queue;
pub mod record;
pub mod scenario;
pub mod topology;
mod trace;
mod truth;
pub mod units;
pub mod world;

pub use fault::{Block, Fault, KubeletState, Part, Port, Return, Target};
pub use record::{
    Counters, FaultId, MemberId, MemberView, NodeId, Reach, Record, Traffic, Truth, What,
};
pub use topology::{Guard, Latency, Network, Profile, Start, Topology, TopologyError};
pub use units::{Ppm, Span, UnitError};
pub use world::World;
