//! Many at once: the brakes, and what lifts them.

use std::net::IpAddr;

use swimlet_protocol::Role;

use super::village::{AgentRuns, Village, key, millis, secs};
use crate::{Brake, Notice, Profile, Rule, Verdict};

fn told(village: &Village, brake: Brake) -> bool {
    village
        .notices
        .iter()
        .any(|(_, notice)| *notice == Notice::BrakeOn { brake })
}

/// Scenario 19: a third of the nodes loses power, all of it in one zone of three.
#[test]
fn a_lost_zone_of_three_is_written_quickly_and_whole() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    let zone: Vec<usize> = (0..30).filter(|index| index % 3 == 1).collect();
    village.each(zone.clone(), |host| host.power = false);
    village.run_until(secs(20), |village| village.writes.len() == 10);
    for index in &zone {
        let name = format!("n{index}");
        assert_eq!(village.written(&name), [Verdict::Unreachable]);
        let took = village.written_after(&name, died).unwrap();
        assert!(took <= secs(8), "{name}: {took:?}");
    }
    assert!(told(&village, Brake::Graded), "alerted at once");
    village.run(secs(60));
    assert_eq!(village.writes.len(), 10, "healthy zones are untouched");
}

/// One of two zones is exactly half, and has witnesses in one zone only: written
/// once the nodes' own heartbeats have been silent for two periods.
#[test]
fn a_lost_zone_of_two_waits_for_the_heartbeats() {
    let mut village = Village::of(20, &["a", "b"], Profile::Fast);
    let died = village.now;
    village.each((0..20).filter(|index| index % 2 == 1), |host| {
        host.power = false;
    });
    village.run(secs(15));
    assert!(village.writes.is_empty());
    assert!(told(&village, Brake::Minority));
    village.run_until(secs(60), |village| village.writes.len() == 10);
    assert!(
        village
            .writes
            .iter()
            .all(|(at, ..)| at.since(died) >= secs(20))
    );
    village.run(secs(60));
    assert_eq!(village.writes.len(), 10);
}

/// A rack of 40 of 60 is a majority: held by brakes 1 and 2, lifted by silence.
#[test]
fn a_rack_of_40_of_60_waits_for_the_heartbeats() {
    let mut village = Village::of(60, &["a", "b", "c"], Profile::Fast);
    let died = village.now;
    village.each(0..40, |host| host.power = false);
    village.run(secs(15));
    assert!(village.writes.is_empty());
    assert!(village.brakes().minority);
    village.run_until(secs(90), |village| village.writes.len() == 40);
    assert!(
        village
            .writes
            .iter()
            .all(|(at, ..)| at.since(died) >= secs(20))
    );
    village.run(secs(30));
    assert_eq!(village.writes.len(), 40);
}

/// A rack of 40 of 100 leaves a majority, and every other zone confirms.
#[test]
fn a_rack_of_40_of_100_is_written_quickly() {
    let mut village = Village::of(100, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    village.each(0..40, |host| host.power = false);
    village.run_until(secs(60), |village| village.writes.len() == 40);
    let slowest = village.writes.iter().map(|(at, ..)| at.since(died)).max();
    assert!(slowest <= Some(secs(10)), "{slowest:?}");
}

/// Many at once in a cluster of one zone are weak evidence.
#[test]
fn many_at_once_in_one_zone_wait_for_the_heartbeats() {
    let mut village = Village::of(20, &["a"], Profile::Fast);
    let died = village.now;
    village.each(0..4, |host| host.power = false);
    village.run_until(secs(90), |village| village.writes.len() == 4);
    let quickest = village.writes.iter().map(|(at, ..)| at.since(died)).min();
    assert!(quickest >= Some(secs(20)), "{quickest:?}");
    assert!(
        village
            .decisions
            .iter()
            .any(|(_, decision)| decision.evidence.weakness == Some(crate::Weakness::ManyAtOnce))
    );
}

/// Scenario 20: a firewall rule takes 60 % out of the mesh; kubelets answer.
#[test]
fn a_mesh_port_blocked_for_most_is_braked_and_not_written() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Fast);
    village.each(0..18, |host| host.mesh_blocked = true);
    village.run(secs(300));
    assert!(village.writes.is_empty());
    assert!(told(&village, Brake::Minority), "loud");
    assert!(village.brakes().minority);
    village.each(0..18, |host| host.mesh_blocked = false);
    village.run(secs(30));
    assert!(!village.brakes().minority);
}

