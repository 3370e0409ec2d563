//! Configuration: one table of settings, from which flags, environment
//! variables, the file's keys and `--help` all come.
//!
//! A setting is looked up as a flag, then as an environment variable, then in the
//! file, then as its default. Everything is parsed before anything is started:
//! all faults are named at once, and the process exits with status 64.

mod agent;
mod aggregator;
mod layers;
mod member;
mod table;

pub(crate) use agent::AgentConfig;
pub(crate) use aggregator::AggregatorConfig;
pub(crate) use layers::{Faults, Layers};
pub(crate) use member::{MemberConfig, Seed, mesh_port};
pub(crate) use table::{For, arguments};

#[cfg(test)]
mod tests;
