//! The judge: evidence about nodes in, one [`Decision`] per node out.
//!
//! The crate is pure: no clock, no socket, no randomness. [`Judge::handle`] takes
//! news, [`Judge::poll`] gives what follows from it, and [`Judge::next_wake`] says
//! when to come back without news.
//!
//! # How a death becomes a decision
//!
//! 1. A [`Input::Claim`] opens a case. Its age and silence become a moment of our own
//!    clock: since when that accuser has waited for an answer.
//! 2. While the case is open the leader asks verifiers, round by round, to try the
//!    node's agent and its kubelet port on every address ([`Output::Verify`]), and
//!    has its Lease read ([`Output::ReadLease`]).
//! 3. Answers fold into one cell of the total table ([`table::row`]): agent × port ×
//!    heartbeats. Any answer of the agent ends the case; any packet of the host ends
//!    the silence.
//! 4. A row that is written becomes a [`Decision`] once its conditions hold: enough
//!    witnesses, one a host, each over a path that had worked; two full rounds; the
//!    persistence interval, counted from the earliest unanswered probe that a second
//!    host confirms; no heartbeat since. Weak evidence ([`Weakness`]) needs heartbeats
//!    silent for two of their periods besides.
//! 5. Between a ripe row and a write stand the brakes, holds, pauses, the freshness of
//!    watch and Lease, and a new leader's waiting time.
//!
//! # Limits of this version
//!
//! Nodes that never had an agent are [`Verdict::Unmonitored`] and never written: in the
//! standard regime the in-tree controller watches their Leases. The heartbeat fallback
//! for the other regimes will lead to [`Verdict::HeartbeatSilent`].

mod assess;
pub mod config;
pub mod constants;
pub mod evidence;
mod heartbeat;
pub mod input;
pub mod judge;
pub mod node;
pub mod output;
pub mod standing;
mod state;
mod suspicion;
mod switches;
pub mod table;
pub mod verdict;
mod world;

pub use config::{Config, Percent, Profile};
pub use evidence::{Evidence, Weakness, Witness};
pub use input::{
    AnswerSeen, ApiHealth, Finding, Input, LeaseRead, MemberChange, SeenShare, WatchHealth,
    WriteOutcome,
};
pub use judge::Judge;
pub use node::{Lifecycle, NodeRef, NodeSeen, NodeUid, ReadyCondition, ReadyStatus};
pub use output::{Ask, Brake, Brakes, Decision, Notice, Output, StepDownReason};
pub use standing::{Standing, Stats};
#[doc(hidden)]
pub use switches::Switches;
pub use verdict::{Rule, Verdict};

#[cfg(test)]
mod tests;
