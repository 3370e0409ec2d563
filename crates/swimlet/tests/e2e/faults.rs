//! Faults of the network between living nodes.

use std::time::Duration;

use crate::world::World;

/// Six kubelet periods: a loop of Unknown and True would go round several times.
const CUT_OFF: Duration = Duration::from_secs(60);

/// Scenario 37: no peer reaches the node, its kubelet reaches the API server.
pub(crate) async fn cut_off_from_peers(world: World) -> World {
    let node = world.victim(0);
    let name = node.name().to_owned();
    let written = world.writes_to(&name);
    let others = world.nodes.iter().filter(|other| other.name() != name);
    let others: Vec<_> = others.map(|other| other.address()).collect();
    node.cut_from(&others).unwrap();
    swimlet_rig::holds(CUT_OFF, "at most one Unknown while cut off", async || {
        Ok(world.writes_to(&name) <= written + 1)
    })
    .await
    .unwrap();
    node.heal().unwrap();
    world.settled().await;
    let writes = world.writes_to(&name) - written;
    assert!(
        writes <= 1,
        "{writes} writes about a node that only its peers had lost"
    );
    world
}
