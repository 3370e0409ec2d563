//! A running member of the mesh: the sans-IO core, driven by real packets and a real clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`driver`] | the task that owns the core |
//! | [`handle`] | the handle to it |
//! | [`start`] | from a configuration to a running member |
//! | [`state`] | what is remembered over a restart |
//! | [`seeds`] | looking seeds up |
//! | [`verifier`] | trying agents and kubelet ports for an aggregator |
//! | [`baseline`] | which kubelet ports this member has reached lately |

pub(crate) mod baseline;
pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod seeds;
pub(crate) mod start;
pub(crate) mod state;
pub(crate) mod verifier;
