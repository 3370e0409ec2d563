//! What every member of the mesh is configured with.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use swimlet_protocol::member::ADDRESSES_MAX;
use swimlet_protocol::{ClusterId, Identity, NodeName, Role, Zone};
use swimlet_telemetry::logs;

use super::layers::{Faults, Layers};
use super::table::For;

/// Mesh port of agents: outside the NodePort and ephemeral ranges, beside Kubernetes' own.
const AGENT_PORT: u16 = 10_270;
/// Mesh port of aggregators, so that one may share a host with an agent.
const AGGREGATOR_PORT: u16 = 10_271;
/// Admin port of agents.
const AGENT_ADMIN_PORT: u16 = 10_272;
/// Admin port of aggregators.
const AGGREGATOR_ADMIN_PORT: u16 = 10_273;
/// Most seeds: a name may stand for many addresses, so a few are plenty.
const SEEDS_MAX: usize = 16;

/// The settings that agents and aggregators share, parsed.
#[derive(Clone, Debug)]
pub(crate) struct MemberConfig {
    pub(crate) identity: Identity,
    pub(crate) zone: Zone,
    /// Where the mesh port is bound, at most one address per family.
    pub(crate) bind: Vec<SocketAddr>,
    /// What other members are told, best first.
    pub(crate) advertise: Vec<SocketAddr>,
    pub(crate) seeds: Vec<Seed>,
    pub(crate) state_dir: Option<PathBuf>,
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
    pub(crate) ca_file: PathBuf,
    pub(crate) admin_bind: SocketAddr,
    pub(crate) log_format: logs::Format,
    pub(crate) log_level: logs::Level,
}

/// `HOST:PORT`, where the host is an address or a DNS name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Why a text is no seed.
#[derive(Debug, thiserror::Error)]
#[error("not of the form HOST:PORT (an IPv6 address stands in brackets)")]
pub(crate) struct SeedError;

impl MemberConfig {
    /// Parses the shared settings; what is wrong goes to `faults`.
    pub(crate) fn parse(layers: &Layers, faults: &mut Faults) -> Option<Self> {
        let role = match layers.role() {
            For::Aggregator => Role::Aggregator,
            For::Agent | For::Both => Role::Agent,
        };
        let cluster = layers.required::<ClusterId>("cluster-id", faults);
        let name = layers.required::<NodeName>("name", faults);
        let zone = layers.plain("zone", faults);
        let hosts = layers.list::<IpAddr>("advertise", faults);
        let bind = bind_addresses(layers, role, &hosts, faults);
        let seeds = layers.list::<Seed>("seeds", faults);
        if seeds.len() > SEEDS_MAX {
            faults.add(format!(
                "seeds has {} entries, {SEEDS_MAX} at most",
                seeds.len()
            ));
        }
        let state_dir = layers.optional("state-dir", faults);
        let cert_file = layers.required("cert-file", faults);
        let key_file = layers.required("key-file", faults);
        let ca_file = layers.required("ca-file", faults);
        let admin_bind = admin_address(layers, role, &hosts, faults);
        let log_format = layers.plain("log-format", faults);
        let log_level = layers.plain("log-level", faults);
        Some(Self {
            identity: Identity {
                cluster: cluster?,
                role,
                name: name?,
            },
            zone: zone?,
            advertise: advertised(&hosts, &bind, role),
            bind,
            seeds,
            state_dir,
            cert_file: cert_file?,
            key_file: key_file?,
            ca_file: ca_file?,
            admin_bind: admin_bind?,
            log_format: log_format?,
            log_level: log_level?,
        })
    }
}

impl FromStr for Seed {
    type Err = SeedError;

    fn from_str(text: &str) -> Result<Self, SeedError> {
        let (host, port) = text.rsplit_once(':').ok_or(SeedError)?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let is_name = |h: &str| !h.is_empty() && !h.contains([':', '/', '[', ']', ' ']);
        let is_valid = match bracketed {
            Some(h) => h.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()),
            None => is_name(host),
        };
        match port.parse() {
            Ok(port) if is_valid && port != 0 => Ok(Self {
                host: host.to_owned(),
                port,
            }),
            _ => Err(SeedError),
        }
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The mesh port of a role, where none is configured.
pub(crate) const fn mesh_port(role: Role) -> u16 {
    match role {
        Role::Agent => AGENT_PORT,
        Role::Aggregator => AGGREGATOR_PORT,
    }
}

fn bind_addresses(
    layers: &Layers,
    role: Role,
    hosts: &[IpAddr],
    faults: &mut Faults,
) -> Vec<SocketAddr> {
    if hosts.is_empty() {
        faults.add("advertise is required: the addresses at which others reach this host".into());
    }
    if hosts.len() > ADDRESSES_MAX {
        faults.add(format!(
            "advertise has {} addresses, {ADDRESSES_MAX} at most",
            hosts.len()
        ));
    }
    if let Some(ip) = hosts
        .iter()
        .find(|ip| ip.is_unspecified() || ip.is_multicast())
    {
        faults.add(format!(
            "advertise has {ip}, at which nobody can reach this host"
        ));
    }
    let mut bind = layers.list::<SocketAddr>("mesh-bind", faults);
    if bind.is_empty() {
        bind = [true, false]
            .into_iter()
            .filter_map(|v4| hosts.iter().find(|ip| ip.is_ipv4() == v4))
            .map(|ip| SocketAddr::new(*ip, mesh_port(role)))
            .collect();
    }
    let of_family = |v4| bind.iter().filter(|a| a.is_ipv4() == v4).count();
    if of_family(true) > 1 || of_family(false) > 1 {
        faults.add("mesh-bind has two addresses of one family, one at most".into());
    }
    bind
}

/// Every host address with the port that is bound for its family.
fn advertised(hosts: &[IpAddr], bind: &[SocketAddr], role: Role) -> Vec<SocketAddr> {
    let port_of = |ip: &IpAddr| {
        bind.iter()
            .find(|b| b.is_ipv4() == ip.is_ipv4())
            .map_or(mesh_port(role), SocketAddr::port)
    };
    hosts
        .iter()
        .map(|ip| SocketAddr::new(*ip, port_of(ip)))
        .collect()
}

fn admin_address(
    layers: &Layers,
    role: Role,
    hosts: &[IpAddr],
    faults: &mut Faults,
) -> Option<SocketAddr> {
    let port = match role {
        Role::Agent => AGENT_ADMIN_PORT,
        Role::Aggregator => AGGREGATOR_ADMIN_PORT,
    };
    let before = faults.count();
    let set = layers.optional("admin-bind", faults);
    if set.is_none() && faults.count() > before {
        return None;
    }
    // The kubelet's probes go to the host's first address.
    let any: IpAddr = match hosts.first() {
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    Some(set.unwrap_or_else(|| SocketAddr::new(any, port)))
}
