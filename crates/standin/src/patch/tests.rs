use serde_json::{Value, json};

use super::{PatchError, json_merge, strategic};
use crate::resource::Resource;

fn node() -> Value {
    json!({
        "metadata": {"name": "n1", "labels": {"a": "1", "b": "2"}, "finalizers": ["x", "y"]},
        "status": {
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "reason": "Enough"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "h", "message": "ok"},
            ],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}],
            "images": [{"names": ["old"]}],
        },
    })
}

fn patched(patch: Value) -> Value {
    strategic(Resource::Nodes, node(), patch).expect("the patch applies")
}

/// Guards what the condition writer relies on: one condition changes by its type, its other fields and all other
/// conditions stay.
#[test]
fn a_condition_merges_into_its_namesake() {
    let after = patched(json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "NodeUnreachableFromPeers"},
    ]}}));
    let conditions = after["status"]["conditions"].as_array().expect("list");
    assert_eq!(conditions.len(), 2);
    assert_eq!(conditions[0], node()["status"]["conditions"][0]);
    assert_eq!(
        conditions[1],
        json!({
            "type": "Ready", "status": "Unknown", "reason": "NodeUnreachableFromPeers",
            "lastHeartbeatTime": "h", "message": "ok",
        })
    );
}

/// Guards the difference that makes a JSON merge patch unusable for conditions.
#[test]
fn a_json_merge_patch_replaces_the_list() {
    let after = json_merge(
        node(),
        json!({
            "metadata": {"labels": {"a": null, "c": "3"}},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        }),
    );
    assert_eq!(
        after["status"]["conditions"],
        json!([{"type": "Ready", "status": "Unknown"}])
    );
    assert_eq!(after["metadata"]["labels"], json!({"b": "2", "c": "3"}));
    assert_eq!(after["status"]["addresses"], node()["status"]["addresses"]);
}

/// Guards the patch that a real kubelet sends, which names the order of the whole list.
#[test]
fn an_element_order_is_kept_and_may_move_elements() {
    let after = patched(json!({"status": {
        "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "DiskPressure"}, {"type": "MemoryPressure"}],
        "conditions": [{"type": "DiskPressure", "status": "False"}],
    }}));
    let types: Vec<_> = after["status"]["conditions"]
        .as_array()
        .expect("list")
        .iter()
        .map(|c| c["type"].clone())
        .collect();
    assert_eq!(types, ["Ready", "DiskPressure", "MemoryPressure"]);
    assert!(after["status"].get("$setElementOrder/conditions").is_none());

    let refused = strategic(
        Resource::Nodes,
        node(),
        json!({"status": {"$setElementOrder/conditions": [{"type": "Ready"}], "conditions": [{"type": "Other"}]}}),
    );
    assert!(
        matches!(refused, Err(PatchError::BadList { .. })),
        "{refused:?}"
    );
}

/// Guards deletion: null for fields, a directive for elements, a list of values for plain lists.
#[test]
fn fields_elements_and_values_can_be_deleted() {
    let after = patched(json!({
        "metadata": {"labels": {"a": null}, "$deleteFromPrimitiveList/finalizers": ["x"]},
        "status": {"conditions": [{"$patch": "delete", "type": "MemoryPressure"}]},
    }));
    assert_eq!(after["metadata"]["labels"], json!({"b": "2"}));
    assert_eq!(after["metadata"]["finalizers"], json!(["y"]));
    assert_eq!(
        after["status"]["conditions"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(after["status"]["conditions"][0]["type"], "Ready");
}

/// Guards the strategies of the other lists: values are merged, untagged lists and `$patch: replace` replace.
#[test]
fn lists_follow_their_tags() {
    let after = patched(json!({
        "metadata": {"finalizers": ["z", "x"]},
        "status": {
            "images": [{"names": ["new"]}],
            "addresses": [{"$patch": "replace"}, {"type": "InternalIP", "address": "10.0.0.9"}],
        },
    }));
    let mut finalizers: Vec<_> = after["metadata"]["finalizers"]
        .as_array()
        .expect("list")
        .iter()
        .map(Value::to_string)
        .collect();
    finalizers.sort();
    assert_eq!(finalizers, ["\"x\"", "\"y\"", "\"z\""]);
    assert_eq!(after["status"]["images"], json!([{"names": ["new"]}]));
    assert_eq!(
        after["status"]["addresses"],
        json!([{"type": "InternalIP", "address": "10.0.0.9"}])
    );

    let replaced = patched(json!({"metadata": {"labels": {"$patch": "replace", "only": "one"}}}));
    assert_eq!(replaced["metadata"]["labels"], json!({"only": "one"}));
}

/// Guards that a malformed patch is refused whole instead of half applied.
#[test]
fn malformed_patches_are_refused() {
    let no_key = strategic(
        Resource::Nodes,
        node(),
        json!({"status": {"conditions": [{"status": "Unknown"}]}}),
    );
    assert!(
        matches!(no_key, Err(PatchError::NoMergeKey { key: "type", .. })),
        "{no_key:?}"
    );
    let directive = strategic(
        Resource::Nodes,
        node(),
        json!({"status": {"$patch": "merge"}}),
    );
    assert!(
        matches!(directive, Err(PatchError::Directive { .. })),
        "{directive:?}"
    );
    let mixed = strategic(
        Resource::Nodes,
        node(),
        json!({"status": {"conditions": ["Ready"]}}),
    );
    assert!(
        matches!(mixed, Err(PatchError::MixedList { .. })),
        "{mixed:?}"
    );
}
