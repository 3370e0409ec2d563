//! Observe mode: nothing is changed, and what would have been done is said.

use swimlet_rig::eventually;

use crate::world::{SOON, World};

/// A node dies. The in-tree controller writes it in the end; swimlet only says so.
pub(crate) async fn death(mut world: World) -> World {
    let node = world.victim(0);
    let name = node.name().to_owned();
    world.serve(&name, "web").await;
    world.kill(&node);
    eventually(
        SOON,
        "the metric of writes that would have been made",
        async || {
            let would = world
                .sum("swimlet_condition_writes_total{outcome=\"would_write\"}")
                .await;
            Ok((would >= 1.0).then_some(()))
        },
    )
    .await
    .unwrap();
    let event = world
        .wait_event("Node", &name, "WouldSetReadyUnknown")
        .await;
    let note = event.note.unwrap_or_default();
    assert!(note.contains("NodeUnreachableFromPeers"), "{note}");
    let leader = world.leader().await;
    let log = world.aggregators[leader].log();
    assert!(
        log.contains(&name) && log.contains("Unreachable"),
        "the log says nothing of {name}"
    );
    // The in-tree controller notices too, much later, and by its own reason.
    let ready = world.wait_ready(&name, "Unknown", None).await;
    assert_eq!(ready.reason.as_deref(), Some("NodeStatusUnknown"));
    let writes = world.writes();
    assert!(writes.is_empty(), "observe mode wrote: {writes:?}");
    world.revive(&node).await;
    world
}
