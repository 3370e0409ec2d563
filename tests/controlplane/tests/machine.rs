//! The rig itself, without privileges: an API server on a loopback address.

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use swimlet_rig::{ControlPlane, Options, User};

/// Guards what every API test builds on: objects can be made and patched, a
/// stale resourceVersion is a conflict, and the audit log tells who did what.
#[tokio::test]
async fn a_node_can_be_made_and_patched_and_the_audit_log_shows_it() {
    let control_plane = ControlPlane::start(Options::machine()).await.unwrap();
    let nodes: Api<Node> = Api::all(control_plane.client(&User::Admin).await.unwrap());
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    let made = nodes.create(&PostParams::default(), &node).await.unwrap();

    let condition = |status: &str| {
        Patch::Strategic(json!({
            "metadata": { "resourceVersion": made.metadata.resource_version },
            "status": { "conditions": [{ "type": "Ready", "status": status }] },
        }))
    };
    let params = PatchParams::default();
    nodes
        .patch_status("a", &params, &condition("Unknown"))
        .await
        .unwrap();
    // The same precondition again: the first patch has moved the version on.
    let stale = nodes.patch_status("a", &params, &condition("True")).await;
    let Err(kube::Error::Api(status)) = stale else {
        panic!("a stale patch was not refused: {stale:?}");
    };
    assert_eq!(status.code, 409);

    let patches: Vec<_> = control_plane
        .audit()
        .unwrap()
        .into_iter()
        .filter(|event| event.verb == "patch" && event.resource == "nodes")
        .collect();
    let seen: Vec<_> = patches
        .iter()
        .map(|event| {
            (
                event.user.as_str(),
                event.subresource.as_str(),
                event.name.as_str(),
                event.code,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [("admin", "status", "a", 200), ("admin", "status", "a", 409)]
    );
    let body = patches[0].request.as_ref().unwrap();
    assert_eq!(body["status"]["conditions"][0]["status"], "Unknown");
}

/// Guards that a ServiceAccount is judged by RBAC under its own name, and a
/// node by the Node authorizer: a rig whose users may do anything proves
/// nothing about the shipped permissions.
#[tokio::test]
async fn users_may_only_do_what_they_are_allowed() {
    let control_plane = ControlPlane::start(Options::machine()).await.unwrap();
    let account = User::service_account("swimlet-system", "aggregator");
    let nodes: Api<Node> = Api::all(control_plane.client(&account).await.unwrap());
    let forbidden = nodes.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&forbidden, kube::Error::Api(status) if status.code == 403
            && status.message.contains("system:serviceaccount:swimlet-system:aggregator")),
        "{forbidden:?}"
    );

    control_plane
        .kubectl(&[
            "create",
            "clusterrole",
            "reader",
            "--verb=list",
            "--resource=nodes",
        ])
        .await
        .unwrap();
    let subject = "--serviceaccount=swimlet-system:aggregator";
    control_plane
        .kubectl(&[
            "create",
            "clusterrolebinding",
            "reader",
            "--clusterrole=reader",
            subject,
        ])
        .await
        .unwrap();
    swimlet_rig::eventually(std::time::Duration::from_secs(30), "RBAC", async || {
        Ok(nodes.list(&ListParams::default()).await.map(Some)?)
    })
    .await
    .unwrap();

    let kubelet = control_plane.client(&User::node("a")).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(kubelet, "kube-system");
    let forbidden = maps.list(&ListParams::default()).await.unwrap_err();
    assert!(
        matches!(&forbidden, kube::Error::Api(status) if status.code == 403),
        "{forbidden:?}"
    );
}

/// Guards the API outage of other suites: what was written survives a restart.
#[tokio::test]
async fn the_api_server_can_be_restarted() {
    let control_plane = ControlPlane::start(Options::machine()).await.unwrap();
    let nodes: Api<Node> = Api::all(control_plane.client(&User::Admin).await.unwrap());
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "a" } })).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();

    let before = control_plane.api_server().unwrap();
    before.kill().unwrap();
    assert!(nodes.get("a").await.is_err());
    let after = control_plane.restart_api_server().await.unwrap();
    assert!(!before.is_running());
    assert_ne!(before.pid(), after.pid());
    nodes.get("a").await.unwrap();
}
