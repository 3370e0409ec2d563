//! A real control plane for tests: etcd, kube-apiserver, kube-controller-manager
//! and hollow kubelets, from one Go binary of the project's own, each in a
//! process of its own; nothing in it is a mock.
//!
//! With [`Options::machine`] an API server runs on a loopback address. With
//! [`Options::namespaces`] the control plane and every node have a network
//! namespace of their own on one bridge, so that node death, blocked ports,
//! one-way loss and partitions are real.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use std::process::Command;
//! use std::time::Duration;
//! use swimlet_rig::{ControlPlane, NodeSpec, Options, User, eventually};
//!
//! let cluster = ControlPlane::start(Options::namespaces()).await?;
//! let node = cluster.add_node(&NodeSpec::new("a").zone("z1")).await?;
//! let agent = node.spawn("agent", Command::new("swimlet").arg("agent"))?;
//! let client = cluster.client(&User::Admin).await?;
//! node.die()?;
//! # Ok(())
//! # }
//! ```

mod audit;
mod binary;
mod control_plane;
mod host;
mod netns;
mod node;
mod options;
mod pki;
mod process;
mod user;
mod wait;
mod workdir;

pub use audit::{AuditEvent, AuditStage};
pub use binary::{Component, controlplane_binary};
pub use control_plane::ControlPlane;
pub use host::{Direction, Host};
pub use node::{Node, NodeSpec};
pub use options::{NetworkMode, Options};
pub use process::Process;
pub use user::User;
pub use wait::{eventually, holds};
