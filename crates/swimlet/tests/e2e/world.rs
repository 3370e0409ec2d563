//! A control plane with nodes, agents and aggregators, and what is asked of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node as ApiNode, NodeCondition, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use swimlet_protocol::{ClusterId, Identity, NodeName, Role};
use swimlet_rig::{
    AuditEvent, ControlPlane, Host, Node, NodeSpec, Options, Process, User, eventually, holds,
};
use swimlet_transport::ca::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Generous: the machine that runs this is shared.
pub(crate) const SOON: Duration = Duration::from_secs(60);
const CLUSTER: &str = "rig";
const AGGREGATORS: usize = 3;
const AGENT_ADMIN: u16 = 10_272;
const AGGREGATOR_ADMIN: u16 = 10_273;
const AGGREGATOR_ACCOUNT: &str = "system:serviceaccount:swimlet-system:swimlet-aggregator";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Whether the aggregators write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Observe,
    Enforce,
}

/// Where the aggregators run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placing {
    /// On the first three nodes, beside their agents.
    OnNodes,
    /// On hosts of their own, so that every node may die.
    Apart,
}

/// A running cluster.
pub(crate) struct World {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) nodes: Vec<Node>,
    pub(crate) aggregators: Vec<Process>,
    /// Where each aggregator runs.
    places: Vec<Host>,
    agents: BTreeMap<String, Process>,
    kubeconfig: PathBuf,
    mode: Mode,
    authority: Authority,
}

impl World {
    /// Starts a control plane, applies the shipped manifests, and starts `count` nodes with
    /// an agent each and three aggregators; returns when all is known.
    pub(crate) async fn start(mode: Mode, count: usize, placing: Placing) -> Self {
        let mut world = Self::start_nodes(mode, count, placing).await;
        for index in 0..AGGREGATORS {
            let aggregator = world.start_aggregator(index);
            world.aggregators.push(aggregator);
        }
        for node in world.nodes.clone() {
            world.start_agent(&node);
        }
        world.settled().await;
        world
    }

    /// Starts a control plane with the shipped manifests and nodes, without swimlet.
    pub(crate) async fn start_nodes(mode: Mode, count: usize, placing: Placing) -> Self {
        let control_plane = ControlPlane::start(Options::namespaces()).await.unwrap();
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../daemonset/base");
        let base = base.to_str().unwrap();
        control_plane.kubectl(&["apply", "-k", base]).await.unwrap();
        let account = User::service_account("swimlet-system", "swimlet-aggregator");
        let kubeconfig = control_plane.kubeconfig(&account).await.unwrap();
        let client = control_plane.client(&User::Admin).await.unwrap();
        let zones = ["zone-a", "zone-b", "zone-c"];
        let specs: Vec<_> = (0..count)
            .map(|index| NodeSpec::new(&format!("node-{}", index + 1)).zone(zones[index % 3]))
            .collect();
        let nodes = control_plane.add_nodes(&specs).await.unwrap();
        let place = |index: usize| match placing {
            Placing::OnNodes => Host::clone(&nodes[index]),
            Placing::Apart => control_plane.add_host(&format!("system-{index}")).unwrap(),
        };
        let places = (0..AGGREGATORS).map(place).collect();
        Self {
            control_plane,
            client,
            nodes,
            aggregators: Vec::new(),
            places,
            agents: BTreeMap::new(),
            kubeconfig,
            mode,
            authority: Authority::new(&cluster()).unwrap(),
        }
    }

    /// The node that no aggregator runs on, counted from the last.
    pub(crate) fn victim(&self, from_last: usize) -> Node {
        let hosts = self.places.iter().map(|place| place.name());
        let hosts: Vec<_> = hosts.collect();
        let victims = self
            .nodes
            .iter()
            .filter(|node| !hosts.contains(&node.name()));
        let victims: Vec<_> = victims.collect();
        victims[victims.len() - 1 - from_last % victims.len()].clone()
    }

    /// Starts an agent on its node, as the DaemonSet would.
    pub(crate) fn start_agent(&mut self, node: &Node) -> Process {
        let mut command = self.member(node, Role::Agent);
        command
            .arg(format!("--api-server={}", self.control_plane.address()))
            .arg(format!("--admin-bind=0.0.0.0:{AGENT_ADMIN}"));
        let process = node.spawn("agent", &command).unwrap();
        self.agents.insert(node.name().to_owned(), process.clone());
        process
    }