/// Scenario 20, worse: the mesh port and the kubelet's are both blocked, so that no
/// peer reaches 60 % of the nodes; their Leases move.
#[test]
fn most_nodes_unreachable_with_moving_leases_are_not_written() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Fast);
    village.each(0..18, |host| host.side = 1);
    village.run(secs(300));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
}

/// Scenarios 17 and 18: the aggregator is on the small side of a partition and still
/// reaches the API server; kubelets on the other side do too.
#[test]
fn the_small_side_writes_nothing_and_makes_way() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    let other = key(Role::Aggregator, "agg-1");
    village.each(4..20, |host| host.side = 1);
    for _ in 0..60 {
        village.feed(crate::Input::PeerView {
            aggregator: other,
            seen: crate::SeenShare { alive: 16, of: 20 },
        });
        village.run(secs(1));
    }
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    assert!(!village.outputs.is_empty(), "it steps down");
    assert!(
        !village.judge.may_stand(),
        "and does not stand while another sees more"
    );
    village.each(4..20, |host| host.side = 0);
    village.run(secs(60));
    assert!(village.judge.may_stand());
    assert!(village.writes.is_empty());
}

/// Where no other aggregator sees more, a new leader would only lose time.
#[test]
fn a_leader_that_sees_as_much_as_all_others_stays() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.each(0..20, |host| host.power = false);
    for _ in 0..90 {
        for name in ["agg-1", "agg-2"] {
            let aggregator = key(Role::Aggregator, name);
            village.feed(crate::Input::Heard {
                node: aggregator,
                age: secs(0),
            });
        }
        village.run(secs(1));
    }
    assert!(village.outputs.is_empty(), "{:?}", village.outputs);
    assert_eq!(village.writes.len(), 20);
}

/// Scenario 33: all agents leave within minutes.
#[test]
fn an_uninstalled_mesh_writes_nothing_and_says_so() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    for index in 0..20 {
        village.leave(&format!("n{index}"));
        village.run(secs(5));
    }
    assert!(told(&village, Brake::CoveredByNone));
    village.kill("n3");
    village.run(secs(900));
    assert!(village.writes.is_empty());
    assert!(
        village.brakes().covered_by_none,
        "time alone does not end it"
    );
}

/// Scenario 12: agents are rolled, each says goodbye first.
#[test]
fn a_roll_out_of_agents_writes_nothing() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    for index in 0..20 {
        let name = format!("n{index}");
        village.leave(&name);
        village.run(secs(12));
        village.host(&name).agent = AgentRuns::Yes;
        village.membership(&name, crate::MemberChange::Joined);
        village.run(secs(3));
    }
    village.run(secs(15));
    assert!(village.writes.is_empty());
    assert!(!told(&village, Brake::CoveredByNone));
    for index in 0..20 {
        assert_eq!(village.verdict(&format!("n{index}")), Verdict::Alive);
    }
}

/// Brake 2: nodes that die one by one are written up to the share, then held until
/// their own heartbeats are silent.
#[test]
fn beyond_the_share_only_silent_heartbeats_lift_the_brake() {
    let mut village = Village::of(10, &["a", "b", "c"], Profile::Fast);
    for index in 0..7 {
        village.kill(&format!("n{index}"));
        village.run(secs(120));
    }
    assert_eq!(village.writes.len(), 7);
    let withheld: Vec<Rule> = village
        .decisions
        .iter()
        .filter(|(_, decision)| decision.verdict == Verdict::Withheld)
        .map(|(_, decision)| decision.rule)
        .collect();
    assert!(!withheld.is_empty());
    assert!(
        withheld
            .iter()
            .all(|rule| matches!(rule, Rule::BrakeMinority | Rule::BrakeShare))
    );
}

