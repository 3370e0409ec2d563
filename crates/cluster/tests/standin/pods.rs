//! Pods of a Node that bears our Unknown.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use swimlet_cluster::Mode;
use swimlet_standin::Verb;
use swimlet_verdict::ReadyStatus;

use crate::common::{condition, decision, until};
use crate::support::{
    Scene, annotate, dead, objects, ours, read, ready_status, set_ready, standin, start, to,
    unknown, value,
};

/// Guards that pods are not forgotten when a leader dies between the write and the marking.
#[tokio::test]
async fn a_new_leader_marks_the_pods_that_the_last_one_left() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    dead(&standin, "a", &["web"]).await;
    unknown(&client, "a", "NodeUnreachableFromPeers").await;
    let edge = start(&standin, Mode::Enforce);
    until("the pod is marked", async || {
        condition(&read(&client, "Pod", "web").await, "Ready")["status"] == "False"
    })
    .await;
    edge.stopped().await.unwrap();
}

/// Guards that pods of a Node that the in-tree controller has judged are left to it.
#[tokio::test]
async fn pods_under_somebody_elses_unknown_are_not_marked() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    dead(&standin, "a", &["web"]).await;
    unknown(&client, "a", "NodeStatusUnknown").await;
    dead(&standin, "b", &["late"]).await;
    unknown(&client, "b", "KubeletUnresponsive").await;
    let _edge = start(&standin, Mode::Enforce);
    until("the other pod is marked", async || {
        condition(&read(&client, "Pod", "late").await, "Ready")["status"] == "False"
    })
    .await;
    assert_eq!(
        condition(&read(&client, "Pod", "web").await, "Ready")["status"],
        "True"
    );
}

/// Guards the pods of a node that comes back while they are being marked.
#[tokio::test]
async fn marking_stops_when_the_node_recovers() {
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &["web"]).await;
    let mut hold = standin.hold(to(Verb::List, "pods"));
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    set_ready(&client, "a", "True", "KubeletReady", "2030-01-01T00:00:00Z").await;
    loop {
        let ready = edge.node("a").await.ready.unwrap();
        if ready.status == ReadyStatus::True
            && ready.heartbeat > seen.ready.as_ref().unwrap().heartbeat
        {
            break;
        }
    }
    hold.release();
    let stats = edge.handle.stats().pods.clone();
    until("the pass is given up", async || {
        stats.overtaken.load(std::sync::atomic::Ordering::Relaxed) > 0
    })
    .await;
    assert!(ours(&standin, "pods", "status", Verb::Patch).is_empty());
}

/// Guards that a pod which changes meanwhile is marked all the same, on what it then is.
#[tokio::test]
async fn a_pod_that_changes_meanwhile_is_read_again_and_marked() {
    let Scene {
        standin,
        client,
        edge,
        seen,
    } = Scene::of(Mode::Enforce, &["web"]).await;
    let patch = to(Verb::Patch, "pods");
    let mut hold = standin.hold(patch);
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let pods = objects(&client, "Pod", "pods", true);
    pods.patch("web", &PatchParams::default(), &Patch::Merge(label))
        .await
        .unwrap();
    hold.release();
    until("the pod is marked", async || {
        condition(&read(&client, "Pod", "web").await, "Ready")["status"] == "False"
    })
    .await;
    let codes: Vec<u16> = ours(&standin, "pods", "status", Verb::Patch)
        .iter()
        .map(|request| request.code)
        .collect();
    assert_eq!(codes, [409, 200]);
}

/// Guards pods whose turn comes late: the look at the Node that permits a patch is a fresh one,
/// also when the watch lags and does not show that the kubelet is back.
#[tokio::test]
async fn a_pod_whose_turn_comes_late_is_marked_only_after_a_fresh_look_at_the_node() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    let pods = ["p1", "p2", "p3", "p4", "p5"];
    dead(&standin, "a", &pods).await;
    // The list shows the Node; no watch shows what comes after it.
    let _watch = standin.hold(to(Verb::Watch, "nodes"));
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let mut holds = [(); 2].map(|()| standin.hold(to(Verb::Patch, "pods")));
    edge.write(&decision(&seen)).await;
    for hold in &mut holds {
        hold.reached().await.unwrap();
    }
    set_ready(&client, "a", "True", "KubeletReady", "2030-01-01T00:00:00Z").await;
    // The time that passes is what is tested: longer than a look counts, shorter than a call.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    for hold in holds {
        hold.release();
    }
    let stats = edge.handle.stats().pods.clone();
    until("the pass is given up", async || value(&stats.overtaken) > 0).await;
    let patched = ours(&standin, "pods", "status", Verb::Patch).len();
    assert_eq!(patched, 2, "only what was under way");
}

/// Guards the other side: a slow server delays the marking and does not end it.
#[tokio::test]
async fn pods_are_all_marked_through_a_slow_server() {
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &["p1", "p2", "p3", "p4", "p5", "p6"]).await;
    standin.delay_all(to(Verb::Patch, "pods"), Duration::from_millis(1_100));
    edge.write(&decision(&seen)).await;
    let stats = edge.handle.stats().pods.clone();
    until("all are dealt with", async || value(&stats.nodes) == 1).await;
    assert_eq!(ready_status(&client, "Pod", "p6").await, "False");
    assert_eq!(value(&stats.marked), 6);
    assert!(value(&stats.rechecked) > 0);
}

/// Guards a hold that is set after the write: it stops what is still to be done to the pods.
#[tokio::test]
async fn a_hold_stops_the_marking_of_pods() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    dead(&standin, "a", &["web"]).await;
    let _watch = standin.hold(to(Verb::Watch, "nodes"));
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let mut list = standin.hold(to(Verb::List, "pods"));
    edge.handle.decide(decision(&seen)).unwrap();
    list.reached().await.unwrap();
    annotate(&client, "a", json!({"swimlet.dev/hold": ""})).await;
    list.release();
    let stats = edge.handle.stats().pods.clone();
    until("the pass is given up", async || value(&stats.overtaken) > 0).await;
    assert_eq!(ready_status(&client, "Pod", "web").await, "True");
}
