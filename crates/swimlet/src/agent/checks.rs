//! What an agent checks on its own node, without any credential: its kubelet and
//! its path to the API server.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_protocol::frame::{Check, PortAnswer, SelfReport};
use swimlet_protocol::{Generation, MemberKey, NodeName};
use swimlet_telemetry::catalogue;
use swimlet_transport::check;
use tokio::time::{sleep, timeout};

use crate::config::{AgentConfig, Seed};
use crate::member::handle::Handle;

/// Between two reports. They are the aggregators' steady proof that this agent lives.
const INTERVAL: Duration = Duration::from_secs(10);
/// Between two reports while something fails, so that a recovery is seen soon.
const INTERVAL_FAILING: Duration = Duration::from_secs(2);
/// For each check. A kubelet under load answers slowly; the verdict needs 50 s of failure.
const TIMEOUT: Duration = Duration::from_secs(3);
/// For looking the API server's name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The three checks of this node.
pub(crate) struct SelfChecks {
    healthz: SocketAddr,
    port: SocketAddr,
    node: NodeName,
    api: Option<Seed>,
    api_last: Option<SocketAddr>,
    standing: [Standing; 3],
}

/// One check over time: what never worked says nothing when it fails.
#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    ever_worked: bool,
}

impl SelfChecks {
    /// The checks of the node that `config` describes.
    pub(crate) fn new(config: &AgentConfig) -> Self {
        let host = config
            .member
            .advertise
            .first()
            .map_or(IpAddr::from([127, 0, 0, 1]), SocketAddr::ip);
        Self::of(
            config.member.identity.name.clone(),
            config.kubelet_healthz,
            SocketAddr::new(host, config.kubelet_port.get()),
            config.api_server.clone(),
        )
    }

    /// The checks of a node that is given piece by piece.
    pub(crate) fn of(
        node: NodeName,
        healthz: SocketAddr,
        port: SocketAddr,
        api: Option<Seed>,
    ) -> Self {
        Self {
            healthz,
            port,
            node,
            api,
            api_last: None,
            standing: [Standing::default(); 3],
        }
    }

    /// Checks and reports again and again. Never returns.
    pub(crate) async fn run(mut self, member: Handle) {
        loop {
            let report = self.look(member.key()).await;
            let checks = [
                ("kubelet_healthz", report.kubelet_healthz),
                ("kubelet_port", report.kubelet_port),
                ("api", report.api),
            ];
            for (check, standing) in checks {
                let passing = f64::from(u8::from(standing == Check::Passing));
                metrics::gauge!(catalogue::SELF_CHECK, "check" => check).set(passing);
            }
            let failing = checks
                .iter()
                .any(|(_, standing)| *standing == Check::Failing);
            member.report(report).await;
            sleep(if failing { INTERVAL_FAILING } else { INTERVAL }).await;
        }
    }

    async fn look(&mut self, node: MemberKey) -> SelfReport {
        let api = self.api.clone();
        let (healthz, port, api) = tokio::join!(
            check::healthz(self.healthz, TIMEOUT),
            check::kubelet_port(self.port, Some(&self.node), TIMEOUT),
            reach_api(api, self.api_last),
        );
        let [healthz_standing, port_standing, api_standing] = &mut self.standing;
        let api = match api {
            Api::NotConfigured => Check::Unknown,
            Api::Reached(address) => {
                self.api_last = Some(address);
                api_standing.note(true)
            }
            Api::NotReached => api_standing.note(false),
        };
        SelfReport {
            node,
            // The mesh fills in its own generation.
            generation: Generation::default(),
            age_ms: 0,
            kubelet_healthz: healthz_standing.note(healthz),
            kubelet_port: port_standing.note(matches!(port, PortAnswer::Tls { .. })),
            api,
        }
    }
}

impl Standing {
    fn note(&mut self, works: bool) -> Check {
        self.ever_worked |= works;
        match (works, self.ever_worked) {
            (true, _) => Check::Passing,
            (false, true) => Check::Failing,
            (false, false) => Check::NeverWorked,
        }
    }
}

enum Api {
    NotConfigured,
    Reached(SocketAddr),
    NotReached,
}

/// A TCP connect to the API server; to its last good address while DNS is away.
async fn reach_api(api: Option<Seed>, last: Option<SocketAddr>) -> Api {
    let Some(api) = api else {
        return Api::NotConfigured;
    };
    let lookup = tokio::net::lookup_host((api.host.as_str(), api.port));
    let mut addresses: Vec<_> = match timeout(LOOKUP_TIMEOUT, lookup).await {
        Ok(Ok(found)) => found.collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    addresses.extend(last.filter(|last| !addresses.contains(last)));
    for address in addresses {
        if check::tcp(address, TIMEOUT).await {
            return Api::Reached(address);
        }
    }
    Api::NotReached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_worked_does_not_fail() {
        let mut standing = Standing::default();
        assert_eq!(standing.note(false), Check::NeverWorked);
        assert_eq!(standing.note(true), Check::Passing);
        assert_eq!(standing.note(false), Check::Failing);
    }
}
