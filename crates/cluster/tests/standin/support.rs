//! What the tests against the stand-in begin with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use swimlet_cluster::Mode;
use swimlet_standin::{
    HollowKubelet, HollowPod, KubeletSpec, Matcher, Options, RequestRecord, Standin, Verb,
};
use swimlet_verdict::NodeSeen;

use crate::common::{Running, config};

/// A Node "a" whose kubelet has died, and an edge that has seen it and leads.
pub(crate) struct Scene {
    pub(crate) standin: Standin,
    pub(crate) client: Client,
    pub(crate) edge: Running,
    pub(crate) seen: NodeSeen,
}

impl Scene {
    pub(crate) async fn of(mode: Mode, pods: &[&str]) -> Self {
        let standin = standin().await;
        dead(&standin, "a", pods).await;
        let mut edge = start(&standin, mode);
        let seen = edge.node("a").await;
        edge.leads().await;
        Self {
            client: standin.client().unwrap(),
            standin,
            edge,
            seen,
        }
    }
}

/// Our own requests bear this; the kubelets' and the tests' do not.
pub(crate) const US: &str = "swimlet/";

pub(crate) async fn standin() -> Standin {
    let options = Options {
        namespaces: vec!["swimlet-system".to_owned()],
        ..Options::default()
    };
    Standin::start(options).await.unwrap()
}

pub(crate) fn start(standin: &Standin, mode: Mode) -> Running {
    Running::start(standin.config("replaced"), config("agg-0", mode))
}

/// A kubelet with pods, whose port is of no interest here.
pub(crate) async fn kubelet(standin: &Standin, name: &str, pods: &[&str]) -> HollowKubelet {
    let mut spec = KubeletSpec::new(name);
    spec.serve = false;
    spec.port = 10250;
    spec.zone = Some("z1".to_owned());
    spec.period = Duration::from_millis(200);
    spec.pods = pods
        .iter()
        .map(|pod| HollowPod {
            namespace: "default".to_owned(),
            name: (*pod).to_owned(),
        })
        .collect();
    standin.kubelet(spec).await.unwrap()
}

pub(crate) fn objects(
    client: &Client,
    kind: &str,
    plural: &str,
    namespaced: bool,
) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural);
    if namespaced {
        Api::namespaced_with(client.clone(), "default", &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

pub(crate) async fn read(client: &Client, kind: &str, name: &str) -> Value {
    let (plural, namespaced) = if kind == "Pod" {
        ("pods", true)
    } else {
        ("nodes", false)
    };
    let object = objects(client, kind, plural, namespaced)
        .get(name)
        .await
        .unwrap();
    serde_json::to_value(object).unwrap()
}

pub(crate) async fn set_ready(
    client: &Client,
    node: &str,
    status: &str,
    reason: &str,
    heartbeat: &str,
) {
    let patch = json!({"status": {"conditions": [{
        "type": "Ready",
        "status": status,
        "reason": reason,
        "lastHeartbeatTime": heartbeat,
        "lastTransitionTime": heartbeat,
    }]}});
    let nodes = objects(client, "Node", "nodes", false);
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
}

pub(crate) fn ours(
    standin: &Standin,
    resource: &str,
    subresource: &str,
    verb: Verb,
) -> Vec<RequestRecord> {
    let matcher = Matcher::any().verb(verb).resource(resource).user_agent(US);
    let matcher = if subresource.is_empty() {
        matcher.no_subresource()
    } else {
        matcher.subresource(subresource)
    };
    standin
        .requests()
        .into_iter()
        .filter(|request| matcher.matches(request))
        .collect()
}

pub(crate) fn status_patch() -> Matcher {
    Matcher::any()
        .verb(Verb::Patch)
        .resource("nodes")
        .subresource("status")
        .user_agent(US)
}

pub(crate) async fn events(client: &Client) -> Vec<Value> {
    let events = objects(client, "Event", "events", true);
    let list = events.list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .map(|event| serde_json::to_value(event).unwrap())
        .collect()
}

/// A kubelet that has died without a word.
pub(crate) async fn dead(standin: &Standin, name: &str, pods: &[&str]) {
    let kubelet = kubelet(standin, name, pods).await;
    kubelet.kill().await.unwrap();
}

/// Puts an Unknown on a Node.
pub(crate) async fn unknown(client: &Client, node: &str, reason: &str) {
    set_ready(client, node, "Unknown", reason, "2030-01-01T00:00:00Z").await;
}

/// Our requests for one kind of thing.
pub(crate) fn to(verb: Verb, resource: &str) -> Matcher {
    Matcher::any().verb(verb).resource(resource).user_agent(US)
}

pub(crate) async fn ready_status(client: &Client, kind: &str, name: &str) -> String {
    let object = read(client, kind, name).await;
    let ready = crate::common::condition(&object, "Ready");
    ready["status"].as_str().unwrap().to_owned()
}

/// Changes annotations, as a person does.
pub(crate) async fn annotate(client: &Client, node: &str, annotations: Value) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let nodes = objects(client, "Node", "nodes", false);
    let params = PatchParams::default();
    nodes.patch(node, &params, &patch).await.unwrap();
}

pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
