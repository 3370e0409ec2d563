use http::{Request, header};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::events::v1::Event as EventsV1;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use swimlet_standin::{Matcher, Verb};

use crate::support::{create_node, nodes, object, ready, refusal, refused, standin, unknown};

const DEFAULT: &str = "default";

/// Guards the life of an object: identity at birth, reading, replacing, deleting, and the refusals beside them.
#[tokio::test]
async fn an_object_lives_and_dies() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let created = create_node(&nodes, "n1").await;
    assert!(created.uid().is_some_and(|uid| uid.len() == 36));
    assert!(created.metadata.creation_timestamp.is_some());

    assert_eq!(
        refusal(nodes.create(&PostParams::default(), &created).await),
        refused(500, "")
    );
    let again: Node = object(json!({"metadata": {"name": "n1"}}));
    assert_eq!(
        refusal(nodes.create(&PostParams::default(), &again).await),
        refused(409, "AlreadyExists")
    );
    assert_eq!(refusal(nodes.get("n2").await), refused(404, "NotFound"));

    let mut changed = nodes.get("n1").await.expect("reads");
    assert_eq!(changed, created);
    changed.labels_mut().insert("new".into(), "label".into());
    let replaced = nodes
        .replace("n1", &PostParams::default(), &changed)
        .await
        .expect("replaces");
    assert_eq!(replaced.labels()["new"], "label");
    assert_eq!(replaced.uid(), created.uid());
    assert!(version(&replaced) > version(&created));

    let list = nodes
        .list(&ListParams::default().limit(1))
        .await
        .expect("lists");
    assert_eq!(list.items, [replaced]);
    assert!(list.metadata.resource_version.is_some());

    let other = DeleteParams::default().preconditions(Preconditions {
        uid: Some("x".into()),
        resource_version: None,
    });
    assert_eq!(
        refusal(nodes.delete("n1", &other).await),
        refused(409, "Conflict")
    );
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deletes");
    assert_eq!(
        refusal(nodes.delete("n1", &DeleteParams::default()).await),
        refused(404, "NotFound")
    );

    let second = create_node(&nodes, "n1").await;
    assert_ne!(
        second.uid(),
        created.uid(),
        "a re-created Node is another Node"
    );
}

/// Guards optimistic locking, which the election rests on.
#[tokio::test]
async fn a_stale_writer_is_refused() {
    let standin = standin().await;
    let leases: Api<Lease> = Api::namespaced(standin.client().expect("client"), "kube-system");
    let lease: Lease = object(json!({
        "metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 10},
    }));
    // Leases are created by a PUT too.
    let first = leases
        .replace("l", &PostParams::default(), &lease)
        .await
        .expect("creates");
    let mut second = first.clone();
    second.spec.get_or_insert_default().holder_identity = Some("b".into());
    let second = leases
        .replace("l", &PostParams::default(), &second)
        .await
        .expect("replaces");
    assert!(version(&second) > version(&first));
    assert_eq!(
        refusal(leases.replace("l", &PostParams::default(), &first).await),
        refused(409, "Conflict")
    );
    assert_eq!(
        refusal(leases.replace("l", &PostParams::default(), &lease).await),
        refused(422, "Invalid")
    );
    assert_eq!(leases.get("l").await.expect("reads"), second);

    leases
        .delete("l", &DeleteParams::default())
        .await
        .expect("deletes");
    let resurrected = leases.replace("l", &PostParams::default(), &second).await;
    assert_eq!(
        refusal(resurrected),
        refused(409, "Conflict"),
        "a PUT with the UID of a deleted Lease"
    );

    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    let unconditional: Node =
        object(json!({"metadata": {"name": "n1", "labels": {"only": "one"}}}));
    let replaced = nodes
        .replace("n1", &PostParams::default(), &unconditional)
        .await
        .expect("replaces");
    assert_eq!(replaced.labels().len(), 1);
    assert_eq!(
        ready(&replaced).status,
        "True",
        "the main resource ignores status, its absence too"
    );
}

