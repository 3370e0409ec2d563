//! The demo's cluster: hollow kubelets, agents and aggregators on loopback.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use swimlet_cluster::election::Timing;
use swimlet_cluster::{Clients, EdgeConfig, ElectionConfig, Mode};
use swimlet_protocol::{ClusterId, Identity, MemberKey, NodeName, Role, Zone};
use swimlet_standin::{HollowKubelet, HollowPod, KubeletSpec, Options as StandinOptions, Standin};
use swimlet_telemetry::admin::Readiness;
use swimlet_transport::ca::Authority;
use swimlet_transport::{Credentials, Transport};
use swimlet_verdict::Profile;
use tokio_util::sync::CancellationToken;

use crate::agent::{self, SelfChecks};
use crate::aggregator::{self, Aggregator};
use crate::config::{Seed, mesh_port};
use crate::follow::Follower;
use crate::member::start::{self, Tasks, ambient_seed};

/// How many aggregators, as the manifests have it.
const AGGREGATORS: u16 = 3;
/// Pods on each node.
const PODS: u16 = 2;
/// Longer than any demo.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(24 * 3600);
const NAMESPACE: &str = "swimlet-system";
/// User agent by which the stand-in's request log knows the aggregators.
const USER_AGENT: &str = "swimlet-demo";

/// One node of the demo.
pub(crate) struct DemoNode {
    pub(crate) name: NodeName,
    pub(crate) key: MemberKey,
    kubelet: HollowKubelet,
    transport: Transport,
}

/// The running cluster.
pub(crate) struct DemoCluster {
    pub(crate) standin: Standin,
    pub(crate) nodes: Vec<DemoNode>,
    pub(crate) aggregators: Vec<Aggregator>,
    /// Every member's name, for the story.
    pub(crate) names: BTreeMap<MemberKey, String>,
    tasks: Tasks,
}

/// What is needed to build members.
struct Builder {
    cluster: ClusterId,
    authority: Authority,
    follower: Follower,
    /// Second octet of this demo's loopback addresses, so that two demos can run at a time.
    octet: u8,
}

impl DemoNode {
    /// The node dies without a word: its sockets stay, and discard.
    pub(crate) async fn die(&self) -> anyhow::Result<()> {
        self.transport.fall_silent();
        self.kubelet
            .stop()
            .await
            .context("the demo's kubelet could not be silenced")
    }

    /// The node is there again.
    pub(crate) async fn come_back(&self) -> anyhow::Result<()> {
        self.transport.wake_up();
        self.kubelet
            .resume()
            .await
            .context("the demo's kubelet could not come back")
    }
}

impl DemoCluster {
    /// Starts `count` nodes, their agents, and three aggregators.
    pub(crate) async fn start(count: u16, follower: Follower) -> anyhow::Result<Self> {
        let options = StandinOptions {
            namespaces: vec![NAMESPACE.to_owned()],
            ..StandinOptions::default()
        };
        let standin = Standin::start(options).await?;
        let cluster: ClusterId = "demo".parse()?;
        let builder = Builder {
            authority: Authority::new(&cluster)?,
            cluster,
            follower,
            octet: 64 + u8::try_from(std::process::id() % 128).unwrap_or_default(),
        };
        let mut demo = Self {
            standin,
            nodes: Vec::new(),
            aggregators: Vec::new(),
            names: BTreeMap::new(),
            tasks: Tasks::new(CancellationToken::new()),
        };
        for index in 1..=AGGREGATORS.min(count) {
            demo.add_aggregator(&builder, index).await?;
        }
        for index in 1..=count {
            demo.add_node(&builder, index).await?;
        }
        Ok(demo)
    }

    /// Stops everything, politely.
    pub(crate) async fn stop(self) {
        let aggregators = self.aggregators.into_iter().map(Aggregator::stop);
        futures::future::join_all(aggregators).await;
        self.tasks.stop.cancel();
        let transports = self
            .nodes
            .iter()
            .map(|node| node.transport.clone().shutdown());
        futures::future::join_all(transports).await;
        let mut tasks = self.tasks.set;
        while tasks.join_next().await.is_some() {}
        self.standin.shutdown().await;
    }

