//! The edge against a real API server, with the permissions that are shipped.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests are tests; clippy tells them apart by the attribute alone"
)]

mod common;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use common::{PATIENCE, Running, condition, config, decision, until};
use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Client, Config};
use serde_json::{Value, json};
use swimlet_cluster::election::state::Timing;
use swimlet_cluster::{Clients, Mode, Source};
use swimlet_rig::{AuditEvent, ControlPlane, Options, User};
use swimlet_verdict::{Brake, Input, Notice, WriteOutcome};
use tower::{BoxError, Service};

/// A control plane with our namespace and our RBAC applied from the shipped files.
async fn control_plane() -> ControlPlane {
    let cluster = ControlPlane::start(Options::machine()).await.unwrap();
    for file in ["namespace.yaml", "rbac.yaml"] {
        apply(&cluster, file).await;
    }
    cluster
}

async fn apply(cluster: &ControlPlane, file: &str) {
    let base = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../daemonset/base");
    let path = base.join(file);
    // A namespace that every cluster has is made by the API server itself, a little later.
    until("the file is applied", async || {
        cluster
            .kubectl(&["apply", "-f", path.to_str().unwrap()])
            .await
            .is_ok()
    })
    .await;
}

fn aggregator() -> User {
    User::service_account("swimlet-system", "swimlet-aggregator")
}

async fn clients(cluster: &ControlPlane) -> Clients {
    let path = cluster.kubeconfig(&aggregator()).await.unwrap();
    Clients::connect(&Source::Kubeconfig {
        path,
        context: None,
    })
    .await
    .unwrap()
}

/// A Node as a kubelet leaves it: conditions of its own, images, others' labels and annotations.
async fn make_node(admin: &Client, name: &str) {
    let nodes: Api<Node> = Api::all(admin.clone());
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {"topology.kubernetes.io/zone": "z1", "team": "x"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"podCIDR": "10.1.0.0/24"},
    });
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let time = "2026-01-02T03:04:05Z";
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({"type": kind, "status": status, "reason": reason, "message": "as it is",
               "lastHeartbeatTime": time, "lastTransitionTime": time})
    };
    let status = json!({"status": {
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("Ready", "True", "KubeletReady"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("NetworkUnavailable", "False", "RouteCreated"),
        ],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "images": [{"names": ["registry.example/a:1"], "sizeBytes": 1}],
        "capacity": {"cpu": "4"},
    }});
    let params = PatchParams::default();
    nodes
        .patch_status(name, &params, &Patch::Strategic(status))
        .await
        .unwrap();
}

async fn make_pod(admin: &Client, node: &str, name: &str, ready: Option<&str>) {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "registry.example/a:1"}],
        },
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let Some(ready) = ready else { return };
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "AsItIs", "message": "as it is",
               "lastTransitionTime": "2026-01-02T03:04:05Z"})
    };
    let status = json!({"status": {
        "phase": "Running",
        "conditions": [condition("PodScheduled", "True"), condition("Ready", ready)],
    }});
    let params = PatchParams::default();
    pods.patch_status(name, &params, &Patch::Strategic(status))
        .await
        .unwrap();
}

async fn node(admin: &Client, name: &str) -> Value {
    let nodes: Api<Node> = Api::all(admin.clone());
    serde_json::to_value(nodes.get(name).await.unwrap()).unwrap()
}

async fn pod(admin: &Client, name: &str) -> Value {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    serde_json::to_value(pods.get(name).await.unwrap()).unwrap()
}

/// The object without what every write changes, and without what we write on purpose.
fn untouched(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("resourceVersion");
    metadata.remove("managedFields");
    for condition in object["status"]["conditions"].as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            let ready = condition.as_object_mut().unwrap();
            for key in ["status", "reason", "message", "lastTransitionTime"] {
                ready.remove(key);
            }
        }
    }
    object
}