/// Guards that nothing is written where nothing changes: watches would wake for it.
#[tokio::test]
async fn a_write_without_a_change_keeps_the_version() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let created = create_node(&nodes, "n1").await;
    let writes = standin.counters().writes;
    let same = nodes
        .replace("n1", &PostParams::default(), &created)
        .await
        .expect("replaces");
    assert_eq!(same, created);
    let patch = json!({"status": {"conditions": [{"type": "Ready", "reason": "KubeletReady"}]}});
    let same = nodes
        .patch_status("n1", &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .expect("patches");
    assert_eq!(same, created);
    assert_eq!(standin.counters().writes, writes);
}

/// Guards the one write that swimlet makes on Nodes, with each of its preconditions (scenarios 9 and 22).
#[tokio::test]
async fn the_condition_patch_is_guarded_by_version_and_uid() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let before = create_node(&nodes, "n1").await;
    let apply = async |patch: Value| {
        nodes
            .patch_status("n1", &PatchParams::default(), &Patch::Strategic(patch))
            .await
    };

    let after = apply(unknown(Some(&before))).await.expect("patches");
    let condition = ready(&after);
    assert_eq!(
        (condition.status.as_str(), condition.reason.as_deref()),
        ("Unknown", Some("NodeUnreachableFromPeers"))
    );
    assert_eq!(
        condition.last_heartbeat_time,
        ready(&before).last_heartbeat_time
    );
    let others = |node: &Node| {
        let status = node.status.clone().unwrap_or_default();
        (
            node.labels().clone(),
            status
                .conditions
                .unwrap_or_default()
                .into_iter()
                .find(|c| c.type_ != "Ready"),
        )
    };
    assert_eq!(others(&after), others(&before));

    assert_eq!(
        refusal(apply(unknown(Some(&before))).await),
        refused(409, "Conflict"),
        "stale version"
    );
    let mut foreign = unknown(Some(&after));
    foreign["metadata"]["uid"] = "another".into();
    foreign["status"]["conditions"][0]["reason"] = "Other".into();
    assert_eq!(
        refusal(apply(foreign.clone()).await),
        refused(422, "Invalid"),
        "wrong UID, current version"
    );
    foreign["metadata"]
        .as_object_mut()
        .expect("object")
        .remove("resourceVersion");
    assert_eq!(
        refusal(apply(foreign).await),
        refused(422, "Invalid"),
        "wrong UID alone"
    );
}

/// Guards that evidence about a Node never reaches another one under its name (scenario 9).
#[tokio::test]
async fn the_condition_patch_never_reaches_a_namesake() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let after = create_node(&nodes, "n1").await;
    let apply = async |patch: Value| {
        let patch = Patch::Strategic(patch);
        nodes
            .patch_status("n1", &PatchParams::default(), &patch)
            .await
    };
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deletes");
    assert_eq!(
        refusal(apply(unknown(Some(&after))).await),
        refused(404, "NotFound"),
        "gone"
    );
    let again = create_node(&nodes, "n1").await;
    assert_eq!(
        refusal(apply(unknown(Some(&after))).await),
        refused(409, "Conflict"),
        "re-created"
    );
    assert_eq!(nodes.get("n1").await.expect("reads"), again);
    // Without preconditions the last writer wins: the kubelet's way.
    assert_eq!(
        ready(&apply(unknown(None)).await.expect("patches")).status,
        "Unknown"
    );
}

/// Guards why a JSON merge patch must never be used on conditions.
#[tokio::test]
async fn a_json_merge_patch_replaces_all_conditions() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    let merged = nodes
        .patch_status("n1", &PatchParams::default(), &Patch::Merge(unknown(None)))
        .await
        .expect("patches");
    assert_eq!(
        merged
            .status
            .and_then(|status| status.conditions)
            .map(|c| c.len()),
        Some(1)
    );
}

