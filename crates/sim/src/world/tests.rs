//! Small worlds: that what is simulated behaves as what runs.

use std::time::Duration;

use swimlet_verdict::{ReadyStatus, Verdict};

use super::*;
use crate::fault::{Part, Port, Return, Target};
use crate::record::What;
use crate::topology::Start;
use crate::units::Ppm;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn formed(nodes: u32, seed: u64) -> World {
    let topology = Topology {
        nodes,
        ..Topology::default()
    };
    World::new(&topology, &Network::default(), seed).unwrap()
}

/// Everything that was written: when, about whom, and as what.
fn writes(world: &World) -> Vec<(Moment, NodeId, Verdict)> {
    let records = world.records().iter();
    records
        .filter_map(|record| match &record.what {
            What::Written { node, verdict, .. } => Some((record.at, *node, *verdict)),
            _ => None,
        })
        .collect()
}

/// Everything that was recorded, for whoever reads a failure.
fn told(world: &World) -> String {
    let seed = world.seed();
    let records = world.records().iter().map(|record| match &record.what {
        What::Decided { by, node, decision } => format!(
            "{} {by:?} decides {node:?} {} {}: {}\n",
            record.at,
            decision.verdict,
            decision.rule,
            decision.evidence.summary()
        ),
        what => format!("{} {what:?}\n", record.at),
    });
    format!(
        "seed {seed}, began {}:\n{}",
        world.began(),
        records.collect::<String>()
    )
}

fn plain(world: &World, nth: u32) -> NodeId {
    NodeId(u32::from(world.topology().aggregators) + nth)
}

fn these(nodes: &[NodeId]) -> Target {
    Target::Nodes(nodes.iter().map(|node| node.0).collect())
}

/// Guards the start that all scenarios build on, and scenario 4.
#[test]
fn a_formed_world_is_quiet() {
    let mut world = formed(20, 1);
    let formed_in = world.began().since(BEGIN);
    assert!(formed_in < secs(120), "{formed_in:?}");
    assert!(world.leader().is_some());
    world.run_for(secs(120));
    assert!(writes(&world).is_empty(), "{}", told(&world));
    for member in (0..world.members()).map(MemberId) {
        let view = world.member_view(member).unwrap();
        assert_eq!((view.members, view.alive, view.health), (22, 22, 0));
    }
    let counters = world.counters();
    assert_eq!(counters.downs, 0, "{}", told(&world));
}

/// Guards the main job: one crash, one write, and not before the silence has lasted.
#[test]
fn a_crash_is_written_once() {
    for seed in 10..16 {
        let mut world = formed(20, seed);
        let victim = plain(&world, seed as u32 % 17);
        let crashed = world.now();
        world.inject(Fault::Crash {
            target: these(&[victim]),
            returns: Return::Same,
        });
        world.run_for(secs(60));
        let writes = writes(&world);
        let [(at, node, verdict)] = writes[..] else {
            panic!("{}", told(&world));
        };
        assert_eq!((node, verdict), (victim, Verdict::Unreachable));
        let took = at.since(crashed);
        assert!(
            took >= secs(3) && took <= secs(8),
            "{took:?} {}",
            told(&world)
        );
        assert!(!world.truth(victim).unwrap().power);
    }
}

/// Guards that the kubelet alone takes an Unknown back, and that a node comes back whole.
#[test]
fn a_node_that_boots_again_is_watched_again() {
    for (seed, returns) in [
        (20, Return::Same),
        (21, Return::OtherAddress),
        (22, Return::Replaced),
    ] {
        let mut world = formed(20, seed);
        let victim = plain(&world, 3);
        let crash = world.inject(Fault::Crash {
            target: these(&[victim]),
            returns,
        });
        world.run_for(secs(30));
        world.end(crash);
        world.run_for(secs(60));
        assert_eq!(writes(&world).len(), 1, "{}", told(&world));
        let ready = world.ready(victim).unwrap();
        assert_eq!(ready.status, ReadyStatus::True, "{}", told(&world));
        let leader = world.leader().unwrap();
        let standing = world.standing(leader, victim).unwrap();
        assert_eq!(standing.verdict, Verdict::Alive, "{}", told(&world));
        let again = world.now();
        world.inject(Fault::Crash {
            target: these(&[victim]),
            returns,
        });
        world.run_for(secs(30));
        let writes = writes(&world);
        assert_eq!(writes.len(), 2, "{}", told(&world));
        assert!(writes[1].0.since(again) <= secs(8), "{}", told(&world));
    }
}

