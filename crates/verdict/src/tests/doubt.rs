//! Members that are wrong about others, and nodes that only some can reach.

use super::village::{AgentRuns, Village, key, millis, secs};
use crate::{Notice, Profile, Rule, Verdict};
use swimlet_protocol::Role;

/// Scenario 4: nothing happens, and nothing is done.
#[test]
fn a_quiet_cluster_is_left_in_peace() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    village.run(secs(600));
    assert!(village.decisions.is_empty() && village.writes.is_empty());
    let stats = village.judge.stats();
    assert_eq!(
        (stats.rounds, stats.lease_reads, stats.open_cases),
        (0, 0, 0)
    );
}

/// Scenario 6: a member accuses everybody.
#[test]
fn a_liar_changes_nothing_and_cannot_hold_the_brake() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    village.host("n3").liar = true;
    village.run(secs(120));
    assert!(village.writes.is_empty());
    assert!(!village.brakes().minority);
    assert!(village.judge.stats().claims_discredited > 1_000);
    village.kill("n9");
    village.run_until(secs(12), |village| !village.written("n9").is_empty());
    assert_eq!(village.writes.len(), 1);
}

/// Scenario 1: a node hears nothing, accuses everybody, and is reached by nobody.
#[test]
fn a_deaf_node_harms_itself_alone() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
    village.host("n3").deaf = true;
    village.run(secs(120));
    assert!(
        village.writes.iter().all(|(_, node, ..)| node == "n3"),
        "{:?}",
        village.writes
    );
}

/// An answer to anyone resets the silence: a node that loses most packets but
/// answers some is not written.
#[test]
fn an_answer_to_anyone_resets_the_silence() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    for _ in 0..40 {
        village.host("n3").mesh_blocked = true;
        village.host("n3").port_blocked = true;
        village.run(millis(3_500));
        village.host("n3").mesh_blocked = false;
        village.host("n3").port_blocked = false;
        village.run(millis(500));
    }
    assert!(village.writes.is_empty());
}

/// One accuser is not enough, nor are many of one host.
#[test]
fn accusations_without_silence_are_nothing() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    for _ in 0..30 {
        for accuser in ["n1", "n2", "n4", "n6"] {
            village.accuse(key(Role::Agent, accuser), "n3", secs(5));
        }
        village.run(secs(1));
    }
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Alive);
}

/// Scenario 37 in `default`: at most one Unknown, and no loop of Unknown and True.
#[test]
fn a_node_cut_off_from_its_peers_is_written_once_at_most() {
    let mut once = 0;
    for index in 0..12 {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        let name = format!("n{index}");
        village.host(&name).side = 1;
        village.run(secs(600));
        let written = village.written(&name).len();
        assert!(written <= 1, "{name}: {:?}", village.writes);
        assert_eq!(village.writes.len(), written, "nobody else is written");
        assert_eq!(village.verdict(&name), Verdict::MeshCutOff, "{name}");
        assert!(
            village
                .notices
                .iter()
                .any(|(_, notice)| matches!(notice, Notice::MeshCutOff { .. }))
        );
        if written == 1 {
            let memory = (Verdict::MeshCutOff, Rule::TakenBack);
            assert!(village.said(&name).contains(&memory), "{name}");
        }
        once += written;
        village.host(&name).side = 0;
        village.run(secs(30));
        assert_eq!(village.verdict(&name), Verdict::Alive);
        // A peer reached it: a later death is written as any.
        village.kill(&name);
        village.run_until(secs(40), |village| village.written(&name).len() > written);
    }
    assert!(
        once > 0,
        "the case of a written and taken-back Unknown was exercised"
    );
}

/// Scenario 37 in `cautious`: none, because a live Lease moves within the interval.
#[test]
fn a_node_cut_off_from_its_peers_is_never_written_in_cautious() {
    for index in 0..12 {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Cautious);
        let name = format!("n{index}");
        village.host(&name).side = 1;
        village.run(secs(300));
        assert!(village.writes.is_empty(), "{name}: {:?}", village.writes);
        assert_eq!(village.verdict(&name), Verdict::MeshCutOff);
    }
}

/// The same where the API server fails the first reads of its Lease: the reads that are
/// compared lie a whole period of a kubelet apart.
#[test]
fn cautious_waits_for_a_renewal_that_it_can_see() {
    for index in 0..12 {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Cautious);
        let name = format!("n{index}");
        village.lease_reads_fail = 8;
        village.host(&name).side = 1;
        village.run(secs(60));
        assert!(village.writes.is_empty(), "{name}: {:?}", village.writes);
    }
}

/// The memory of a cut-off node ends when its heartbeats stop for two periods: it
/// died out of sight.
#[test]
fn a_cut_off_node_that_dies_is_written_after_two_silent_periods() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Cautious);
    village.host("n3").side = 1;
    village.run(secs(100));
    assert_eq!(village.verdict("n3"), Verdict::MeshCutOff);
    let died = village.now;
    village.kill("n3");
    village.run_until(secs(90), |village| !village.written("n3").is_empty());
    assert!(village.written_after("n3", died).unwrap() >= secs(15));
}

/// Two Unknowns taken back make all evidence weak for a while.
#[test]
fn taken_back_unknowns_make_evidence_weak() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    for name in ["n1", "n2", "n4", "n5"] {
        village.host(name).side = 1;
        village.run(secs(60));
    }
    let taken_back = village.judge.stats().taken_back;
    assert_eq!(
        taken_back, 2,
        "after two, weak evidence waits for the heartbeats"
    );
    let died = village.now;
    village.kill("n9");
    village.run_until(secs(60), |village| !village.written("n9").is_empty());
    assert!(village.written_after("n9", died).unwrap() >= secs(20));
}