/// Guards the wall between a resource and its status, in both directions.
#[tokio::test]
async fn status_and_the_rest_do_not_touch_one_another() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let before = create_node(&nodes, "n1").await;
    let both = json!({"spec": {"unschedulable": true}, "status": {"phase": "Running"}});
    let main = nodes
        .patch(
            "n1",
            &PatchParams::default(),
            &Patch::Strategic(both.clone()),
        )
        .await
        .expect("patches");
    assert_eq!(
        main.spec.as_ref().and_then(|spec| spec.unschedulable),
        Some(true)
    );
    assert_eq!(main.status, before.status);
    let off = json!({"spec": {"unschedulable": false}, "status": {"phase": "Running"}});
    let status = nodes
        .patch_status("n1", &PatchParams::default(), &Patch::Strategic(off))
        .await
        .expect("patches");
    assert_eq!(status.spec, main.spec);
    assert_eq!(
        status.status.and_then(|status| status.phase).as_deref(),
        Some("Running")
    );

    let pods: Api<Pod> = Api::namespaced(standin.client().expect("client"), DEFAULT);
    let pod = json!({
        "metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let pod = pods
        .create(&PostParams::default(), &object(pod))
        .await
        .expect("creates");
    let born = pod.status.expect("status");
    assert_eq!(
        (born.phase.as_deref(), born.conditions),
        (Some("Pending"), None),
        "a Pod's first status is the server's"
    );
}

/// Guards selection by field, and that what is not supported is refused instead of ignored.
#[tokio::test]
async fn lists_select_by_field_and_refuse_labels() {
    let standin = standin().await;
    let pods: Api<Pod> = Api::namespaced(standin.client().expect("client"), DEFAULT);
    for (name, node) in [("p1", "n1"), ("p2", "n2"), ("p3", "n1")] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c"}]}});
        pods.create(&PostParams::default(), &object(pod))
            .await
            .expect("creates");
    }
    let on_n1 = pods
        .list(&ListParams::default().fields("spec.nodeName=n1"))
        .await
        .expect("lists");
    assert_eq!(
        on_n1.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
        ["p1", "p3"]
    );
    assert_eq!(
        refusal(pods.list(&ListParams::default().labels("a=b")).await),
        refused(400, "BadRequest")
    );
    assert_eq!(
        refusal(pods.list(&ListParams::default().fields("spec.x=n1")).await),
        refused(400, "BadRequest")
    );
    let elsewhere: Api<Pod> = Api::namespaced(standin.client().expect("client"), "nowhere");
    assert!(
        elsewhere
            .list(&ListParams::default())
            .await
            .expect("lists")
            .items
            .is_empty()
    );
    let pod = object(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}));
    assert_eq!(
        refusal(elsewhere.create(&PostParams::default(), &pod).await),
        refused(404, "NotFound")
    );
}

