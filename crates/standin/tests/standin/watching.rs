use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use swimlet_standin::{Matcher, Options, Standin, Verb};

use crate::support::{create_node, nodes, object, ready, standin, unknown, within};

async fn next<K>(
    events: &mut (impl Stream<Item = Result<WatchEvent<K>, kube::Error>> + Unpin),
) -> WatchEvent<K>
where
    K: Clone,
{
    within("a watch event", events.try_next())
        .await
        .expect("a healthy stream")
        .expect("a watch that goes on")
}

fn told<K: ResourceExt>(event: &WatchEvent<K>) -> (&'static str, String) {
    match event {
        WatchEvent::Added(object) => ("ADDED", object.name_any()),
        WatchEvent::Modified(object) => ("MODIFIED", object.name_any()),
        WatchEvent::Deleted(object) => ("DELETED", object.name_any()),
        WatchEvent::Bookmark(bookmark) => ("BOOKMARK", bookmark.metadata.resource_version.clone()),
        WatchEvent::Error(status) => ("ERROR", status.code.to_string()),
    }
}

fn event(kind: &'static str, name: &str) -> (&'static str, String) {
    (kind, name.to_owned())
}

async fn newest(nodes: &Api<Node>) -> String {
    let list = nodes.list(&ListParams::default()).await.expect("lists");
    list.metadata
        .resource_version
        .expect("a list has a version")
}

/// Guards that a watch from a version misses nothing and tells in order, what came before it began included.
#[tokio::test]
async fn a_watch_from_a_version_tells_every_change_in_order() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    let version = newest(&nodes).await;
    create_node(&nodes, "n2").await;
    let mut events = pin!(
        nodes
            .watch(&WatchParams::default(), &version)
            .await
            .expect("watches")
    );
    assert_eq!(told(&next(&mut events).await), event("ADDED", "n2"));
    let patch = Patch::Strategic(unknown(None));
    let patched = nodes
        .patch_status("n1", &PatchParams::default(), &patch)
        .await
        .expect("patches");
    let modified = next(&mut events).await;
    assert_eq!(told(&modified), event("MODIFIED", "n1"));
    assert!(matches!(modified, WatchEvent::Modified(node) if node == patched));
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deletes");
    let deleted = next(&mut events).await;
    assert_eq!(told(&deleted), event("DELETED", "n1"));
    let WatchEvent::Deleted(deleted) = deleted else {
        panic!("seen above")
    };
    assert_eq!(ready(&deleted), ready(&patched), "the last state");
    assert_ne!(
        deleted.resource_version(),
        patched.resource_version(),
        "the version of the deletion"
    );

    // Version 0 means "any": the state comes first.
    let mut events = pin!(
        nodes
            .watch(&WatchParams::default(), "0")
            .await
            .expect("watches")
    );
    assert_eq!(told(&next(&mut events).await), event("ADDED", "n2"));
}

/// Guards bookmarks, from which a client goes on after its watch has timed out without listing again.
#[tokio::test]
async fn bookmarks_carry_the_newest_version_and_watches_end_at_their_timeout() {
    let options = Options {
        bookmark_period: Duration::from_millis(20),
        ..Options::default()
    };
    let standin = Standin::start(options).await.expect("starts");
    let nodes = nodes(&standin);
    let version = newest(&nodes).await;
    let params = WatchParams::default().timeout(1);
    let mut events = pin!(nodes.watch(&params, &version).await.expect("watches"));
    assert_eq!(told(&next(&mut events).await), event("BOOKMARK", &version));
    // A change of another resource moves the version on too.
    let leases: Api<Pod> = Api::namespaced(standin.client().expect("client"), "default");
    let pod = object(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}));
    let pod = leases
        .create(&PostParams::default(), &pod)
        .await
        .expect("creates");
    let wanted = pod.resource_version().expect("a version");
    loop {
        let (kind, version) = told(&next(&mut events).await);
        assert_eq!(kind, "BOOKMARK");
        if version == wanted {
            break;
        }
    }
    // The rest is bookmarks until the server ends the watch.
    let rest: Vec<_> = within(
        "the watch's end",
        events
            .map(|event| event.map(|event| told(&event).0))
            .collect(),
    )
    .await;
    assert!(
        rest.iter().all(|event| matches!(event, Ok("BOOKMARK"))),
        "{rest:?}"
    );
}

/// Guards selection in watches: an object that leaves the selection is deleted to the watcher.
#[tokio::test]
async fn a_selected_watch_sees_objects_come_and_go() {
    let standin = standin().await;
    let pods: Api<Pod> = Api::namespaced(standin.client().expect("client"), "default");
    let params = WatchParams::default().fields("status.phase=Running");
    let mut events = pin!(pods.watch(&params, "0").await.expect("watches"));
    let pod = object(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}));
    pods.create(&PostParams::default(), &pod)
        .await
        .expect("creates");
    for phase in ["Running", "Succeeded"] {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        pods.patch_status("p", &PatchParams::default(), &patch)
            .await
            .expect("patches");
    }
    assert_eq!(told(&next(&mut events).await), event("ADDED", "p"));
    let left = next(&mut events).await;
    assert_eq!(told(&left), event("DELETED", "p"));
    assert!(
        matches!(left, WatchEvent::Deleted(pod) if pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running"))
    );
}