fn ours(cluster: &ControlPlane) -> Vec<AuditEvent> {
    let events = cluster.audit().unwrap().into_iter();
    events
        .filter(|event| event.user == aggregator().username())
        .collect()
}

/// Ready is False, since now, and nothing else has changed.
async fn marked_as_in_tree(admin: &Client, name: &str, before: &Value) {
    until("the pod is marked", async || {
        condition(&pod(admin, name).await, "Ready")["status"] == "False"
    })
    .await;
    let marked = pod(admin, name).await;
    assert_eq!(condition(&marked, "Ready")["reason"], "AsItIs");
    assert_eq!(condition(&marked, "Ready")["message"], "as it is");
    assert_ne!(
        condition(&marked, "Ready")["lastTransitionTime"],
        "2026-01-02T03:04:05Z"
    );
    assert_eq!(untouched(marked), untouched(before.clone()));
}

/// Guards that the API server takes an Event about our Lease, and that `kubectl` finds it there.
#[tokio::test]
async fn what_concerns_the_cluster_is_told_on_our_lease() {
    let cluster = control_plane().await;
    let admin = cluster.client(&User::Admin).await.unwrap();
    let edge = Running::with_clients(clients(&cluster).await, config("agg-0", Mode::Observe));
    edge.leads().await;
    let brake = Brake::Minority;
    edge.handle.notice(&Notice::BrakeOn { brake });
    let events: Api<Event> = Api::namespaced(admin, "swimlet-system");
    until("the Event is there", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("BrakeOn"))
    })
    .await;
    let lease = [
        "describe",
        "lease",
        "swimlet-aggregator",
        "-n",
        "swimlet-system",
    ];
    let told = cluster.kubectl(&lease).await.unwrap();
    assert!(told.contains("The brake minority is on."), "{told}");
    edge.stopped().await.unwrap();
}

/// One Event on the Node and one on the pod.
async fn events_on_both(admin: &Client) {
    let events: Api<Event> = Api::namespaced(admin.clone(), "default");
    until("the Events are there", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        let reasons: Vec<_> = events
            .iter()
            .filter_map(|event| event.reason.as_deref())
            .collect();
        reasons.contains(&"NodeUnreachableFromPeers") && reasons.contains(&"NodeNotReady")
    })
    .await;
}

/// Guards the contract of KEP-6371 and the shipped permissions at once: exactly one condition is
/// written, everything else stays byte for byte, `lastHeartbeatTime` above all; the pods follow
/// as the in-tree controller would mark them; nothing else is written.
#[tokio::test]
async fn one_condition_is_written_and_the_pods_follow() {
    let cluster = control_plane().await;
    let admin = cluster.client(&User::Admin).await.unwrap();
    make_node(&admin, "a").await;
    make_node(&admin, "b").await;
    make_pod(&admin, "a", "ready", Some("True")).await;
    make_pod(&admin, "a", "unready", Some("False")).await;
    make_pod(&admin, "a", "pending", None).await;
    make_pod(&admin, "b", "elsewhere", Some("True")).await;
    let mut edge = Running::with_clients(clients(&cluster).await, config("agg-0", Mode::Enforce));
    let seen = edge.node("a").await;
    edge.leads().await;
    let handle = edge.handle.clone();
    until("the shipped permissions suffice", async || {
        handle.readiness().is_ready()
    })
    .await;
    let before = node(&admin, "a").await;
    let pods = ["ready", "unready", "pending", "elsewhere"];
    let mut pods_before = Vec::new();
    for name in pods {
        pods_before.push(pod(&admin, name).await);
    }

    edge.write(&decision(&seen)).await;

    let after = node(&admin, "a").await;
    let ready = condition(&after, "Ready");
    assert_eq!(ready["status"], "Unknown");
    assert_eq!(ready["reason"], "NodeUnreachableFromPeers");
    assert_eq!(ready["lastHeartbeatTime"], "2026-01-02T03:04:05Z");
    assert_ne!(ready["lastTransitionTime"], "2026-01-02T03:04:05Z");
    assert_eq!(untouched(after), untouched(before));

    marked_as_in_tree(&admin, "ready", &pods_before[0]).await;
    events_on_both(&admin).await;
    for (name, before) in pods.iter().zip(&pods_before).skip(1) {
        assert_eq!(pod(&admin, name).await, *before, "{name}");
    }
    assert_eq!(
        node(&admin, "b").await["status"]["conditions"][1]["status"],
        "True"
    );
    edge.stopped().await.unwrap();

    let writes: Vec<_> = ours(&cluster)
        .into_iter()
        .filter(|event| ["nodes", "pods"].contains(&event.resource.as_str()))
        .filter(|event| !["get", "list", "watch"].contains(&event.verb.as_str()))
        .map(|event| {
            (
                event.verb,
                event.resource,
                event.subresource,
                event.name,
                event.code,
            )
        })
        .collect();
    let write = |resource: &str, name: &str| {
        (
            "patch".into(),
            resource.into(),
            "status".into(),
            name.into(),
            200,
        )
    };
    assert_eq!(writes, [write("nodes", "a"), write("pods", "ready")]);
}