/// Guards the takeover: the leader's host dies, and whoever comes next writes it, once.
#[test]
fn the_leaders_death_is_written_by_the_next() {
    for seed in 30..34 {
        let mut world = formed(20, seed);
        let leader = world.leader().unwrap();
        let host = world.node_of(leader).unwrap();
        let crashed = world.now();
        world.inject(Fault::Crash {
            target: Target::LeaderHost,
            returns: Return::Same,
        });
        world.run_for(secs(60));
        let writes = writes(&world);
        let [(at, node, _)] = writes[..] else {
            panic!("{}", told(&world));
        };
        assert_eq!(node, host);
        assert!(at.since(crashed) <= secs(25), "{}", told(&world));
        assert!(world.leader().is_some_and(|now| now != leader));
    }
}

/// Guards Lifeguard's anomaly as it is modelled: who is sick for long is written once at
/// most, nobody else ever is, and everything that was held arrives.
#[test]
fn a_sick_node_harms_nobody_else() {
    for seed in 40..44 {
        let mut world = formed(20, seed);
        let sick = plain(&world, 5);
        world.schedule(
            Span::ZERO,
            Some(Span::from_secs(60)),
            Fault::Sick {
                target: these(&[sick]),
                held: Span::from_secs(2),
                free: Span::from_millis(64),
            },
        );
        world.run_for(secs(120));
        let others = writes(&world).into_iter().any(|(_, node, _)| node != sick);
        assert!(!others, "{}", told(&world));
        assert!(world.host(sick).held.is_empty());
    }
}

/// Scenario 16: who was not run judges nobody by that.
#[test]
fn a_frozen_host_comes_back_without_a_false_word() {
    for seed in 50..53 {
        let mut world = formed(20, seed);
        let frozen = plain(&world, 1);
        world.schedule(
            Span::ZERO,
            Some(Span::from_secs(60)),
            Fault::Freeze {
                target: these(&[frozen]),
                part: Part::Host,
            },
        );
        world.run_for(secs(180));
        let about: Vec<_> = writes(&world)
            .into_iter()
            .map(|(_, node, _)| node)
            .collect();
        assert_eq!(about, [frozen], "{}", told(&world));
        let ready = world.ready(frozen).unwrap();
        assert_eq!(ready.status, ReadyStatus::True, "{}", told(&world));
    }
}

/// Guards the ports' faults: what is refused or only accepted is no silence of the host.
#[test]
fn a_blocked_mesh_port_or_a_dead_agent_is_no_death() {
    let mut world = formed(20, 60);
    let (cut, dead) = (plain(&world, 2), plain(&world, 9));
    world.inject(Fault::Partition {
        target: these(&[cut]),
        ports: vec![Port::Mesh],
    });
    world.inject(Fault::Stop {
        target: these(&[dead]),
        part: Part::Agent,
        goodbye: false,
        over: Span::ZERO,
    });
    world.run_for(secs(120));
    assert!(writes(&world).is_empty(), "{}", told(&world));
    let leader = world.leader().unwrap();
    for node in [cut, dead] {
        let standing = world.standing(leader, node).unwrap();
        assert_eq!(standing.verdict, Verdict::AgentMissing, "{}", told(&world));
    }
}

/// Scenario 6.
#[test]
fn a_liar_writes_nothing() {
    let mut world = formed(20, 61);
    world.inject(Fault::Liar {
        target: Target::Random(1),
    });
    world.run_for(secs(60));
    assert!(writes(&world).is_empty(), "{}", told(&world));
    let leader = world.leader().unwrap();
    assert!(world.judge(leader).unwrap().stats().rounds > 0);
}