    /// The agent that was last started on that node.
    pub(crate) fn agent(&self, node: &Node) -> Process {
        self.agents[node.name()].clone()
    }

    /// Starts the aggregator of a place, as the Deployment would.
    pub(crate) fn start_aggregator(&self, index: usize) -> Process {
        let place = &self.places[index];
        let mut command = self.member(place, Role::Aggregator);
        command
            .arg(format!("--node-name={}", place.name()))
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--admin-bind=0.0.0.0:{AGGREGATOR_ADMIN}"))
            .arg(match self.mode {
                Mode::Observe => "--mode=observe",
                Mode::Enforce => "--mode=enforce",
            });
        place.spawn("aggregator", &command).unwrap()
    }

    /// Waits until every Node is Ready, every member knows every other and the paths to
    /// all kubelets, and somebody leads.
    pub(crate) async fn settled(&self) {
        eventually(
            SOON,
            "all nodes to be Ready and known to all members",
            async || {
                for node in &self.nodes {
                    let ready = self.ready(node.name()).await?;
                    anyhow::ensure!(
                        ready.status == "True",
                        "{} is {}",
                        node.name(),
                        ready.status
                    );
                    let metrics = scrape(node, AGENT_ADMIN).await?;
                    let alive = value(&metrics, "swimlet_mesh_members{state=\"alive\"}")?;
                    let others = self.nodes.len() + self.aggregators.len() - 1;
                    anyhow::ensure!(
                        alive as usize == others,
                        "{} sees {alive} of {others}",
                        node.name()
                    );
                    let paths = value(&metrics, "swimlet_baseline_paths")?;
                    anyhow::ensure!(
                        paths as usize >= self.paths_of_a_node(),
                        "{} has {paths} paths",
                        node.name()
                    );
                }
                let mut leaders = 0.0;
                for place in &self.places {
                    let metrics = scrape(place, AGGREGATOR_ADMIN).await?;
                    let alive = value(&metrics, "swimlet_nodes{verdict=\"Alive\"}")?;
                    anyhow::ensure!(
                        alive as usize == self.nodes.len(),
                        "{alive} nodes are judged Alive"
                    );
                    leaders += value(&metrics, "swimlet_aggregator_leader").unwrap_or(0.0);
                }
                anyhow::ensure!(leaders == 1.0, "{leaders} leaders");
                Ok(Some(()))
            },
        )
        .await
        .unwrap();
    }

    /// Kubelet ports that a node's agent surely watches: with up to 11 members those of all
    /// others. Above that it watches ten or a few less, aggregators perhaps among them.
    fn paths_of_a_node(&self) -> usize {
        const FULL_MESH: usize = 11;
        const SURELY: usize = 5;
        let others = self.nodes.len() - 1;
        if self.nodes.len() + AGGREGATORS <= FULL_MESH {
            others
        } else {
            others.min(SURELY)
        }
    }

    /// The place of the aggregator that leads.
    pub(crate) async fn leader(&self) -> usize {
        eventually(SOON, "an aggregator to lead", async || {
            for (index, process) in self.aggregators.iter().enumerate() {
                if process.is_running() {
                    let metrics = scrape(&self.places[index], AGGREGATOR_ADMIN).await?;
                    if value(&metrics, "swimlet_aggregator_leader").unwrap_or(0.0) == 1.0 {
                        return Ok(Some(index));
                    }
                }
            }
            Ok(None)
        })
        .await
        .unwrap()
    }

    /// What `/v1/verdicts` of the first aggregator answers on its own host, and elsewhere.
    pub(crate) async fn verdicts_page(&self) -> (String, String) {
        const GET: &str = "exec 3<>/dev/tcp/127.0.0.1/10273; \
            printf 'GET /v1/verdicts HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3";
        let here = self.places[0]
            .run(Command::new("bash").args(["-c", GET]))
            .unwrap();
        let elsewhere = get(&self.places[0], AGGREGATOR_ADMIN, "/v1/verdicts")
            .await
            .unwrap();
        (here, elsewhere)
    }

    /// A sum over all aggregators of one metric.
    pub(crate) async fn sum(&self, metric: &str) -> f64 {
        let mut sum = 0.0;
        for place in &self.places {
            let metrics = scrape(place, AGGREGATOR_ADMIN).await.unwrap();
            sum += value(&metrics, metric).unwrap_or(0.0);
        }
        sum
    }