/// Lets something happen right before the first patch goes out.
#[derive(Clone)]
struct BeforePatch {
    inner: Client,
    admin: Client,
    done: Arc<AtomicBool>,
}

impl Service<Request<Body>> for BeforePatch {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if request.method() == Method::PATCH && !this.done.swap(true, Ordering::Relaxed) {
                let nodes: Api<Node> = Api::all(this.admin.clone());
                let ready = json!({"status": {"conditions": [{
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "lastHeartbeatTime": "2026-01-02T03:09:05Z",
                }]}});
                let params = PatchParams::default();
                nodes
                    .patch_status("a", &params, &Patch::Strategic(ready))
                    .await?;
            }
            Ok(this.inner.send(request).await?)
        })
    }
}

/// Scenario 22 on the real API server: a heartbeat that lands between read and patch makes the
/// patch a conflict, and stays.
#[tokio::test]
async fn a_heartbeat_between_read_and_patch_makes_it_a_conflict() {
    let cluster = control_plane().await;
    let admin = cluster.client(&User::Admin).await.unwrap();
    make_node(&admin, "a").await;
    let mut clients = clients(&cluster).await;
    let hook = BeforePatch {
        inner: clients.main.clone(),
        admin: admin.clone(),
        done: Arc::default(),
    };
    clients.main = Client::new(hook, "default");
    let mut edge = Running::with_clients(clients, config("agg-0", Mode::Enforce));
    let seen = edge.node("a").await;
    edge.leads().await;

    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Conflict);
    let after = node(&admin, "a").await;
    assert_eq!(condition(&after, "Ready")["status"], "True");
    assert_eq!(
        condition(&after, "Ready")["lastHeartbeatTime"],
        "2026-01-02T03:09:05Z"
    );

    // The old evidence is void from here on; evidence about the new state is not.
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    while edge.last_seen("a").ready == seen.ready {
        edge.node("a").await;
    }
    let fresh = edge.last_seen("a").clone();
    edge.write(&decision(&fresh)).await;
}