/// Scenario 33, and the goodbye of a rolled agent.
#[test]
fn goodbyes_are_not_written() {
    let mut world = formed(20, 62);
    world.inject(Fault::Stop {
        target: Target::All,
        part: Part::Agent,
        goodbye: true,
        over: Span::from_secs(60),
    });
    world.run_for(secs(180));
    assert!(writes(&world).is_empty(), "{}", told(&world));
}

/// Scenario 23: nothing is decided on what was known before an outage of the API server,
/// and who died in it is written after it.
#[test]
fn an_api_outage_ends_without_a_false_word() {
    let mut world = formed(20, 63);
    let victim = plain(&world, 4);
    world.schedule(Span::ZERO, Some(Span::from_secs(300)), Fault::ApiDown);
    world.schedule(
        Span::from_secs(100),
        None,
        Fault::Crash {
            target: these(&[victim]),
            returns: Return::Same,
        },
    );
    world.run_for(secs(299));
    assert!(writes(&world).is_empty(), "{}", told(&world));
    assert_eq!(
        world.leader(),
        None,
        "nobody renews a Lease that is not there"
    );
    world.run_for(secs(120));
    let about: Vec<_> = writes(&world)
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(about, [victim], "{}", told(&world));
}

/// Guards that one seed decides everything, and another one something else.
#[test]
fn a_seed_repeats_its_run() {
    let run = |seed: u64| {
        let mut world = formed(20, seed);
        world.inject(Fault::Weather {
            loss: Ppm::percent(2),
            duplicate: Ppm::percent(1),
            reorder: Ppm::percent(1),
        });
        world.inject(Fault::Crash {
            target: Target::Random(1),
            returns: Return::Same,
        });
        world.run_for(secs(30));
        (world.trace_hash(), world.counters(), writes(&world))
    };
    let (first, again, other) = (run(80), run(80), run(81));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
}

/// Guards the cold start: it forms like any other, only later.
#[test]
fn a_cold_start_forms() {
    let topology = Topology {
        nodes: 12,
        start: Start::Cold,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), 5).unwrap();
    assert_eq!(world.began(), BEGIN);
    let formed = world.run_until(secs(60), |world| world.leader().is_some());
    assert!(formed, "{}", told(&world));
}

/// Guards joins, and scenario 34: two Nodes with one address.
#[test]
fn new_nodes_are_taken_in() {
    let mut world = formed(12, 90);
    let victim = plain(&world, 0);
    world.inject(Fault::Crash {
        target: these(&[victim]),
        returns: Return::Same,
    });
    world.run_for(secs(20));
    world.inject(Fault::Join {
        count: 3,
        over: Span::from_secs(5),
        address_of: Some(victim.0),
    });
    world.run_for(secs(90));
    let about: Vec<_> = writes(&world)
        .into_iter()
        .map(|(_, node, _)| node)
        .collect();
    assert_eq!(about, [victim], "{}", told(&world));
    assert_eq!(world.nodes(), 15);
    let leader = world.leader().unwrap();
    for node in (12..15).map(NodeId) {
        let standing = world.standing(leader, node).unwrap();
        assert_eq!(standing.verdict, Verdict::Alive, "{}", told(&world));
    }
}

/// Guards that members find an aggregator that came back elsewhere: with two nodes and one
/// aggregator nobody else could tell them.
#[test]
fn a_lone_aggregator_that_moves_is_found_again() {
    let topology = Topology {
        nodes: 2,
        zones: 1,
        aggregators: 1,
        ..Topology::default()
    };
    let mut world = World::new(&topology, &Network::default(), 91).unwrap();
    world.schedule(
        Span::ZERO,
        Some(Span::from_secs(20)),
        Fault::Crash {
            target: Target::LeaderHost,
            returns: Return::OtherAddress,
        },
    );
    world.run_for(secs(120));
    let leader = world.leader().unwrap();
    for node in [NodeId(0), NodeId(1)] {
        let standing = world.standing(leader, node).unwrap();
        assert_eq!(standing.verdict, Verdict::Alive, "{}", told(&world));
    }
}
