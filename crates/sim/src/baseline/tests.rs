use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use super::Baseline;
use crate::record::NodeId;
use crate::topology::Network;

fn cluster(nodes: u32, seed: u64) -> Baseline {
    let nodes = NonZeroU32::new(nodes).unwrap();
    Baseline::new(nodes, 3, &Network::default(), seed)
}

/// Guards that the comparison is fair: left alone, foca is quiet, a dead member is declared
/// down by all, in about the time that its configuration says, and a run can be repeated.
#[test]
fn foca_does_what_it_does() {
    let mut cluster = cluster(40, 1);
    cluster.run_to(Duration::from_secs(30));
    assert_eq!(cluster.downs(), []);
    cluster.crash(Duration::from_secs(30), NodeId(7));
    cluster.run_to(Duration::from_secs(60));
    let first = cluster.downs()[0].at - Duration::from_secs(30);
    // log10(40) × 4 s of suspicion, and up to a few probe periods before.
    assert!(
        first > Duration::from_secs(6) && first < Duration::from_secs(14),
        "{first:?}"
    );
    assert!(cluster.downs().iter().all(|down| down.about == NodeId(7)));
    let by: BTreeSet<_> = cluster.downs().iter().map(|down| down.by).collect();
    assert_eq!(by.len(), 39);
}

/// Guards what the comparison is about: members whose packets are held declare healthy ones
/// down, and are declared down.
#[test]
fn sick_members_make_false_events() {
    let run = |seed| {
        let mut cluster = cluster(64, seed);
        let span = (Duration::from_secs(5), Duration::from_secs(95));
        for node in 0..8 {
            let held = (Duration::from_secs(16), Duration::from_millis(64));
            cluster.sicken(NodeId(node), span, held);
        }
        cluster.run_to(Duration::from_secs(100));
        cluster.downs().to_vec()
    };
    let downs = run(1);
    assert!(downs.iter().any(|down| down.about.0 < 8), "the sick fell");
    assert!(
        downs.iter().any(|down| down.about.0 >= 8),
        "so did healthy ones"
    );
    assert_eq!(downs, run(1));
    assert_ne!(downs, run(2));
}