    /// The whole Node.
    pub(crate) async fn node(&self, name: &str) -> Result<ApiNode> {
        Ok(Api::<ApiNode>::all(self.client.clone()).get(name).await?)
    }

    /// A Node's Ready condition.
    pub(crate) async fn ready(&self, name: &str) -> Result<NodeCondition> {
        ready_of(&self.node(name).await?).context("the Node has no Ready condition")
    }

    /// Waits for a Node's Ready condition to have this status and reason.
    pub(crate) async fn wait_ready(
        &self,
        name: &str,
        status: &str,
        reason: Option<&str>,
    ) -> NodeCondition {
        let what = format!("{name} to be Ready={status} {}", reason.unwrap_or_default());
        eventually(SOON, &what, async || {
            let ready = self.ready(name).await?;
            let fits =
                ready.status == status && reason.is_none_or(|r| ready.reason.as_deref() == Some(r));
            anyhow::ensure!(fits, "it is {} {:?}", ready.status, ready.reason);
            Ok(Some(ready))
        })
        .await
        .unwrap()
    }

    /// Waits for the node to carry our Unknown.
    pub(crate) async fn wait_unreachable(&self, name: &str) -> NodeCondition {
        self.wait_ready(name, "Unknown", Some("NodeUnreachableFromPeers"))
            .await
    }

    /// Fails if swimlet writes any Node's or Pod's status within `duration`.
    pub(crate) async fn nothing_is_written(&self, duration: Duration) {
        let before = self.writes().len();
        holds(duration, "no write to nodes and pods", async || {
            Ok(self.writes().len() == before)
        })
        .await
        .unwrap();
    }

    /// Every write of swimlet to Nodes and Pods, by the audit log.
    pub(crate) fn writes(&self) -> Vec<AuditEvent> {
        self.swimlet_requests()
            .into_iter()
            .filter(|event| ["nodes", "pods"].contains(&event.resource.as_str()) && is_write(event))
            .collect()
    }

    /// Successful writes of swimlet to one Node's status.
    pub(crate) fn writes_to(&self, name: &str) -> usize {
        let ours = self.writes().into_iter();
        ours.filter(|e| e.resource == "nodes" && e.name == name && e.code == 200)
            .count()
    }

    /// Everything that swimlet asked the API server for.
    pub(crate) fn swimlet_requests(&self) -> Vec<AuditEvent> {
        let audit = self.control_plane.audit().unwrap().into_iter();
        audit
            .filter(|event| event.user == AGGREGATOR_ACCOUNT)
            .collect()
    }

