use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use swimlet_protocol::frame::{Finding, Update};
use swimlet_protocol::{Bounded, Frame, Generation, Incarnation, MemberState, Moment, Role};

use self::net::Net;
use crate::{Event, Input};

mod net;

const SECOND: Duration = Duration::from_secs(1);

/// Everybody knows everybody as alive, and nobody was ever accused.
fn assert_quiet(net: &Net, since: Moment) {
    for i in net.living() {
        assert_eq!(net.who_differs(i, MemberState::Alive), [0; 0], "about {i}");
    }
    assert_eq!(net.claims(since), []);
    let changed: Vec<_> = net
        .events(since)
        .filter(|(_, _, event)| matches!(event, Event::StateChanged { .. } | Event::Missed { .. }))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
}

#[test]
fn meshes_of_all_sizes_form_and_are_quiet() {
    for (aggregators, agents) in [(0, 2), (1, 1), (0, 3), (3, 8), (3, 17), (3, 60)] {
        let mut net = Net::formed(1, aggregators, agents);
        let formed = net.now;
        net.run(60 * SECOND);
        assert_quiet(&net, formed);
        for node in &net.nodes {
            let stats = node.mesh.stats();
            assert_eq!(stats.members as usize, aggregators + agents - 1);
            assert_eq!(
                (stats.news_queue, stats.claims_queue, stats.dropped_outputs),
                (0, 0, 0)
            );
            assert_eq!(stats.foca_errors, 0);
            assert_eq!(node.mesh.health(), 0);
        }
    }
}

#[test]
fn a_small_mesh_forms_within_seconds() {
    let mut net = Net::formed(2, 3, 0);
    for _ in 0..8 {
        net.add(Role::Agent);
    }
    let formed = net.run_until(8 * SECOND, |net| {
        net.nodes
            .iter()
            .all(|node| node.mesh.stats().members == 10 && node.mesh.subjects().len() == 10)
    });
    assert!(formed);
}

#[test]
fn each_member_is_probed_once_a_second_at_even_intervals() {
    let mut net = Net::formed(3, 3, 8);
    let before: u64 = net.nodes.iter().map(|node| node.mesh.stats().probes).sum();
    net.run(100 * SECOND);
    let after: u64 = net.nodes.iter().map(|node| node.mesh.stats().probes).sum();
    let per_member = (after - before) as f64 / 11.0 / 100.0;
    assert!(
        (0.9..1.1).contains(&per_member),
        "{per_member} probes a second"
    );
}

#[test]
fn a_death_is_claimed_by_three_within_seconds_and_nobody_else_is() {
    for (seed, (aggregators, agents)) in [(3, 8), (3, 17), (3, 60)].into_iter().enumerate() {
        let mut net = Net::formed(seed as u64, aggregators, agents);
        let (dead, key) = (aggregators + 2, net.key(aggregators + 2));
        let death = net.now;
        net.kill(dead);
        net.run(3 * SECOND);
        let claims = net.claims(death);
        let accusers: BTreeSet<_> = claims
            .iter()
            .filter(|(_, claim)| claim.subject == key)
            .map(|(_, claim)| claim.accuser)
            .collect();
        assert!(accusers.len() >= 3, "{agents} agents: {accusers:?}");
        // Each aggregator heard of it.
        for aggregator in 0..aggregators {
            let heard = net.nodes[aggregator].events.iter().any(|(at, event)| {
                *at >= death && matches!(event, Event::Claim(claim) if claim.subject == key)
            });
            assert!(heard, "aggregator {aggregator}");
        }
        let down = net.run_until(15 * SECOND, |net| {
            net.who_differs(dead, MemberState::Down).is_empty()
        });
        assert!(
            down,
            "{agents} agents: {:?}",
            net.who_differs(dead, MemberState::Down)
        );
        net.run(60 * SECOND);
        let others: Vec<_> = net
            .claims(death)
            .into_iter()
            .filter(|(_, claim)| claim.subject != key)
            .collect();
        assert_eq!(others, []);
    }
}