/// Guards 410 for a watch that starts from, or lags behind, what the bounded history has forgotten.
#[tokio::test]
async fn a_version_older_than_the_history_has_expired() {
    let options = Options {
        history_per_resource: 4,
        ..Options::default()
    };
    let standin = Standin::start(options).await.expect("starts");
    let nodes = nodes(&standin);
    let version = newest(&nodes).await;
    for index in 0..4 {
        create_node(&nodes, &format!("n{index}")).await;
    }
    let mut events = pin!(
        nodes
            .watch(&WatchParams::default(), &version)
            .await
            .expect("watches")
    );
    for index in 0..4 {
        assert_eq!(
            told(&next(&mut events).await),
            event("ADDED", &format!("n{index}")),
            "still in the history"
        );
    }
    create_node(&nodes, "n4").await;
    assert_eq!(standin.counters().dropped_changes, 1);
    let mut late = pin!(
        nodes
            .watch(&WatchParams::default(), &version)
            .await
            .expect("answers 200")
    );
    assert_eq!(told(&next(&mut late).await), event("ERROR", "410"));
    assert!(
        within("the end after the error", late.next())
            .await
            .is_none()
    );
}

/// Guards scenario 23's last part with kube's own watcher: after a compaction it lists again, and what vanished while
/// it could not see is dropped.
#[tokio::test]
async fn kubes_watcher_recovers_from_a_compaction() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    create_node(&nodes, "n2").await;
    let mut events = pin!(watcher(nodes.clone(), watcher::Config::default()).default_backoff());
    let mut seen = Vec::new();
    let mut next = async |until: fn(&watcher::Event<Node>) -> bool| {
        loop {
            let event = within("a watcher event", events.next())
                .await
                .expect("watchers do not end");
            let Ok(event) = event else { continue };
            if let watcher::Event::InitApply(node) | watcher::Event::Apply(node) = &event {
                seen.push(node.name_any());
            }
            if until(&event) {
                return std::mem::take(&mut seen);
            }
        }
    };
    let init_done = |event: &watcher::Event<Node>| matches!(event, watcher::Event::InitDone);
    assert_eq!(next(init_done).await, ["n1", "n2"]);

    // With its watch held back, the watcher cannot see what happens before the compaction.
    let mut hold = standin.hold(Matcher::any().verb(Verb::Watch).resource("nodes"));
    standin.away().await.expect("goes away");
    standin.back().await.expect("comes back");
    let held = async { hold.reached().await.expect("a watch is tried again") };
    let drive = next(|event| matches!(event, watcher::Event::Init));
    tokio::select! {
        _ = drive => panic!("no list is due yet"),
        _ = held => {}
    }
    nodes
        .delete("n1", &DeleteParams::default())
        .await
        .expect("deletes");
    standin.compact();
    hold.release();
    assert_eq!(next(init_done).await, ["n2"]);
    create_node(&nodes, "n3").await;
    let applied = |event: &watcher::Event<Node>| matches!(event, watcher::Event::Apply(_));
    assert_eq!(next(applied).await, ["n3"], "and the new watch works");
}

/// Guards that a compaction also ends watches that are open.
#[tokio::test]
async fn a_compaction_ends_open_watches() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let mut events = pin!(
        nodes
            .watch(&WatchParams::default(), "0")
            .await
            .expect("watches")
    );
    create_node(&nodes, "n1").await;
    assert_eq!(told(&next(&mut events).await), event("ADDED", "n1"));
    standin.compact();
    assert_eq!(told(&next(&mut events).await), event("ERROR", "410"));
}

/// Guards watch-lists, kube's other way to begin.
#[tokio::test]
async fn kubes_watcher_begins_with_a_watch_list_too() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    let mut events = pin!(watcher(
        nodes.clone(),
        watcher::Config::default().streaming_lists()
    ));
    let mut names = Vec::new();
    loop {
        match within("an event", events.next())
            .await
            .expect("goes on")
            .expect("healthy")
        {
            watcher::Event::InitApply(node) => names.push(node.name_any()),
            watcher::Event::InitDone => break,
            _ => {}
        }
    }
    assert_eq!(names, ["n1"]);
    let lists = Matcher::any().verb(Verb::List);
    assert!(
        !standin
            .requests()
            .iter()
            .any(|request| lists.matches(request))
    );
}

/// Guards that a watch's place is given back when its client goes.
#[tokio::test]
async fn watches_end_with_their_clients() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    for _ in 0..1_100 {
        let events = nodes
            .watch(&WatchParams::default(), "0")
            .await
            .expect("a place for it");
        drop(events);
    }
    assert_eq!(standin.counters().refused_watches, 0);
}
