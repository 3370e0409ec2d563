//! Hollow kubelets: what a kubelet does towards the API server, without containers.

mod port;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ids::SplitMix64;
use port::KubeletPort;

pub use port::PortError;

/// Both the kubelet's `nodeStatusUpdateFrequency` and its lease's renewal (a quarter of 40 s).
const PERIOD: Duration = Duration::from_secs(10);

/// `nodeLeaseDurationSeconds`' default.
const LEASE_DURATION_S: i32 = 40;

/// A status that did not change is reported this often (`nodeStatusReportFrequency`' default).
const REPORT_PERIOD: Duration = Duration::from_secs(300);

/// The jitter on both loops (`nodeStatusUpdateJitter`, `wait.JitterUntil(…, 0.04)`).
const JITTER: f64 = 0.04;

/// Back-off while the server does not take a Lease (`backoffEnsureLease`: doubled from 100 ms up to 7 s).
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(7);

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// What a hollow kubelet is to be.
#[derive(Clone, Debug)]
pub struct KubeletSpec {
    /// The Node's name, also its host name and the name of its Lease.
    pub name: String,
    /// The Node's `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// The Node's InternalIP; loopback if the port is to be served.
    pub address: IpAddr,
    /// The Node's `status.daemonEndpoints.kubeletEndpoint.Port`. With `serve`, 0 takes a free port.
    pub port: u16,
    /// Whether to serve the port: TLS with a self-signed certificate, and 401 for every request.
    pub serve: bool,
    /// Pods to put on the Node.
    pub pods: Vec<HollowPod>,
    /// The time between two looks at the Node, and between two renewals of the Lease. 10 s, as a kubelet's defaults
    /// have it; shorter only where a test would otherwise wait.
    pub period: Duration,
    /// `leaseDurationSeconds` of the Lease, in seconds; 40 by default.
    pub lease_duration_s: i32,
}

impl KubeletSpec {
    /// A kubelet with the defaults of Kubernetes on 127.0.0.1, with a port that is served and no Pods.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            zone: None,
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            serve: true,
            pods: Vec::new(),
            period: PERIOD,
            lease_duration_s: LEASE_DURATION_S,
        }
    }
}

/// A Pod of a hollow kubelet: one container that runs as long as the kubelet does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HollowPod {
    /// Its namespace, which must be there.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Why a hollow kubelet could not start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// No client could be made for the server.
    #[error("cannot make a client for the hollow kubelet: {0}")]
    Client(#[source] kube::Error),
    /// Its port could not be had.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The server did not take what the kubelet registers.
    #[error(
        "the server did not take {what} of the hollow kubelet {name}: {source}; is it there and without a fault?"
    )]
    Register {
        /// Node, Pod or Lease.
        what: &'static str,
        /// The kubelet's name.
        name: String,
        /// What the client says.
        source: kube::Error,
    },
}

