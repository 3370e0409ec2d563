use serde_json::json;

use super::*;

fn node(patch: &serde_json::Value) -> NodeView {
    let mut value = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "a",
            "uid": "u-1",
            "resourceVersion": "7",
            "labels": {"topology.kubernetes.io/zone": "z1"},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "10.0.0.1"},
                {"type": "Hostname", "address": "a"},
                {"type": "InternalIP", "address": "fd00::1"},
            ],
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady",
                 "lastHeartbeatTime": "2026-01-02T03:04:05Z",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": [{"names": ["x"], "sizeBytes": 1}],
        },
    });
    merge(&mut value, patch);
    serde_json::from_value(value).unwrap()
}

fn merge(into: &mut serde_json::Value, patch: &serde_json::Value) {
    match (into, patch) {
        (serde_json::Value::Object(into), serde_json::Value::Object(patch)) => {
            for (key, value) in patch {
                merge(
                    into.entry(key.clone()).or_insert(serde_json::Value::Null),
                    value,
                );
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

fn seen(patch: &serde_json::Value) -> NodeSeen {
    node(patch).seen(&"c".parse().unwrap()).unwrap()
}

/// Guards that the judge gets what the Node says, in both address families.
#[test]
fn a_node_is_seen_with_what_the_judge_needs() {
    let seen = seen(&json!({}));
    assert_eq!(seen.node.name.as_str(), "a");
    assert_eq!(seen.node.uid.as_str(), "u-1");
    assert_eq!(seen.zone.as_str(), "z1");
    let addresses: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
    assert_eq!(seen.addresses, addresses);
    assert_eq!(seen.kubelet_port, 10250);
    let ready = seen.ready.unwrap();
    assert_eq!(ready.status, ReadyStatus::True);
    assert!(!ready.ours && ready.heartbeat.is_some() && ready.transition.is_some());
    assert!(!seen.hold && !seen.deleting && !seen.agentless);
    assert!(seen.lifecycle.is_empty());
}

/// Guards the memory bound: nothing but what is used survives decoding.
#[test]
fn other_annotations_and_managed_fields_are_not_kept() {
    let node = node(&json!({"metadata": {"annotations": {"swimlet.dev/hold": "disk swap"}}}));
    assert_eq!(node.metadata.annotations.as_ref().unwrap().len(), 1);
    assert!(node.metadata.managed_fields.is_none());
}

#[test]
fn a_hold_is_any_value_but_false() {
    for (value, hold) in [
        ("", true),
        ("true", true),
        ("disk swap", true),
        ("false", false),
    ] {
        let patch = json!({"metadata": {"annotations": {"swimlet.dev/hold": value}}});
        assert_eq!(seen(&patch).hold, hold, "{value:?}");
    }
}

#[test]
fn nodes_without_an_agent_and_nodes_on_their_way_out_are_told() {
    for labels in [
        json!({"type": "virtual-kubelet"}),
        json!({"kubernetes.io/os": "windows"}),
        json!({"swimlet.dev/agent": "false"}),
    ] {
        assert!(
            seen(&json!({"metadata": {"labels": labels}})).agentless,
            "{labels}"
        );
    }
    let virtual_kubelet = json!({"spec": {"taints": [
        {"key": "virtual-kubelet.io/provider", "value": "azure", "effect": "NoSchedule"}]}});
    assert!(seen(&virtual_kubelet).agentless);
    let scaled_down = json!({"spec": {"taints": [
        {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}});
    assert!(seen(&scaled_down).deleting);
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert!(seen(&deleted).deleting);
}

#[test]
fn a_node_that_never_reported_has_neither_ready_nor_port() {
    let seen = seen(&json!({"status": null, "spec": {}})
        .as_object()
        .map(|_| json!({"status": {"conditions": [], "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}}))
        .unwrap());
    assert_eq!(seen.ready, None);
    assert_eq!(seen.kubelet_port, 0);
    let bare: NodeView =
        serde_json::from_value(json!({"metadata": {"name": "b", "uid": "u-2"}})).unwrap();
    assert_eq!(bare.seen(&"c".parse().unwrap()).unwrap().ready, None);
}

#[test]
fn our_unknown_is_told_from_the_controllers() {
    let condition = |reason: &str| {
        let patch = json!({"status": {"conditions": [
            {"type": "Ready", "status": "Unknown", "reason": reason}]}});
        node(&patch).ready().unwrap().is_our_unknown()
    };
    assert!(condition("NodeUnreachableFromPeers"));
    assert!(condition("KubeletUnresponsive"));
    assert!(!condition("NodeStatusUnknown"));
}

#[test]
fn an_object_without_a_uid_is_no_node() {
    let nameless: NodeView = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
    let error = nameless
        .seen(&"c".parse().unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("no UID"), "{error}");
}