/// Brake 3: a zone that does not confirm holds back what the others say, until its
/// verifiers speak, however long that takes.
#[test]
fn many_at_once_need_a_witness_in_every_other_zone() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.each((0..30).filter(|index| index % 3 == 2), |host| {
        host.frozen_verifier = true;
    });
    village.each([0, 3, 6, 9], |host| host.power = false);
    village.run(secs(100));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    assert!(
        village
            .said("n0")
            .contains(&(Verdict::Withheld, Rule::BrakeGraded))
    );
    village.each((0..30).filter(|index| index % 3 == 2), |host| {
        host.frozen_verifier = false;
    });
    village.run_until(secs(30), |village| village.writes.len() == 4);
}

/// Brake 3 is about what falls within a minute: the dead that stay in the API do not hold
/// back a death that comes later and alone.
#[test]
fn the_dead_of_before_do_not_hold_a_later_death_back() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.each([0, 3, 6, 9], |host| host.power = false);
    village.run_until(secs(20), |village| village.writes.len() == 4);
    village.run(secs(120));
    assert!(!village.brakes().graded);
    village.each((0..30).filter(|index| index % 3 == 2), |host| {
        host.frozen_verifier = true;
    });
    let died = village.now;
    village.kill("n12");
    village.run_until(secs(30), |village| !village.written("n12").is_empty());
    assert!(village.written_after("n12", died).unwrap() <= secs(8));
}

/// Brake 3 with more zones than one round asks: each has its turn, so all confirm.
#[test]
fn many_at_once_are_confirmed_by_six_zones() {
    let zones = ["a", "b", "c", "d", "e", "f"];
    let mut village = Village::of(60, &zones, Profile::Default);
    let died = village.now;
    let rack: Vec<usize> = (19..60).filter(|index| index % 6 == 1).collect();
    village.each(rack.clone(), |host| host.power = false);
    village.run_until(secs(30), |village| village.writes.len() == rack.len());
    assert!(told(&village, Brake::Graded), "there were enough of them");
    let slowest = village.writes.iter().map(|(at, ..)| at.since(died)).max();
    assert!(slowest <= Some(secs(12)), "{slowest:?}");
}

/// Brake 3 asks for the word of those who can be asked: a zone in which nobody watches a
/// node has no path to it, and holds nothing back.
#[test]
fn a_zone_without_a_path_holds_nothing_back() {
    let mut village = Village::empty(Profile::Default);
    // The village's observers are the first ten by name.
    for index in 0..30 {
        let zone = if index < 20 {
            ["a", "b"][index % 2]
        } else {
            "c"
        };
        village.add(&format!("n{index:02}"), zone);
    }
    village.settle();
    let died = village.now;
    for name in ["n10", "n12", "n14", "n16"] {
        village.kill(name);
    }
    village.run_until(secs(30), |village| village.writes.len() == 4);
    assert!(told(&village, Brake::Graded), "there were enough of them");
    let slowest = village.writes.iter().map(|(at, ..)| at.since(died)).max();
    assert!(slowest <= Some(secs(12)), "{slowest:?}");
}

/// The same of a zone whose members are asked, and never had a path.
#[test]
fn a_zone_whose_verifiers_never_had_a_path_holds_nothing_back() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.each((0..30).filter(|index| index % 3 == 2), |host| {
        host.pathless = true;
    });
    let died = village.now;
    village.each([0, 3, 6, 9], |host| host.power = false);
    village.run_until(secs(30), |village| village.writes.len() == 4);
    assert!(told(&village, Brake::Graded), "there were enough of them");
    let slowest = village.writes.iter().map(|(at, ..)| at.since(died)).max();
    assert!(slowest <= Some(secs(12)), "{slowest:?}");
}

