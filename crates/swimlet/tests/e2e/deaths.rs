//! True deaths: what is written, in which order, and what comes after.

use std::collections::BTreeSet;
use std::time::Duration;

use swimlet_rig::{eventually, holds};

use crate::world::{SOON, World, ready_of, untouched};

/// Longer than any aggregator that saw the death would take to write it too.
const SETTLED: Duration = Duration::from_secs(3);

/// A node dies without a word: its link goes down, then its processes.
pub(crate) async fn death(mut world: World) -> World {
    let node = world.victim(0);
    let name = node.name().to_owned();
    world.serve(&name, "web").await;
    let before = world.node(&name).await.unwrap();
    let heartbeat = ready_of(&before).unwrap().last_heartbeat_time;
    world.kill(&node);

    let ready = world.wait_unreachable(&name).await;
    let message = ready.message.clone().unwrap_or_default();
    assert!(
        message.contains("Not reached by") && message.contains("node-"),
        "{message}"
    );
    let after = world.node(&name).await.unwrap();
    assert_eq!(
        ready_of(&after).unwrap().last_heartbeat_time,
        heartbeat,
        "lastHeartbeatTime moved"
    );
    assert_ne!(
        ready.last_transition_time,
        ready_of(&before).unwrap().last_transition_time,
        "lastTransitionTime did not move"
    );
    assert_eq!(
        untouched(&after),
        untouched(&before),
        "another field was touched"
    );

    world.wait_endpoint("web", false).await;
    assert!(!world.pod_is_ready("web").await.unwrap());
    eventually(SOON, "both unreachable taints", async || {
        let effects = world.unreachable_taints(&name).await?;
        let effects: BTreeSet<_> = effects.iter().map(String::as_str).collect();
        Ok((effects == BTreeSet::from(["NoExecute", "NoSchedule"])).then_some(()))
    })
    .await
    .unwrap();
    let event = world
        .wait_event("Node", &name, "NodeUnreachableFromPeers")
        .await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    world.wait_event("Pod", "web", "NodeNotReady").await;
    only_written(&world, &[&name]);
    world.revive(&node).await;
    world.wait_endpoint("web", true).await;
    world
}

/// The kubelet alone says Ready=True again; what dies again is written again.
pub(crate) async fn recovery_and_second_death(mut world: World) -> World {
    let node = world.victim(1);
    let name = node.name().to_owned();
    let written = world.writes_to(&name);
    for death in 1..=2 {
        world.kill(&node);
        world.wait_unreachable(&name).await;
        assert_eq!(world.writes_to(&name), written + death, "one write a death");
        world.revive(&node).await;
    }
    // Nobody but the kubelet has ever said Ready=True.
    for write in world
        .writes()
        .into_iter()
        .filter(|write| write.resource == "nodes")
    {
        let conditions = &write.request.as_ref().unwrap()["status"]["conditions"];
        assert_eq!(conditions.as_array().map(Vec::len), Some(1), "{conditions}");
        assert_eq!(conditions[0]["status"], "Unknown", "{conditions}");
        assert!(
            conditions[0].get("lastHeartbeatTime").is_none(),
            "{conditions}"
        );
    }
    world
}

/// The leader dies by SIGKILL. Another takes over and writes the next death, once.
pub(crate) async fn leader_killed(mut world: World) -> World {
    let old = world.leader().await;
    let before = world.writes().len();
    world.aggregators[old].kill().unwrap();
    world.aggregators[old].wait(SOON).await.unwrap();
    let new = world.leader().await;
    assert_ne!(new, old);
    assert_eq!(
        world.writes().len(),
        before,
        "a change of the leader wrote something"
    );

    let node = world.victim(2);
    let name = node.name().to_owned();
    let written = world.writes_to(&name);
    world.kill(&node);
    world.wait_unreachable(&name).await;
    // The third aggregator keeps the same picture and writes nothing.
    holds(SETTLED, "one write about the death", async || {
        Ok(world.writes_to(&name) == written + 1)
    })
    .await
    .unwrap();
    world.aggregators[old] = world.start_aggregator(old);
    world.revive(&node).await;
    world
}

/// No Node but these was written.
fn only_written(world: &World, names: &[&str]) {
    for write in world
        .writes()
        .into_iter()
        .filter(|write| write.resource == "nodes")
    {
        assert!(
            names.contains(&write.name.as_str()),
            "{} was written",
            write.name
        );
    }
}
