//! Faults of many members at once, and what the parts that guard against them are for.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use swimlet_protocol::{Generation, MemberKey, MemberState, Moment, Role};

use super::net::Net;
use super::{SECOND, watchers};
use crate::constants::{ACCUSERS_MIN, DIAL_BURST, INBOUND_MIN, PLACE_KEPT};
use crate::{Event, Input, Switches};

/// Who was held Down at somebody that is not in `except`, and is not in it either.
fn wronged(net: &Net, since: Moment, except: &[usize]) -> Vec<(Moment, usize, MemberKey)> {
    let keys: BTreeSet<_> = except.iter().map(|&i| net.key(i)).collect();
    net.events(since)
        .filter_map(|(at, i, event)| match event {
            Event::StateChanged {
                key,
                to: MemberState::Down,
                ..
            } if !keys.contains(key) && !except.contains(&i) => Some((at, i, *key)),
            _ => None,
        })
        .collect()
}

fn accusers(net: &Net, since: Moment, subject: usize) -> usize {
    let key = net.key(subject);
    let claims = net.claims(since).into_iter();
    let about = claims.filter(|(_, claim)| claim.subject == key);
    let accusers: BTreeSet<_> = about.map(|(_, claim)| claim.accuser).collect();
    accusers.len()
}

/// Everybody who lives holds who lives alive, and nobody else.
fn is_one(net: &Net) -> bool {
    let living = net.living();
    living.iter().all(|&i| {
        (0..net.nodes.len()).all(|about| {
            let alive = net.state(i, about) == Some(MemberState::Alive);
            about == i || alive == living.contains(&about)
        })
    })
}

#[test]
fn scenario_2_a_member_that_loses_most_of_its_packets_brings_nobody_down() {
    let mut net = Net::formed(51, 3, 40);
    let since = net.now;
    for round in 0..14 {
        if round % 2 == 0 {
            net.lossy.insert(9, 0.8);
        } else {
            net.lossy.clear();
        }
        net.run(20 * SECOND);
    }
    assert_eq!(wronged(&net, since, &[9]), []);
}

#[test]
fn scenario_3_a_starved_member_brings_nobody_down() {
    let mut net = Net::formed(52, 3, 30);
    let since = net.now;
    for _ in 0..120 {
        net.freeze(7);
        net.run(Duration::from_millis(950));
        net.thaw(7);
        net.run(Duration::from_millis(50));
    }
    assert_eq!(wronged(&net, since, &[7]), []);
    let key = net.key(7);
    let claims = net.claims(since);
    let by_it = claims.iter().filter(|(_, claim)| claim.accuser == key);
    assert_eq!(by_it.count(), 0);
}

/// One direction between two members is closed: others reach both.
#[test]
fn a_one_way_path_between_two_accuses_nobody() {
    let mut net = Net::formed(53, 3, 30);
    let since = net.now;
    for a in 3..13 {
        net.mute.insert((a, a + 10));
    }
    net.run(120 * SECOND);
    assert_eq!(wronged(&net, since, &[]), []);
}

#[test]
fn a_one_way_partition_heals() {
    let mut net = Net::formed(54, 3, 21);
    let (left, right): (Vec<_>, Vec<_>) = (0..24).partition(|i| i % 3 == 0);
    for &a in &left {
        for &b in &right {
            net.cut.insert((a, b));
        }
    }
    net.run(120 * SECOND);
    net.cut.clear();
    assert!(net.run_until(120 * SECOND, is_one));
}

#[test]
fn halves_that_forgot_each_other_meet_again() {
    let mut net = Net::formed(55, 3, 9);
    let (left, right): (Vec<_>, Vec<_>) = (0..12).partition(|i| i % 2 == 0);
    net.split(&left, &right);
    net.run(45 * 60 * SECOND);
    assert_eq!(net.state(0, 1), None, "forgotten");
    net.cut.clear();
    assert!(net.run_until(900 * SECOND, is_one));
}

