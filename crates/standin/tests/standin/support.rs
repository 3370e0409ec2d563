use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Api, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use swimlet_standin::{Options, Standin};

/// Far beyond what anything here takes, so that only a hang reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn standin() -> Standin {
    Standin::start(Options::default()).await.expect("starts")
}

pub(crate) fn object<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("fits its type")
}

/// Waits for what must happen, looking often; the wait ends with the event and not with a clock.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(what, waiting).await
}

pub(crate) async fn within<T>(what: &str, waiting: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, waiting)
        .await
        .unwrap_or_else(|_| panic!("never happened: {what}"))
}

pub(crate) fn nodes(standin: &Standin) -> Api<Node> {
    Api::all(standin.client_named("test").expect("client"))
}

/// A Node with two conditions, as a kubelet would have written it an hour ago.
pub(crate) async fn create_node(nodes: &Api<Node>, name: &str) -> Node {
    let node = object(json!({
        "metadata": {"name": name, "labels": {"kept": "yes"}},
        "status": {"conditions": [
            {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
            {"type": "Ready", "status": "True", "reason": "KubeletReady",
             "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]},
    }));
    nodes
        .create(&PostParams::default(), &node)
        .await
        .expect("creates")
}

pub(crate) fn ready(node: &Node) -> NodeCondition {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|c| c.type_ == "Ready")
        .cloned()
        .expect("a Ready condition")
}

/// The patch of the condition writer: one condition, guarded by version and UID where the node is given.
pub(crate) fn unknown(guard: Option<&Node>) -> Value {
    let mut patch = json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "NodeUnreachableFromPeers",
         "lastTransitionTime": "2026-01-01T01:00:00Z"},
    ]}});
    if let Some(node) = guard {
        patch["metadata"] =
            json!({"resourceVersion": node.metadata.resource_version, "uid": node.metadata.uid});
    }
    patch
}

/// Code and reason of a refusal.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

pub(crate) fn refused(code: u16, reason: &str) -> (u16, String) {
    (code, reason.to_owned())
}
