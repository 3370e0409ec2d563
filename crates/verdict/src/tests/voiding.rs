//! What voids evidence: a kubelet that spoke, a new UID, a refused write.

use super::village::{Village, secs};
use crate::{Input, Profile, ReadyStatus, Rule, Verdict, WriteOutcome};

/// Scenario 22: the kubelet writes True between the evidence and the decision.
#[test]
fn a_kubelet_that_spoke_after_the_evidence_began_wins() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.host("n3").side = 1;
    village.run(secs(3));
    village.kubelet_writes("n3", ReadyStatus::True);
    village.run(secs(15));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::MeshCutOff);
    assert_eq!(
        village.said("n3"),
        [(Verdict::MeshCutOff, Rule::HeartbeatAfterEvidence)]
    );
}

/// A Node object that merely changed its version voids nothing.
#[test]
fn a_change_of_version_alone_voids_nothing() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    village.kill("n3");
    for _ in 0..7 {
        village.run(secs(1));
        village.show("n3");
    }
    assert!(village.written_after("n3", died).unwrap() <= secs(7));
}

/// Scenario 9: re-created under its name with a new UID while it was suspected.
#[test]
fn a_new_uid_voids_everything() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    village.run(secs(4));
    assert!(
        village
            .judge
            .standing(&super::village::node_name("n3"))
            .unwrap()
            .suspected
    );
    let old = village.node_ref("n3");
    village.hosts.remove("n3");
    village.add("n3", "a");
    village.host("n3").agent = super::village::AgentRuns::Never; // Not started yet.
    village.show("n3");
    // The mesh still misses the old agent of that name.
    for _ in 0..60 {
        for accuser in ["n1", "n2", "n4", "n5"] {
            let accuser = super::village::key(swimlet_protocol::Role::Agent, accuser);
            village.accuse(accuser, "n3", secs(5));
        }
        village.run(secs(1));
    }
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Unmonitored);
    // A late word about the old object does not reach the new one.
    village.feed(Input::NodeGone(old));
    assert!(
        village
            .judge
            .standing(&super::village::node_name("n3"))
            .is_some()
    );
}

/// Nothing is written over an Unknown, whoever wrote it.
#[test]
fn an_unknown_of_somebody_else_stands() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    village.run(secs(3));
    if let Some(ready) = &mut village.host("n3").ready {
        ready.status = ReadyStatus::Unknown;
        ready.reason = "NodeStatusUnknown".to_owned();
    }
    village.show("n3");
    village.run(secs(120));
    assert!(village.writes.is_empty());
    assert_eq!(
        village.verdict("n3"),
        Verdict::Unreachable,
        "known all the same"
    );
}

/// A Node without a Ready condition is left to the startup grace.
#[test]
fn a_node_without_a_ready_condition_is_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n3").ready = None;
    village.show("n3");
    village.kill("n3");
    village.run(secs(120));
    assert!(village.writes.is_empty());
}

/// A `Ready=False` is a living kubelet's word; a death after it is written.
#[test]
fn false_becomes_unknown_on_fresh_evidence_only() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kubelet_writes("n3", ReadyStatus::False);
    village.run(secs(60));
    assert!(village.writes.is_empty());
    village.kill("n3");
    village.run_until(secs(10), |village| village.writes.len() == 1);
}

/// A refused write is never replayed: it is decided anew, on rounds asked after the
/// refusal, under a number of its own.
#[test]
fn a_refused_write_is_decided_anew_while_the_evidence_stands() {
    for outcome in [
        WriteOutcome::Conflict,
        WriteOutcome::Superseded,
        WriteOutcome::Failed,
    ] {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.kill("n3");
        village.api_refuses = Some(outcome);
        village.run(secs(12));
        village.api_refuses = None;
        let refused = village.decisions.len();
        assert!((3..=8).contains(&refused), "{outcome:?}: {refused}");
        village.run_until(secs(10), |village| village.writes.len() == 1);
        let episodes: std::collections::BTreeSet<u64> = village
            .decisions
            .iter()
            .map(|(_, decision)| decision.episode)
            .collect();
        assert_eq!(episodes.len(), village.decisions.len());
        assert!(
            village.decisions[1..]
                .iter()
                .all(|(_, decision)| decision.evidence.rounds <= 3),
            "each rests on rounds of its own"
        );
        let times: Vec<_> = village.decisions.iter().map(|(at, _)| *at).collect();
        assert!(
            village
                .decisions
                .iter()
                .all(|(_, decision)| decision.verdict == Verdict::Unreachable)
        );
        assert!(
            times
                .windows(2)
                .all(|pair| pair[1].since(pair[0]) >= secs(1))
        );
    }
}

#[test]
fn a_refused_write_is_not_repeated_once_the_node_answers() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.api_refuses = Some(WriteOutcome::Conflict);
    village.kill("n3");
    village.run_until(secs(10), |village| !village.decisions.is_empty());
    village.host("n3").power = true;
    village.api_refuses = None;
    village.run(secs(60));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n3"), Verdict::Alive);
}

/// Observe mode: said once an episode, again after a recovery.
#[test]
fn observe_says_each_episode_once() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.enforce = false;
    let would = |village: &Village| {
        village
            .decisions
            .iter()
            .filter(|(_, decision)| decision.verdict == Verdict::Unreachable)
            .count()
    };
    village.kill("n3");
    village.run(secs(300));
    assert_eq!(would(&village), 1);
    village.host("n3").power = true;
    village.run(secs(60));
    village.kill("n3");
    village.run(secs(300));
    assert_eq!(would(&village), 2);
    assert!(village.writes.is_empty());
}

/// A previous leader's Unknown is known as ours: taken back while no peer reaches the
/// node, it is remembered, and not written again.
#[test]
fn a_previous_leader_s_unknown_that_is_taken_back_is_remembered() {
    let mut village = Village::empty(Profile::Default);
    for index in 0..9 {
        village.add(&format!("n{index}"), ["a", "b", "c"][index % 3]);
    }
    village.host("n3").side = 1;
    if let Some(ready) = &mut village.host("n3").ready {
        ready.status = ReadyStatus::Unknown;
        ready.ours = true;
    }
    village.feed(Input::Member {
        key: super::village::key(swimlet_protocol::Role::Agent, "n3"),
        change: crate::MemberChange::Joined,
        aggregator: false,
        host: None,
        heard_age: Some(secs(30)),
    });
    village.start();
    village.feed(Input::Leadership(true));
    village.run(secs(5));
    village.kubelet_writes("n3", ReadyStatus::True);
    village.run(secs(300));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    assert_eq!(village.verdict("n3"), Verdict::MeshCutOff);
}