/// Brake 2 by itself: a share that is smaller than a minority.
#[test]
fn the_configured_share_holds_back_what_exceeds_it() {
    let mut village = Village::with_share(20);
    for name in ["n0", "n4"] {
        village.kill(name);
        village.run(secs(90));
    }
    assert_eq!(village.writes.len(), 2);
    let died = village.now;
    village.kill("n8");
    village.run_until(secs(90), |village| village.writes.len() == 3);
    assert!(
        village
            .said("n8")
            .contains(&(Verdict::Withheld, Rule::BrakeShare))
    );
    assert!(village.written_after("n8", died).unwrap() >= secs(20));
}

/// What verifiers found is counted once: with many open cases, what co-observers found by
/// themselves counts as a round, and a verifier is none for having answered.
#[test]
fn one_round_of_many_cases_is_one_round() {
    let mut village = Village::of(120, &["a", "b", "c"], Profile::Fast);
    // Their silence is noticed by the sweep alone.
    village.claims = false;
    village.each((0..120).filter(|index| index % 2 == 0), |host| {
        host.power = false;
    });
    let mut seen = 0;
    while village.decisions.len() < 60 {
        village.run(millis(20));
        for (_, decision) in village.decisions.iter().skip(seen) {
            let subject = key(Role::Agent, decision.node.name.as_str());
            let answers = village
                .answered
                .iter()
                .filter(|((_, node), _)| *node == subject);
            let rounds = answers.map(|(_, times)| *times).max().unwrap_or(0);
            assert!(
                decision.evidence.rounds <= rounds,
                "{} rounds of {rounds}: {}",
                decision.evidence.rounds,
                decision.evidence.summary()
            );
        }
        seen = village.decisions.len();
    }
}

/// A verifier that heard of one of two addresses only did not find the node silent on
/// every address, however its requests were cut into datagrams.
#[test]
fn a_node_cut_over_two_datagrams_is_not_silent_by_the_first() {
    let mut village = Village::of(60, &["a", "b", "c"], Profile::Fast);
    for index in 0..21_u8 {
        let name = format!("n{index}");
        let host = village.host(&name);
        host.dead_address = (index > 0).then(|| IpAddr::from([10, 9, 9, index]));
        host.power = false;
        village.show(&name);
    }
    // Of this one the kubelet answers at its second address; it has no heartbeat that
    // would speak for it.
    let lives = village.host("n8");
    (lives.power, lives.agent, lives.mute) = (true, AgentRuns::Killed, true);
    village.claims = false;
    village.loses_rest = true;
    // Aggregators alone verify. The first case is asked about at once; from the next round
    // on, by name, the 38 entries of a datagram end between the two of the living one.
    village.each([50, 51], |host| host.frozen_verifier = true);
    for index in [9].into_iter().chain((0..21).filter(|index| *index != 9)) {
        for accuser in ["n50", "n51"] {
            village.accuse(key(Role::Agent, accuser), &format!("n{index}"), secs(1));
        }
    }
    village.run(secs(40));
    let held = |name: &str| {
        matches!(
            village.verdict(name),
            Verdict::Unreachable | Verdict::Withheld
        )
    };
    assert!(
        held("n1"),
        "nobody of the others' zones confirms, and it is silent"
    );
    assert_eq!(village.written("n8"), []);
    let said = village.said("n8");
    let withheld = said
        .iter()
        .any(|(verdict, _)| *verdict == Verdict::Withheld);
    assert!(!withheld, "not even but for a brake: {said:?}");
}

/// Brake 3 where no other zone is left to ask: one of two zones died, and part of the other
/// with it. Witnesses of one zone are weak, so it waits for the heartbeats, and no longer.
#[test]
fn many_at_once_with_no_other_zone_left_wait_for_the_heartbeats() {
    let mut village = Village::of(20, &["a", "b"], Profile::Fast);
    let died = village.now;
    village.each(0..20, |host| host.power = host.zone == "a");
    village.each([0, 2, 4], |host| host.power = false);
    village.run_until(secs(120), |village| village.writes.len() == 13);
    let quickest = village.writes.iter().map(|(at, ..)| at.since(died)).min();
    assert!(quickest >= Some(secs(20)), "{quickest:?}");
}
