//! What an agent checks on its own node, without any credential: its kubelet and
//! its path to the API server.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_mesh::Input as MeshInput;
use swimlet_protocol::NodeName;
use swimlet_protocol::frame::{Check, SelfReport};
use swimlet_roles::checks::{self, Looked, Output, TIMEOUT};
use swimlet_roles::member::Input;
use swimlet_telemetry::catalogue;
use swimlet_transport::check;
use tokio::time::{sleep_until, timeout};

use crate::config::{AgentConfig, Seed};
use crate::member::handle::Handle;

/// For looking the API server's name up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The three checks of this node.
pub(crate) struct SelfChecks {
    healthz: SocketAddr,
    port: SocketAddr,
    node: NodeName,
    api: Option<Seed>,
    api_last: Option<SocketAddr>,
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
        }
    }

    /// Checks and reports again and again. Never returns.
    pub(crate) async fn run(mut self, member: Handle) {
        let clock = member.clock();
        let mut checks = checks::SelfChecks::new(clock.now(), member.key());
        loop {
            while let Some(output) = checks.poll() {
                match output {
                    Output::Look => {
                        let looked = self.look().await;
                        checks.handle(clock.now(), checks::Input::Looked(looked));
                    }
                    Output::Report(report) => {
                        show(&report);
                        member
                            .feed(Input::Mesh(MeshInput::SelfReport(report)))
                            .await;
                    }
                }
            }
            // No look is under way here, so the next one is due some time.
            let due = checks.next_wake().unwrap_or_else(|| clock.now());
            sleep_until(clock.instant(due)).await;
            checks.handle(clock.now(), checks::Input::Wake);
        }
    }

    async fn look(&mut self) -> Looked {
        let api = self.api.clone();
        let (healthz, port, api) = tokio::join!(
            check::healthz(self.healthz, TIMEOUT),
            check::kubelet_port(self.port, Some(&self.node), TIMEOUT),
            reach_api(api, self.api_last),
        );
        Looked {
            healthz,
            port,
            api: match api {
                Api::NotConfigured => None,
                Api::Reached(address) => {
                    self.api_last = Some(address);
                    Some(true)
                }
                Api::NotReached => Some(false),
            },
        }
    }
}

fn show(report: &SelfReport) {
    for (check, standing) in [
        ("kubelet_healthz", report.kubelet_healthz),
        ("kubelet_port", report.kubelet_port),
        ("api", report.api),
    ] {
        let passing = f64::from(u8::from(standing == Check::Passing));
        metrics::gauge!(catalogue::SELF_CHECK, "check" => check).set(passing);
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