/// Guards the media types and bodies: what the stand-in cannot read or write it says so, with the real server's codes.
#[tokio::test]
async fn media_types_and_bodies_are_checked() {
    const NODE: &str = "/api/v1/nodes/n1";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const JSON: &str = "application/json";
    let standin = standin().await;
    create_node(&nodes(&standin), "n1").await;
    let client = standin.client().expect("client");
    let media_type = || refused(415, "UnsupportedMediaType");
    let bad = || refused(400, "BadRequest");
    let cases = [
        ("PATCH", "application/apply-patch+yaml", "{}", media_type()),
        ("PATCH", "application/json-patch+json", "[]", media_type()),
        ("PATCH", JSON, "{}", media_type()),
        ("PATCH", STRATEGIC, "{", bad()),
        ("PATCH", STRATEGIC, "[]", bad()),
        ("PUT", "application/yaml", "a: b", media_type()),
        ("PUT", JSON, r#"{"metadata": {"name": "n2"}}"#, bad()),
        (
            "PUT",
            JSON,
            r#"{"metadata": {"name": "n1"}, "status": {"conditions": 3}}"#,
            bad(),
        ),
        (
            "PUT",
            JSON,
            r#"{"kind": "Pod", "metadata": {"name": "n1"}}"#,
            bad(),
        ),
        ("PUT", JSON, r#"{"metadata": "n1"}"#, bad()),
    ];
    for (method, content_type, body, wanted) in cases {
        let request = Request::builder().method(method).uri(NODE);
        let request = request.header(header::CONTENT_TYPE, content_type);
        let request = request.body(body.as_bytes().to_vec()).expect("request");
        let answer = refusal(client.request::<Value>(request).await);
        assert_eq!(answer, wanted, "{method} {content_type} {body}");
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let cases = [
        ("GET", NODE, table, refused(406, "NotAcceptable")),
        (
            "DELETE",
            "/api/v1/nodes",
            "*/*",
            refused(405, "MethodNotAllowed"),
        ),
        (
            "GET",
            "/apis/apps/v1/deployments",
            "*/*",
            refused(404, "NotFound"),
        ),
    ];
    for (method, path, accept, wanted) in cases {
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header(header::ACCEPT, accept)
            .body(Vec::new())
            .expect("request");
        let answer = refusal(client.request::<Value>(request).await);
        assert_eq!(answer, wanted, "{method} {path} {accept}");
    }
}

/// Guards Events: both spellings show one object, and an Event about a Node belongs into `default`.
#[tokio::test]
async fn events_are_one_storage_and_live_beside_their_object() {
    let standin = standin().await;
    let client = standin.client().expect("client");
    let event: EventsV1 = object(json!({
        "metadata": {"generateName": "n1."}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Warning",
        "regarding": {"kind": "Node", "name": "n1"}, "reason": "NodeUnreachableFromPeers", "note": "three peers agree",
        "action": "MarkUnknown", "reportingController": "swimlet.dev/aggregator", "reportingInstance": "a-1",
    }));
    let newer: Api<EventsV1> = Api::namespaced(client.clone(), DEFAULT);
    let created = newer
        .create(&PostParams::default(), &event)
        .await
        .expect("creates");
    assert_eq!(created.note.as_deref(), Some("three peers agree"));
    assert!(created.name_any().starts_with("n1.") && created.name_any().len() > 3);
    let older: Api<Event> = Api::namespaced(client.clone(), DEFAULT);
    let about_n1 = older
        .list(&ListParams::default().fields("involvedObject.name=n1"))
        .await
        .expect("lists");
    assert_eq!(
        about_n1
            .items
            .first()
            .and_then(|event| event.message.as_deref()),
        Some("three peers agree")
    );

    let misplaced: Api<EventsV1> = Api::namespaced(client.clone(), "kube-public");
    assert_eq!(
        refusal(misplaced.create(&PostParams::default(), &event).await),
        refused(422, "Invalid")
    );
    let mut incomplete = event.clone();
    incomplete.action = None;
    assert_eq!(
        refusal(newer.create(&PostParams::default(), &incomplete).await),
        refused(422, "Invalid")
    );
    let old_style: Event = object(json!({
        "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": DEFAULT}, "reason": "R",
    }));
    older
        .create(&PostParams::default(), &old_style)
        .await
        .expect("creates");
    let misplaced: Api<Event> = Api::namespaced(client, "kube-system");
    assert_eq!(
        refusal(misplaced.create(&PostParams::default(), &old_style).await),
        refused(422, "Invalid")
    );
}

/// Guards the request log, by which tests count writes.
#[tokio::test]
async fn requests_are_logged_with_who_and_what() {
    let standin = standin().await;
    let nodes: Api<Node> = Api::all(
        standin
            .client_named("swimlet-aggregator/1")
            .expect("client"),
    );
    create_node(&nodes, "n1").await;
    let patch = Patch::Strategic(unknown(None));
    nodes
        .patch_status("n1", &PatchParams::default(), &patch)
        .await
        .expect("patches");
    refusal(nodes.get("n2").await);
    let other: Client = standin.client_named("other").expect("client");
    other.apiserver_version().await.expect("a version");
    let told: Vec<_> = standin.requests().iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            r#"create nodes by "swimlet-aggregator/1": 201"#,
            r#"patch nodes/status/n1 by "swimlet-aggregator/1": 200"#,
            r#"get nodes/n2 by "swimlet-aggregator/1": 404"#,
        ]
    );
    let patches = Matcher::any()
        .verb(Verb::Patch)
        .resource("nodes")
        .subresource("status")
        .user_agent("swimlet");
    assert_eq!(
        standin
            .requests()
            .iter()
            .filter(|request| patches.matches(request))
            .count(),
        1
    );
    assert_eq!(
        standin
            .requests()
            .iter()
            .filter(|request| request.verb.is_write())
            .count(),
        2
    );
}

fn version<K: ResourceExt>(object: &K) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .expect("a resource version")
}