    async fn add_node(&mut self, builder: &Builder, index: u16) -> anyhow::Result<()> {
        let name: NodeName = format!("node-{index:02}").parse()?;
        let zone = zone_of(index);
        let ip = builder.address(index);
        let pods = (1..=PODS).map(|pod| HollowPod {
            namespace: "default".to_owned(),
            name: format!("web-{index:02}-{pod}"),
        });
        let kubelet = KubeletSpec {
            zone: Some(zone.clone()),
            address: ip,
            pods: pods.collect(),
            ..KubeletSpec::new(name.as_str())
        };
        let kubelet = self.standin.kubelet(kubelet).await?;
        let api = Seed {
            host: self.standin.address().ip().to_string(),
            port: self.standin.address().port(),
        };
        // Hollow kubelets serve no :10248; what never worked says nothing.
        let healthz = SocketAddr::new(ip, 10_248);
        let port = SocketAddr::new(ip, kubelet.port());
        let spec = agent::Spec {
            member: builder.member(Role::Agent, &name, &zone, index, kubelet.port())?,
            checks: SelfChecks::of(name.clone(), healthz, port, Some(api)),
            readiness: Readiness::default(),
            follower: builder.follower.clone(),
        };
        let (member, transport) = agent::assemble(spec, &mut self.tasks).await?;
        self.names.insert(member.key(), name.to_string());
        self.nodes.push(DemoNode {
            name,
            key: member.key(),
            kubelet,
            transport,
        });
        Ok(())
    }

    async fn add_aggregator(&mut self, builder: &Builder, index: u16) -> anyhow::Result<()> {
        let name: NodeName = format!("aggregator-{index}").parse()?;
        let spec = aggregator::Spec {
            member: builder.member(Role::Aggregator, &name, &zone_of(index), index, 0)?,
            host: Some(format!("node-{index:02}").parse()?),
            profile: Profile::Default,
            edge: EdgeConfig {
                cluster: builder.cluster.clone(),
                mode: Mode::Enforce,
                election: ElectionConfig {
                    namespace: NAMESPACE.to_owned(),
                    lease: "swimlet-aggregator".to_owned(),
                    identity: name.to_string(),
                    timing: Timing::default(),
                },
                seed: ambient_seed(),
            },
            clients: Clients::from_config(self.standin.config(USER_AGENT))?,
            follower: builder.follower.clone(),
        };
        let aggregator = aggregator::assemble(spec, &mut self.tasks).await?;
        self.names.insert(aggregator.member.key(), name.to_string());
        self.aggregators.push(aggregator);
        Ok(())
    }
}

impl Builder {
    fn address(&self, index: u16) -> IpAddr {
        let [high, low] = index.to_be_bytes();
        Ipv4Addr::new(127, self.octet, high, low).into()
    }

    fn member(
        &self,
        role: Role,
        name: &NodeName,
        zone: &str,
        index: u16,
        kubelet_port: u16,
    ) -> anyhow::Result<start::Spec> {
        let identity = Identity {
            cluster: self.cluster.clone(),
            role,
            name: name.clone(),
        };
        let issued = self.authority.issue(&identity, CERTIFICATE_VALIDITY)?;
        // As in production: each node has a loopback address of its own.
        let address = SocketAddr::new(self.address(index), mesh_port(role));
        let seeds = (1..=AGGREGATORS).map(|aggregator| Seed {
            host: self.address(aggregator).to_string(),
            port: mesh_port(Role::Aggregator),
        });
        Ok(start::Spec {
            identity,
            zone: zone.parse::<Zone>()?,
            bind: vec![address],
            advertise: vec![address],
            seeds: seeds.collect(),
            state_dir: None,
            credentials: Credentials::from_pem(
                &issued.certificate_pem,
                &issued.key_pem,
                &self.authority.pem(),
            ),
            kubelet_port,
        })
    }
}

/// Three zones, in turn.
fn zone_of(index: u16) -> String {
    let zone = ["zone-a", "zone-b", "zone-c"][usize::from(index) % 3];
    zone.to_owned()
}