/// A running hollow kubelet. Dropped, it stops as by [`kill`](Self::kill).
///
/// Towards the server it does what a kubelet of 1.37 does (`pkg/kubelet/kubelet_node_status.go`, `pkg/kubelet/status`,
/// `component-helpers/apimachinery/lease`): it registers its Node, renews its Lease, takes back a foreign `Ready`
/// with a strategic merge patch of the whole condition and without a resourceVersion, and restores its Pods' `Ready`.
/// It never re-registers a Node that was deleted while it ran.
pub struct HollowKubelet {
    agent: Arc<Agent>,
    port: Option<KubeletPort>,
    running: Mutex<Option<Running>>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

struct Running {
    end: CancellationToken,
    task: JoinHandle<()>,
}

impl HollowKubelet {
    pub(crate) async fn start(
        mut spec: KubeletSpec,
        client: Client,
        seed: u64,
        tasks: &TaskTracker,
        stopping: CancellationToken,
    ) -> Result<Self, KubeletError> {
        let mut port = None;
        if spec.serve {
            let address = SocketAddr::new(spec.address, spec.port);
            let served = KubeletPort::open(&spec.name, address, tasks, &stopping).await?;
            spec.port = served.address().port();
            port = Some(served);
        }
        // Kubelets of one seed differ by their names, so that they do not march in step.
        let seed = spec.name.bytes().fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        });
        let agent = Arc::new(Agent::new(spec, client, seed));
        agent.register().await?;
        let lease = agent
            .ensure_lease()
            .await
            .map_err(|source| agent.refused("the Lease", source))?;
        let kubelet = Self {
            agent,
            port,
            running: Mutex::new(None),
            tasks: tasks.clone(),
            stopping,
        };
        kubelet.run(lease, true).await;
        Ok(kubelet)
    }

    /// The Node's name.
    pub fn name(&self) -> &str {
        &self.agent.spec.name
    }

    /// The kubelet's port as the Node has it.
    pub fn port(&self) -> u16 {
        self.agent.spec.port
    }

    /// Dies as a host dies, without a word: no more requests, and the port swallows what comes. New connections hang
    /// in their handshake, established ones get no answer and are not closed.
    ///
    /// A request that was already on its way may still arrive.
    ///
    /// # Errors
    ///
    /// [`PortError`] if the port could not be silenced; the kubelet's work has stopped all the same.
    pub async fn stop(&self) -> Result<(), PortError> {
        self.halt().await;
        match &self.port {
            Some(port) => port.silence().await,
            None => Ok(()),
        }
    }

    /// Dies as a process dies on a living host: no more requests, connections are closed, and the port refuses.
    ///
    /// # Errors
    ///
    /// [`PortError`] if the port was lost to another socket on the way.
    pub async fn kill(&self) -> Result<(), PortError> {
        self.halt().await;
        match &self.port {
            Some(port) => port.refuse().await,
            None => Ok(()),
        }
    }

    /// Starts again after [`stop`](Self::stop) or [`kill`](Self::kill): the port is served, and the Node's status, the
    /// Lease and the Pods are written at once, as a kubelet does after its start.
    ///
    /// # Errors
    ///
    /// [`PortError`] if the port cannot be served again; the kubelet stays down then.
    pub async fn resume(&self) -> Result<(), PortError> {
        if let Some(port) = &self.port {
            port.serve().await?;
        }
        self.run(None, false).await;
        Ok(())
    }

    async fn run(&self, lease: Option<Lease>, fresh: bool) {
        let mut running = self.running.lock().await;
        if running.is_some() {
            return;
        }
        let end = self.stopping.child_token();
        let (agent, ended) = (Arc::clone(&self.agent), end.clone());
        let task = self.tasks.spawn(async move {
            tokio::select! {
                () = agent.run(lease, fresh) => {}
                () = ended.cancelled() => {}
            }
        });
        *running = Some(Running { end, task });
    }

    async fn halt(&self) {
        let Some(Running { end, task }) = self.running.lock().await.take() else {
            return;
        };
        end.cancel();
        if let Err(error) = task.await {
            tracing::error!(kubelet = self.name(), %error, "the hollow kubelet had died before it was stopped");
        }
    }
}

impl Drop for HollowKubelet {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

/// The kubelet's work.
struct Agent {
    spec: KubeletSpec,
    client: Client,
    jitter: std::sync::Mutex<SplitMix64>,
    /// When its Pods became ready, which is what it restores them with.
    pods_ready_at: Time,
}

impl Agent {
    fn new(spec: KubeletSpec, client: Client, seed: u64) -> Self {
        let jitter = std::sync::Mutex::new(SplitMix64::new(seed));
        Self {
            spec,
            client,
            jitter,
            pods_ready_at: now(),
        }
    }

    /// The Node and the Pods, as far as they are not there yet.
    async fn register(&self) -> Result<(), KubeletError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        created(
            nodes
                .create(&PostParams::default(), &from_json(self.node()))
                .await,
        )
        .map_err(|source| self.refused("the Node", source))?;
        for pod in &self.spec.pods {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
            created(
                pods.create(&PostParams::default(), &from_json(self.pod(pod)))
                    .await,
            )
            .map_err(|source| self.refused("a Pod", source))?;
        }
        self.sync_pods()
            .await
            .map_err(|source| self.refused("a Pod's status", source))
    }

    /// `fresh` says that everything has just been written.
    async fn run(&self, lease: Option<Lease>, fresh: bool) {
        tokio::join!(self.keep_lease(lease), self.keep_status(fresh));
    }

    async fn keep_lease(&self, mut held: Option<Lease>) {
        if held.is_some() {
            self.pause().await;
        }
        loop {
            held = self.renew(held).await;
            self.pause().await;
        }
    }

    /// First with the Lease as it was written last, then from what the server has, until it takes it.
    async fn renew(&self, held: Option<Lease>) -> Option<Lease> {
        if let Some(lease) = held {
            match self.put_lease(lease).await {
                Ok(lease) => return Some(lease),
                Err(error) => {
                    tracing::debug!(kubelet = self.spec.name, %error, "the Lease was not renewed at once")
                }
            }
        }
        let mut backoff = BACKOFF_FIRST;
        loop {
            match self.ensure_lease().await {
                Ok(lease) => return lease,
                Err(error) => {
                    tracing::debug!(kubelet = self.spec.name, %error, "the Lease is not to be had yet")
                }
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Renews the Lease that is there or creates it; none if the Node is gone, whose owner it would have to name.
    async fn ensure_lease(&self) -> Result<Option<Lease>, kube::Error> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        if let Some(lease) = leases.get_opt(&self.spec.name).await? {
            return self.put_lease(lease).await.map(Some);
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(node) = nodes.get_opt(&self.spec.name).await? else {
            return Ok(None);
        };
        let lease: Lease = from_json(json!({
            "metadata": {"name": self.spec.name, "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": self.spec.name, "uid": node.uid().unwrap_or_default()},
            ]},
            "spec": {
                "holderIdentity": self.spec.name,
                "leaseDurationSeconds": self.spec.lease_duration_s,
                "renewTime": MicroTime(Timestamp::now()),
            },
        }));
        leases
            .create(&PostParams::default(), &lease)
            .await
            .map(Some)
    }

    async fn put_lease(&self, mut lease: Lease) -> Result<Lease, kube::Error> {
        let spec = lease.spec.get_or_insert_default();
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        spec.lease_duration_seconds = Some(self.spec.lease_duration_s);
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASE_NAMESPACE);
        leases
            .replace(&self.spec.name, &PostParams::default(), &lease)
            .await
    }