#[test]
fn when_a_third_vanishes_everybody_stays_watched_and_news_spreads() {
    let mut net = Net::formed(56, 3, 87);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(56);
    let mut dead: Vec<_> = (3..90).collect();
    dead.shuffle(&mut rng);
    dead.truncate(30);
    let since = net.now;
    for &i in &dead {
        net.kill(i);
    }
    assert!(net.run_until(40 * SECOND, |net| {
        dead.iter()
            .all(|&i| net.who_differs(i, MemberState::Down).is_empty())
    }));
    assert_eq!(wronged(&net, since, &dead), []);
    for i in net.living() {
        assert!(
            watchers(&net, i) >= ACCUSERS_MIN,
            "{i} before the rings close"
        );
    }
    let dials = |net: &Net| -> Vec<_> {
        net.nodes
            .iter()
            .map(|node| node.mesh.stats().dials)
            .collect()
    };
    let before = dials(&net);
    let repair = PLACE_KEPT + 30 * SECOND;
    net.run(repair);
    for (after, before) in dials(&net).into_iter().zip(before) {
        let paced = u64::from(DIAL_BURST) + repair.as_secs();
        assert!(after - before <= paced, "{} dials", after - before);
    }
    for i in net.living() {
        assert!(watchers(&net, i) >= INBOUND_MIN, "{i}");
    }
    let again = net.living()[20];
    net.restart(again, Generation(1_800_000_000_000), again);
    let key = net.key(again);
    let known = net.run_until(5 * SECOND, |net| {
        let mut others = net.living();
        others.retain(|&i| i != again);
        others.iter().all(|&i| {
            let member = net.nodes[i].mesh.member(key);
            member.is_some_and(|member| member.generation() == Generation(1_800_000_000_000))
        })
    });
    assert!(known, "a few rounds of gossip");
}

/// Scenario 36: a policy closes some paths for good.
#[test]
fn a_tenth_of_the_links_that_never_connect_costs_nobody_its_life() {
    let mut net = Net::with_seeds(57, 3);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(57);
    for a in 3..50 {
        for b in a + 1..50 {
            if rng.random_bool(0.1) {
                net.split(&[a], &[b]);
            }
        }
    }
    for i in 0..50 {
        net.add(if i < 3 { Role::Aggregator } else { Role::Agent });
    }
    net.run(240 * SECOND);
    assert_eq!(wronged(&net, Moment::ORIGIN, &[]), []);
    assert!(is_one(&net));
    let death = net.now;
    net.kill(20);
    net.run(5 * SECOND);
    assert!(accusers(&net, death, 20) >= ACCUSERS_MIN);
    assert!(net.run_until(30 * SECOND, |net| {
        net.who_differs(20, MemberState::Down).is_empty()
    }));
}

#[test]
fn a_member_that_few_of_its_observers_reach_is_watched_by_others() {
    let mut net = Net::formed(58, 3, 40);
    // The next one: its observers are those of its name.
    let lonely = net.nodes.len();
    let mut observers = {
        let probe = net.add(Role::Agent);
        assert_eq!(probe, lonely);
        let key = net.key(lonely);
        net.run(SECOND);
        net.nodes[0].mesh.observers_of(key)
    };
    observers.retain(|&key| (3..lonely).any(|i| net.key(i) == key));
    let observers: Vec<_> = (3..lonely)
        .filter(|&i| observers.contains(&net.key(i)))
        .collect();
    assert!(observers.len() >= 7);
    // It starts anew behind a policy that closes the paths of all of them.
    net.split(&[lonely], &observers);
    net.restart(lonely, Generation(1_800_000_000_000), lonely);
    net.run(150 * SECOND);
    let since = net.now;
    let others = |net: &Net| {
        let key = net.key(lonely);
        let mut living = net.living();
        living.retain(|i| !observers.contains(i));
        living.retain(|&i| net.nodes[i].mesh.subjects().contains(&key));
        living.len()
    };
    assert!(others(&net) >= INBOUND_MIN, "{} watch it", others(&net));
    net.run(60 * SECOND);
    assert_eq!(wronged(&net, since, &[]), []);
    let death = net.now;
    net.kill(lonely);
    net.run(5 * SECOND);
    assert!(accusers(&net, death, lonely) >= ACCUSERS_MIN);
}

