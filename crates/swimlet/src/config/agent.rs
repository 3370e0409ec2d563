//! An agent's settings.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use super::layers::{Faults, Layers};
use super::member::{MemberConfig, Seed};

/// An agent's settings, parsed.
#[derive(Clone, Debug)]
pub(crate) struct AgentConfig {
    pub(crate) member: MemberConfig,
    /// The port this node's kubelet serves on.
    pub(crate) kubelet_port: NonZeroU16,
    /// Where the kubelet serves `/healthz` in the clear.
    pub(crate) kubelet_healthz: SocketAddr,
    /// The API server, for a bare TCP connect.
    pub(crate) api_server: Option<Seed>,
}

impl AgentConfig {
    /// Parses every setting of an agent, or says everything that is wrong.
    pub(crate) fn parse(layers: &Layers, mut faults: Faults) -> Result<Self, Faults> {
        let member = MemberConfig::parse(layers, &mut faults);
        let kubelet_port = layers.required("kubelet-port", &mut faults);
        let kubelet_healthz = layers.required("kubelet-healthz", &mut faults);
        let api_server = layers.optional("api-server", &mut faults);
        match (member, kubelet_port, kubelet_healthz) {
            (Some(member), Some(kubelet_port), Some(kubelet_healthz)) if faults.is_empty() => {
                Ok(Self {
                    member,
                    kubelet_port,
                    kubelet_healthz,
                    api_server,
                })
            }
            _ => Err(faults),
        }
    }
}
