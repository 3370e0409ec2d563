//! A running member of the mesh: [`swimlet_roles::Member`], driven by real packets and a real clock.
//!
//! | module | holds |
//! | --- | --- |
//! | [`driver`] | the task that owns the core |
//! | [`handle`] | the handle to it |
//! | [`start`] | from a configuration to a running member |
//! | [`state`] | what is remembered over a restart |
//! | [`seeds`] | looking seeds up |
//! | [`gauges`] | what it holds and has counted, as metrics |

pub(crate) mod driver;
mod gauges;
pub(crate) mod handle;
pub(crate) mod seeds;
pub(crate) mod start;
pub(crate) mod state;