#[test]
fn a_sync_brings_what_differs_and_little_else() {
    let mut net = Net::formed(59, 3, 197);
    net.run(60 * SECOND);
    let digest = |net: &Net, i: usize| net.nodes[i].mesh.digest();
    assert!((0..200).all(|i| digest(&net, i) == digest(&net, 0)));
    let (poor, rich) = (7, 0);
    let lost: Vec<_> = (150..153).map(|i| net.key(i)).collect();
    for &key in &lost {
        net.nodes[poor].mesh.forget(key);
    }
    let before = net.synced;
    let request = net.nodes[poor].mesh.sync_request();
    let (from, to) = (net.nodes[poor].identity.clone(), net.key(rich));
    let now = net.now;
    net.nodes[poor].mesh.syncing = Some((to, now));
    net.forge_sync(poor, rich, from, request);
    net.run(Duration::from_millis(50));
    for &key in &lost {
        assert!(net.nodes[poor].mesh.member(key).is_some());
    }
    let sent = net.synced - before;
    assert!(sent < 20, "{sent} of 200");
}

/// Deaths, restarts, goodbyes, splits and loss in any order: once it is over all views are one.
#[test]
fn no_ghost_stays_after_any_order_of_events() {
    for seed in 60..64 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut net = Net::formed(seed, 3, 11);
        for step in 0..60_u64 {
            let node = rng.random_range(3..14);
            let living = net.living().contains(&node);
            match rng.random_range(0..8) {
                0 if living => net.kill(node),
                1 if living => {
                    net.input(node, Input::Leave);
                    net.run(Duration::from_millis(100));
                    net.kill(node);
                }
                2 | 3 => {
                    let host = if rng.random_bool(0.2) {
                        node + 20
                    } else {
                        node
                    };
                    let back = if rng.random_bool(0.2) {
                        0
                    } else {
                        1_800_000_000_000
                    };
                    net.restart(node, Generation(back + step), host);
                }
                4 => {
                    let mut all: Vec<_> = (0..14).collect();
                    all.shuffle(&mut rng);
                    let (left, right) = all.split_at(rng.random_range(1..7));
                    net.split(left, right);
                }
                5 => net.cut.clear(),
                6 => net.loss = rng.random_range(0.0..0.3),
                _ => net.loss = 0.0,
            }
            let pause = rng.random_range(100..15_000);
            net.run(Duration::from_millis(pause));
        }
        net.cut.clear();
        net.loss = 0.0;
        let one = net.run_until(180 * SECOND, is_one);
        let living = net.living();
        let views: Vec<_> = living
            .iter()
            .map(|&i| (i, (0..14).map(|j| net.state(i, j)).collect::<Vec<_>>()))
            .collect();
        assert!(one, "seed {seed}: {living:?} {views:#?}");
    }
}

#[test]
fn without_local_health_a_deaf_member_accuses() {
    let accused = |switches| {
        let mut net = Net::formed(6, 3, 30);
        let (since, key) = (net.now, net.key(4));
        net.nodes[4].mesh.switches = switches;
        net.deafen(4);
        net.run(60 * SECOND);
        let claims = net.claims(since);
        claims
            .iter()
            .filter(|(_, claim)| claim.accuser == key)
            .count()
    };
    let off = Switches {
        local_health: false,
        ..Switches::default()
    };
    assert_eq!(accused(Switches::default()), 0);
    assert!(accused(off) > 0);
}

#[test]
fn without_distinct_accusers_one_claim_brings_a_member_down() {
    let down = |switches| {
        let mut net = Net::formed(66, 3, 17);
        net.nodes[0].mesh.switches = switches;
        let now = net.now;
        let (liar, subject) = (net.key(5), net.key(9));
        for second in 0..25 {
            net.nodes[0]
                .mesh
                .suspect(now + second * SECOND, liar, subject);
            net.run(SECOND);
        }
        net.events(now).any(|(_, i, event)| {
            i == 0 && matches!(event, Event::StateChanged { key, to: MemberState::Down, .. } if *key == subject)
        })
    };
    let off = Switches {
        distinct_accusers: false,
        ..Switches::default()
    };
    assert!(!down(Switches::default()));
    assert!(down(off));
}
