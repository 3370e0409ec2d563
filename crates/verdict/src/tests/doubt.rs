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
