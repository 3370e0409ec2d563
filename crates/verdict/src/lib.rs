//! The judge: evidence about nodes in, one [`Decision`] per node out.
//!
//! The crate is pure: no clock, no socket, no randomness. `handle(now, Input)`
//! takes news, `poll()` gives what follows from it, and `next_wake()` says when to
//! come back without news.

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
pub use verdict::{Rule, Verdict};

#[cfg(test)]
mod tests;