    async fn keep_status(&self, fresh: bool) {
        let mut reported = fresh.then(Instant::now);
        if fresh {
            self.pause().await;
        }
        loop {
            let due = reported.is_none_or(|at| at.elapsed() >= REPORT_PERIOD);
            match self.sync_node(due).await {
                Ok(true) => reported = Some(Instant::now()),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(kubelet = self.spec.name, %error, "the Node's status was not written")
                }
            }
            if let Err(error) = self.sync_pods().await {
                tracing::debug!(kubelet = self.spec.name, %error, "the Pods' status was not written");
            }
            self.pause().await;
        }
    }

    /// Writes the Ready condition if it is not True, or if a report is due. Says whether it did.
    async fn sync_node(&self, due: bool) -> Result<bool, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(node) = nodes.get_opt(&self.spec.name).await? else {
            return Ok(false);
        };
        let conditions = node
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let ready = conditions
            .into_iter()
            .find(|c| c.type_ == "Ready" && c.status == "True");
        if ready.is_some() && !due {
            return Ok(false);
        }
        let since = ready
            .and_then(|condition| condition.last_transition_time)
            .unwrap_or_else(now);
        let patch = json!({"status": {
            "$setElementOrder/conditions": [{"type": "Ready"}],
            "conditions": [ready_condition(&since)],
        }});
        nodes
            .patch_status(
                &self.spec.name,
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await?;
        Ok(true)
    }

    /// Makes every Pod bound to the Node Running and Ready again, with the older transition time it remembers. The
    /// Pod's UID is in the patch, as in the status manager's, so that a namesake is left alone.
    async fn sync_pods(&self) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.spec.name));
        for pod in pods.list(&mine).await? {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            if conditions
                .into_iter()
                .flatten()
                .any(|c| c.type_ == "Ready" && c.status == "True")
            {
                continue;
            }
            let patch = json!({
                "metadata": {"uid": pod.uid()},
                "status": {
                    "phase": "Running",
                    "conditions": [
                        {"type": "Ready", "status": "True", "lastProbeTime": null, "reason": null, "message": null,
                         "lastTransitionTime": self.pods_ready_at},
                    ],
                },
            });
            let pods: Api<Pod> =
                Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            pods.patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await?;
        }
        Ok(())
    }

    async fn pause(&self) {
        let stretch = self
            .jitter
            .lock()
            .map_or(1.0, |mut jitter| jitter.stretch(JITTER));
        sleep(self.spec.period.mul_f64(stretch)).await;
    }

    fn node(&self) -> serde_json::Value {
        let mut labels =
            json!({"kubernetes.io/hostname": self.spec.name, "kubernetes.io/os": "linux"});
        if let Some(zone) = &self.spec.zone {
            labels["topology.kubernetes.io/zone"] = zone.as_str().into();
        }
        json!({
            "metadata": {"name": self.spec.name, "labels": labels},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": self.spec.address},
                    {"type": "Hostname", "address": self.spec.name},
                ],
                "conditions": [ready_condition(&now())],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.spec.port}},
            },
        })
    }

    fn pod(&self, pod: &HollowPod) -> serde_json::Value {
        json!({
            "metadata": {"namespace": pod.namespace, "name": pod.name},
            "spec": {
                "nodeName": self.spec.name,
                "containers": [{"name": "hollow", "image": "registry.k8s.io/pause"}],
            },
        })
    }

    fn refused(&self, what: &'static str, source: kube::Error) -> KubeletError {
        KubeletError::Register {
            what,
            name: self.spec.name.clone(),
            source,
        }
    }
}

fn ready_condition(since: &Time) -> serde_json::Value {
    json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now(), "lastTransitionTime": since,
    })
}

/// Something of that name being there already is as good.
fn created<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(error),
    }
}

#[expect(
    clippy::expect_used,
    reason = "the literals of this module name only fields that the types have"
)]
fn from_json<T: serde::de::DeserializeOwned>(object: serde_json::Value) -> T {
    serde_json::from_value(object).expect("a literal of this module fits its type")
}

fn now() -> Time {
    Time(Timestamp::now())
}