    /// Puts a pod with a Service on that node and waits for it to serve.
    pub(crate) async fn serve(&self, node: &str, app: &str) {
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": app },
            "spec": { "selector": { "app": app }, "ports": [{ "port": 80 }] },
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": app, "labels": { "app": app } },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "app", "image": "app" }],
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
            },
        }))
        .unwrap();
        let params = PostParams::default();
        let services = Api::<Service>::namespaced(self.client.clone(), "default");
        services.create(&params, &service).await.unwrap();
        let pods = Api::<Pod>::namespaced(self.client.clone(), "default");
        pods.create(&params, &pod).await.unwrap();
        self.wait_endpoint(app, true).await;
    }

    /// Waits for the service's endpoint to be ready, or not to be.
    pub(crate) async fn wait_endpoint(&self, app: &str, ready: bool) {
        let slices = Api::<EndpointSlice>::namespaced(self.client.clone(), "default");
        let params = ListParams::default().labels(&format!("kubernetes.io/service-name={app}"));
        let what = format!("the endpoint of {app} to be ready: {ready}");
        eventually(SOON, &what, async || {
            let slices = slices.list(&params).await?;
            let endpoints = slices.items.iter().flat_map(|s| s.endpoints.iter());
            let serving = endpoints
                .filter(|e| e.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
                .count();
            Ok(((serving > 0) == ready).then_some(()))
        })
        .await
        .unwrap();
    }

    /// Whether that pod's Ready condition is True.
    pub(crate) async fn pod_is_ready(&self, name: &str) -> Result<bool> {
        let pod = Api::<Pod>::namespaced(self.client.clone(), "default")
            .get(name)
            .await?;
        let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
        Ok(conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True"))
    }

    /// Waits for an Event of swimlet about that object.
    pub(crate) async fn wait_event(&self, kind: &str, name: &str, reason: &str) -> Event {
        let events = Api::<Event>::all(self.client.clone());
        let what = format!("an Event {reason} about the {kind} {name}");
        eventually(SOON, &what, async || {
            let found = events
                .list(&ListParams::default())
                .await?
                .items
                .into_iter()
                .find(|event| {
                    event.regarding.as_ref().is_some_and(|about| {
                        about.kind.as_deref() == Some(kind) && about.name.as_deref() == Some(name)
                    }) && event.reason.as_deref() == Some(reason)
                });
            Ok(found)
        })
        .await
        .unwrap()
    }

    /// Kills the node without a word.
    pub(crate) fn kill(&self, node: &Node) {
        node.die().unwrap();
    }

    /// Switches the node on again: link, kubelet, agent.
    pub(crate) async fn revive(&mut self, node: &Node) {
        node.link_up().unwrap();
        node.restart_kubelet().unwrap();
        self.start_agent(node);
        self.wait_ready(node.name(), "True", None).await;
        self.settled().await;
    }

    /// The taints on that Node that the controller manager puts on unreachable ones.
    pub(crate) async fn unreachable_taints(&self, name: &str) -> Result<Vec<String>> {
        let node = self.node(name).await?;
        let taints = node.spec.and_then(|s| s.taints).unwrap_or_default();
        let ours = taints
            .into_iter()
            .filter(|t| t.key == "node.kubernetes.io/unreachable");
        Ok(ours.map(|t| t.effect).collect())
    }

    fn member(&self, host: &Host, role: Role) -> Command {
        let name: NodeName = host.name().parse().unwrap();
        let identity = Identity {
            cluster: cluster(),
            role,
            name,
        };
        let issued = self.authority.issue(&identity, DAY).unwrap();
        let folder = host.folder().join(role.as_str());
        std::fs::create_dir_all(folder.join("state")).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let seeds: Vec<_> = self
            .places
            .iter()
            .map(|place| format!("{}:10271", place.address()))
            .collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_swimlet"));
        command
            .arg(match role {
                Role::Agent => "agent",
                Role::Aggregator => "aggregator",
            })
            .arg(format!("--cluster-id={CLUSTER}"))
            .arg(format!("--name={}", host.name()))
            .arg(format!("--advertise={}", host.address()))
            .arg(format!("--seeds={}", seeds.join(",")))
            .arg(format!("--state-dir={}", folder.join("state").display()))
            .arg(format!(
                "--cert-file={}",
                file("tls.crt", &issued.certificate_pem)
            ))
            .arg(format!("--key-file={}", file("tls.key", &issued.key_pem)))
            .arg(format!(
                "--ca-file={}",
                file("ca.crt", &self.authority.pem())
            ));
        command
    }
}

/// A Node's Ready condition.
pub(crate) fn ready_of(node: &ApiNode) -> Option<NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == "Ready").cloned()
}

/// A Node without what its own kubelet, the controller manager and the API server
/// change all the time: what must stay as it is.
pub(crate) fn untouched(node: &ApiNode) -> serde_json::Value {
    let mut node = node.clone();
    node.metadata.resource_version = None;
    node.metadata.managed_fields = None;
    if let Some(spec) = &mut node.spec {
        spec.taints = None;
    }
    for condition in node
        .status
        .iter_mut()
        .flat_map(|s| s.conditions.iter_mut().flatten())
    {
        if condition.type_ == "Ready" {
            condition.status = String::new();
            condition.reason = None;
            condition.message = None;
            condition.last_transition_time = None;
        }
    }
    let name = node.name_any();
    serde_json::to_value(node).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn cluster() -> ClusterId {
    CLUSTER.parse().unwrap()
}

fn is_write(event: &AuditEvent) -> bool {
    ["create", "update", "patch", "delete"].contains(&event.verb.as_str())
}

async fn scrape(host: &Host, port: u16) -> Result<String> {
    get(host, port, "/metrics").await
}

async fn get(host: &Host, port: u16, path: &str) -> Result<String> {
    let get = async {
        let mut stream = TcpStream::connect((host.address(), port)).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: swimlet\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        anyhow::Ok(text)
    };
    let answered = tokio::time::timeout(Duration::from_secs(5), get).await;
    answered
        .with_context(|| format!("{path} took too long"))?
        .with_context(|| format!("{path} failed"))
}

fn value(metrics: &str, name: &str) -> Result<f64> {
    let line = metrics.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.with_context(|| format!("there is no metric {name}"))?;
    Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
}