/// Guards the election on the real API server: one of three leads, a pause reaches all of them,
/// a stop is followed at once, and a silent death after the lease ran out.
#[tokio::test]
async fn three_candidates_and_one_leader() {
    let cluster = control_plane().await;
    let admin = cluster.client(&User::Admin).await.unwrap();
    let mut edges = Vec::new();
    for index in 0..3 {
        let mut config = config(&format!("agg-{index}"), Mode::Observe);
        config.election.timing = Timing::DEFAULT;
        edges.push(Running::with_clients(clients(&cluster).await, config));
    }
    let leading = |edges: &[Running]| -> Vec<usize> {
        let leads = |edge: &&(usize, &Running)| edge.1.handle.leadership().leads();
        edges
            .iter()
            .enumerate()
            .collect::<Vec<_>>()
            .iter()
            .filter(leads)
            .map(|(i, _)| *i)
            .collect()
    };
    until("one leads", async || leading(&edges).len() == 1).await;

    let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
        Api::namespaced(admin.clone(), "swimlet-system");
    let pause = json!({"metadata": {"annotations": {"swimlet.dev/pause": "upgrade"}}});
    let params = PatchParams::default();
    leases
        .patch("swimlet-aggregator", &params, &Patch::Merge(pause))
        .await
        .unwrap();
    for edge in &mut edges {
        edge.next("the pause", |input| {
            (input == Input::Paused(true)).then_some(())
        })
        .await;
    }
    let lease = leases.get("swimlet-aggregator").await.unwrap();
    assert_eq!(
        leading(&edges).len(),
        1,
        "a pause costs no leadership: {lease:?}"
    );

    let first = leading(&edges)[0];
    edges.remove(first).stopped().await.unwrap();
    until("another leads", async || leading(&edges).len() == 1).await;
    let lease = leases.get("swimlet-aggregator").await.unwrap();
    let annotations = lease.metadata.annotations.unwrap();
    assert_eq!(
        annotations["swimlet.dev/pause"], "upgrade",
        "renewals keep the annotation"
    );

    // Dropped without a word, as by SIGKILL.
    let second = leading(&edges)[0];
    drop(edges.remove(second));
    until("the last one leads", async || leading(&edges) == [0]).await;
    let transitions = leases
        .get("swimlet-aggregator")
        .await
        .unwrap()
        .spec
        .unwrap()
        .lease_transitions;
    assert_eq!(transitions, Some(2));
    let forbidden: Vec<_> = ours(&cluster)
        .into_iter()
        .filter(|event| event.code == 403)
        .collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}

/// Guards that a missing permission is named, before and when it is needed.
#[tokio::test]
async fn a_missing_verb_is_named() {
    let cluster = control_plane().await;
    let admin = cluster.client(&User::Admin).await.unwrap();
    make_node(&admin, "a").await;
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(admin.clone());
    let mut role = roles.get("swimlet-aggregator").await.unwrap();
    let rules = role.rules.as_mut().unwrap();
    rules.retain(|rule| rule.resources != Some(vec!["nodes/status".to_owned()]));
    roles
        .replace("swimlet-aggregator", &PostParams::default(), &role)
        .await
        .unwrap();

    let mut edge = Running::with_clients(clients(&cluster).await, config("agg-0", Mode::Enforce));
    let seen = edge.node("a").await;
    edge.leads().await;
    let handle = edge.handle.clone();
    until("the gap is named", async || {
        handle.readiness().to_string() == "RBAC does not grant: patch nodes/status"
    })
    .await;
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Failed);
    assert_eq!(
        condition(&node(&admin, "a").await, "Ready")["status"],
        "True"
    );

    apply(&cluster, "rbac.yaml").await;
    until("the gap is closed", async || handle.readiness().is_ready()).await;
    edge.write(&decision(&seen)).await;
}

/// Guards that a wrong address is said to be one, and that nothing is thrown away meanwhile.
#[tokio::test]
async fn a_server_that_is_not_there_is_no_error_and_not_ready() {
    let nobody = Config::new("http://127.0.0.1:1".parse().unwrap());
    let edge = Running::start(nobody, config("agg-0", Mode::Observe));
    let stats = edge.handle.stats().watch.clone();
    until("it was tried", async || {
        stats.failures.load(Ordering::Relaxed) > 0
    })
    .await;
    assert!(!edge.handle.readiness().is_ready());
    let stopped = tokio::time::timeout(PATIENCE, edge.stopped())
        .await
        .unwrap();
    stopped.unwrap();
}
