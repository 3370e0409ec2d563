//! Nothing is written about nodes that live.

use std::time::Duration;

use crate::world::World;

/// Long enough for three heartbeats, six election renewals and thirty probes of each node.
const WATCHED: Duration = Duration::from_secs(30);
/// Longer than any death takes to be written, shorter than the in-tree 40 to 50 s.
const WELL_BEYOND_A_DETECTION: Duration = Duration::from_secs(20);

/// Steady state: no write to any Node or Pod, few writes in all, and no word of an agent.
pub(crate) async fn steady_state(world: World) -> World {
    let requests = world.swimlet_requests().len();
    world.nothing_is_written(WATCHED).await;
    let all = world.swimlet_requests();
    let writes = |verb: &str| ["create", "update", "patch", "delete"].contains(&verb);
    let recent = all[requests..]
        .iter()
        .filter(|event| writes(&event.verb))
        .count();
    let rate = recent as f64 / WATCHED.as_secs_f64();
    assert!(
        rate <= 0.6,
        "{recent} writes in {WATCHED:?}: {rate} a second"
    );
    // Agents have no credentials, so what they might send would be anonymous.
    let audit = world.control_plane.audit().unwrap();
    for event in &audit {
        let by_swimlet = event.user_agent.starts_with("swimlet/");
        let by_aggregator = event.user == "system:serviceaccount:swimlet-system:swimlet-aggregator";
        assert_eq!(
            by_swimlet, by_aggregator,
            "{} {} by {}",
            event.verb, event.uri, event.user
        );
        assert!(
            event.user != "system:anonymous" || event.uri.starts_with("/readyz"),
            "{event:?}"
        );
    }
    // `/v1` is for people on the aggregator's own host, until there is authentication.
    let (here, elsewhere) = world.verdicts_page().await;
    assert!(
        here.contains("200 OK") && here.contains("\"node-1\""),
        "{here}"
    );
    assert!(elsewhere.contains("403 Forbidden"), "{elsewhere}");
    world
}

/// Scenario 13: an agent restarts politely, then is killed and stays away. Its node lives.
pub(crate) async fn agent_restart(mut world: World) -> World {
    let node = world.victim(0);
    let before = world.writes().len();
    let agent = world.agent(&node);
    agent.terminate().unwrap();
    let status = agent.wait(Duration::from_secs(30)).await.unwrap();
    assert!(
        status.success(),
        "an agent that was told to stop exits with {status}"
    );
    world.start_agent(&node);
    world.settled().await;

    world.agent(&node).kill().unwrap();
    world.nothing_is_written(WELL_BEYOND_A_DETECTION).await;
    assert_eq!(world.ready(node.name()).await.unwrap().status, "True");
    world.start_agent(&node);
    world.settled().await;
    assert_eq!(world.writes().len(), before);
    world
}

/// Scenario 31: a runtime upgrade takes agent and kubelet away together. The host's
/// refusals are packets: it lives.
pub(crate) async fn both_restart(mut world: World) -> World {
    let node = world.victim(1);
    let before = world.writes().len();
    world.agent(&node).kill().unwrap();
    node.kubelet().kill().unwrap();
    world.nothing_is_written(WELL_BEYOND_A_DETECTION).await;
    node.restart_kubelet().unwrap();
    world.start_agent(&node);
    world.settled().await;
    assert_eq!(world.writes().len(), before);
    world
}