/// Scenario 34: two Nodes carry one address, one of them is dead.
#[test]
fn the_new_holder_of_an_address_does_not_keep_the_dead_node_alive() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    let address = village.hosts["n3"].address;
    village.add("n12", "a");
    village.host("n12").address = address;
    village.show("n12");
    village.run_until(secs(60), |village| !village.written("n3").is_empty());
    assert_eq!(village.written("n3"), [Verdict::Unreachable]);
    village.run(secs(60));
    assert!(village.written("n12").is_empty());
    // Nor the other way round.
    village.kill("n12");
    village.run_until(secs(60), |village| !village.written("n12").is_empty());
}

/// Scenario 10: an agent restarts in a loop, with goodbyes and without.
#[test]
fn an_agent_in_a_restart_loop_is_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    for round in 0..60 {
        if round % 2 == 0 {
            village.leave("n3");
        } else {
            village.host("n3").agent = AgentRuns::Killed;
        }
        village.run(secs(2));
        village.host("n3").agent = AgentRuns::Yes;
        village.membership("n3", crate::MemberChange::Joined);
        village.run(secs(3));
    }
    village.run(secs(20));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Alive);
}

/// Nodes that never had an agent are never called dead for it.
#[test]
fn a_node_without_an_agent_is_unmonitored() {
    let mut village = Village::of(6, &["a", "b", "c"], Profile::Fast);
    village.add("virtual", "a");
    let host = village.host("virtual");
    host.agent = AgentRuns::Never;
    host.power = false;
    village.show("virtual");
    for accuser in ["n1", "n2", "n3"] {
        village.accuse(key(Role::Agent, accuser), "virtual", secs(5));
    }
    village.run(secs(300));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("virtual"), Verdict::Unmonitored);
}

/// A witness in one zone of several is weak, however many it has.
#[test]
fn witnesses_of_one_zone_alone_are_weak() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    for index in 0..12 {
        if index % 3 != 0 {
            village.host(&format!("n{index}")).frozen_verifier = true;
        }
    }
    let died = village.now;
    village.kill("n1");
    village.run_until(secs(60), |village| !village.written("n1").is_empty());
    assert!(village.written_after("n1", died).unwrap() >= secs(20));
    assert_eq!(village.writes[0].3, Rule::NoPacketAndHeartbeatsSilent);
}

/// Scenario 36: only a path that worked can fail. Where nobody ever had one, silence
/// is no evidence, however loud.
#[test]
fn paths_that_never_worked_do_not_count() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n3").agent_baseline = false;
    village.host("n3").port_baseline = false;
    village.kill("n3");
    village.run(secs(120));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Unverifiable);
}

/// A verifier whose own health is bad speaks against nobody.
#[test]
fn silence_at_sick_verifiers_does_not_count() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.aggregators.clear(); // None of them answers.
    village.each(0..12, |host| host.health = 8);
    village.kill("n3");
    village.run(secs(60));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    assert_eq!(village.verdict("n3"), Verdict::Unverifiable);
    village.each(0..12, |host| host.health = 0);
    village.run_until(secs(30), |village| village.writes.len() == 1);
}

/// Any answer that reaches the leader saves, be it through a sick verifier, one of the
/// node's own zone, and against all others' word.
#[test]
fn one_answer_through_a_sick_neighbour_saves() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let neighbour = village.host("n0");
    (neighbour.health, neighbour.reaches_all) = (8, true);
    let hidden = village.host("n3");
    (hidden.side, hidden.mute) = (1, true);
    village.run(secs(120));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    village.host("n0").reaches_all = false;
    village.run_until(secs(60), |village| !village.written("n3").is_empty());
}

/// Votes of the node's own zone alone never kill: while its heartbeats move, nothing that
/// its neighbours say is enough.
#[test]
fn its_own_zone_alone_never_kills() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.each((0..12).filter(|index| index % 3 != 0), |host| {
        host.frozen_verifier = true;
    });
    village.host("n3").side = 1;
    village.run(secs(300));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
}

/// Verifiers are chosen over the zones: others first, and one of the node's own.
#[test]
fn verifiers_are_chosen_over_the_zones() {
    let mut village = Village::of(30, &["a", "b", "c"], Profile::Default);
    village.kill("n0");
    village.run_until(secs(10), |village| village.writes.len() == 1);
    let subject = key(Role::Agent, "n0");
    let answers = |zone: &str| -> u32 {
        let inside = village.hosts.values().filter(|host| host.zone == zone);
        inside
            .filter_map(|host| village.answered.get(&(host.key, subject)))
            .sum()
    };
    let (own, others) = (answers("a"), [answers("b"), answers("c")]);
    assert!(own > 0, "one of its own zone is asked");
    assert!(
        others.iter().all(|zone| *zone >= own * 2),
        "twice as many of each other zone: {own} {others:?}"
    );
}

/// Many nodes at once share datagrams: rounds that are due within a slack go together, so
/// that a verifier gets a few datagrams a second, and not one a node.
#[test]
fn verification_of_many_is_batched() {
    let mut village = Village::of(60, &["a", "b", "c"], Profile::Default);
    village.each((0..60).filter(|index| index % 3 == 0), |host| {
        host.power = false;
    });
    village.run_until(secs(20), |village| village.writes.len() == 20);
    let stats = village.judge.stats();
    let subjects: u32 = village.answered.values().sum();
    assert!(
        u64::from(subjects) >= stats.answers * 2,
        "{subjects} subjects in {} datagrams",
        stats.answers
    );
}
