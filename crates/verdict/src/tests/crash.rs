//! True deaths: they must be written, in time, with what they rest on.

use super::village::{AgentRuns, Village, key, millis, node_name, secs};
use crate::{Profile, Rule, Verdict};
use swimlet_protocol::{Moment, Role};

/// Kills one node and returns how long its Unknown took, in ms.
fn crash(village: &mut Village, name: &str) -> u128 {
    let died = village.now;
    village.kill(name);
    village.run_until(secs(60), |village| !village.written(name).is_empty());
    village.written_after(name, died).unwrap().as_millis()
}

#[test]
fn one_crash_of_20_is_written_within_the_design_s_time() {
    for index in 0..20 {
        let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
        let name = format!("n{index}");
        let took = crash(&mut village, &name);
        assert!((4_000..=7_000).contains(&took), "{name}: {took} ms");
        village.run(secs(60));
        assert_eq!(
            village.writes.len(),
            1,
            "one node, one write: {:?}",
            village.writes
        );
        assert_eq!(village.written(&name), [Verdict::Unreachable]);
    }
}

#[test]
fn the_profiles_keep_their_times() {
    let mut fast = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let took = crash(&mut fast, "n5");
    assert!((1_000..=4_500).contains(&took), "fast: {took} ms");
    let mut cautious = Village::of(12, &["a", "b", "c"], Profile::Cautious);
    let took = crash(&mut cautious, "n5");
    assert!((15_000..=18_000).contains(&took), "cautious: {took} ms");
}

#[test]
fn a_decision_says_what_it_rests_on() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    crash(&mut village, "n7");
    let (_, decision) = village
        .decisions
        .iter()
        .find(|(_, decision)| decision.verdict.reason().is_some())
        .unwrap();
    let evidence = &decision.evidence;
    assert_eq!(decision.rule, Rule::NoPacketFromHost);
    assert!(
        evidence.began >= died,
        "no evidence is older than the death"
    );
    assert!(evidence.stood >= secs(4));
    assert!(evidence.rounds >= 2);
    assert!(evidence.witnesses.len() >= evidence.need && evidence.need == 3);
    assert_eq!(evidence.weakness, None);
    assert_eq!(evidence.ready, village_ready(&village, "n7", decision));
    let summary = evidence.summary();
    for part in ["No packet", "hosts", "zones", "rounds", "No heartbeat"] {
        assert!(summary.contains(part), "{part:?} in {summary:?}");
    }
}

/// The condition that the decision saw is the one from before the write.
fn village_ready(
    village: &Village,
    name: &str,
    decision: &crate::Decision,
) -> Option<crate::ReadyCondition> {
    let now = village.hosts[name].ready.as_ref().unwrap();
    let seen = decision.evidence.ready.clone().unwrap();
    assert_eq!(
        seen.heartbeat, now.heartbeat,
        "the heartbeat was not touched"
    );
    assert!(!seen.ours && now.ours);
    Some(seen)
}

#[test]
fn one_crash_of_three_needs_the_aggregators_hosts_too() {
    let mut village = Village::of(3, &["a", "b", "c"], Profile::Default);
    let took = crash(&mut village, "n1");
    assert!((4_000..=7_000).contains(&took), "{took} ms");
}

/// One of two is exactly half, which is no majority: the brake holds until the
/// node's own heartbeats have been silent for two periods.
#[test]
fn one_crash_of_two_is_written_once_its_heartbeats_are_silent() {
    let mut village = Village::of(2, &["a"], Profile::Default);
    let took = crash(&mut village, "n1");
    assert!((20_000..=28_000).contains(&took), "{took} ms");
    assert!(
        village
            .said("n1")
            .contains(&(Verdict::Withheld, Rule::BrakeMinority))
    );
}

/// Two members of one host are one witness: a cluster of two whose aggregators run
/// on its two nodes has nobody to confirm a death.
#[test]
fn agent_and_aggregator_of_one_host_are_one_witness() {
    let mut village = Village::empty(Profile::Default);
    village.add("n0", "a");
    village.add("n1", "a");
    village.aggregators.clear();
    village
        .aggregators
        .insert("agg-0".to_owned(), Some("n0".to_owned()));
    village.start();
    village.feed(crate::Input::Leadership(true));
    village.run(secs(40));
    village.kill("n1");
    village.run(secs(120));
    assert_eq!(village.verdict("n1"), Verdict::Unverifiable);
    assert!(village.writes.is_empty());
}

#[test]
fn recovery_is_the_kubelet_s_and_a_second_death_is_a_new_episode() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    crash(&mut village, "n3");
    village.run(secs(30));
    village.host("n3").power = true;
    village.run_until(secs(30), |village| village.verdict("n3") == Verdict::Alive);
    village.run(secs(30));
    assert_eq!(village.written("n3").len(), 1);
    let took = crash_again(&mut village, "n3");
    assert!((4_000..=7_500).contains(&took), "{took} ms");
    let episodes: std::collections::BTreeSet<u64> = village
        .decisions
        .iter()
        .filter(|(_, decision)| decision.verdict == Verdict::Unreachable)
        .map(|(_, decision)| decision.episode)
        .collect();
    assert_eq!(episodes.len(), 2, "two deaths, two episodes");
}

fn crash_again(village: &mut Village, name: &str) -> u128 {
    let before = village.written(name).len();
    let died = village.now;
    village.kill(name);
    village.run_until(secs(200), |village| village.written(name).len() > before);
    village.written_after(name, died).unwrap().as_millis()
}

/// Scenario 2: from the third episode within half an hour on, persistence doubles.
#[test]
fn a_node_that_keeps_dying_is_damped() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let mut took = Vec::new();
    for _ in 0..4 {
        took.push(crash_again(&mut village, "n3"));
        village.host("n3").power = true;
        village.run(secs(40));
    }
    assert!(took[1] < 7_500, "{took:?}");
    assert!((8_000..12_000).contains(&took[2]), "{took:?}");
    assert!((16_000..20_000).contains(&took[3]), "{took:?}");
}

/// Scenario 33's other half: a death after a goodbye is found by direct checks, on
/// weak evidence, never within the grace.
#[test]
fn a_death_after_a_goodbye_is_found_by_direct_checks() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.leave("n2");
    village.run(secs(20));
    assert_eq!(village.verdict("n2"), Verdict::Left);
    let died = village.now;
    village.kill("n2");
    village.run_until(secs(120), |village| !village.written("n2").is_empty());
    let took = village.written_after("n2", died).unwrap();
    assert!(took >= secs(14), "{took:?}");
    assert_eq!(village.writes.len(), 1);
}

/// The agent is missing first, then the host dies: silence counts from the last
/// answer of the kubelet, not from the agent's.
#[test]
fn a_death_behind_a_missing_agent_counts_from_the_kubelet_s_last_answer() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.host("n2").agent = AgentRuns::Killed;
    village.run(secs(60));
    assert_eq!(village.verdict("n2"), Verdict::AgentMissing);
    let died = village.now;
    village.kill("n2");
    village.run_until(secs(60), |village| !village.written("n2").is_empty());
    let took = village.written_after("n2", died).unwrap();
    assert!((secs(4)..secs(20)).contains(&took), "{took:?}");
}

/// Nobody misses it, nobody hears it: the sweep finds it all the same.
#[test]
fn a_death_without_any_accusation_is_found_by_the_sweep() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    let host = village.host("n4");
    host.power = false;
    host.agent = AgentRuns::Never; // Nobody watches it.
    village.run_until(secs(120), |village| !village.written("n4").is_empty());
    let took = village.written_after("n4", died).unwrap();
    assert!(took >= secs(25), "{took:?}");
}

/// A verifier that never answers costs nothing, one more that lies changes nothing.
#[test]
fn frozen_verifiers_do_not_delay_a_death_for_long() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
    village.each([1, 2, 4, 8], |host| host.frozen_verifier = true);
    let took = crash(&mut village, "n7");
    assert!(took <= 8_000, "{took} ms");
    village.run(secs(30));
    assert_eq!(village.writes.len(), 1);
}

#[test]
fn a_write_costs_few_lease_reads() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Default);
    crash(&mut village, "n7");
    village.run(secs(60));
    assert!(
        (2..=4).contains(&village.lease_reads),
        "{}",
        village.lease_reads
    );
    let accuser = key(Role::Agent, "n1");
    assert_ne!(accuser, key(Role::Aggregator, "n1"));
    let standing = village.judge.standing(&node_name("n7")).unwrap();
    assert_eq!(standing.verdict, Verdict::Unreachable);
    assert!(standing.since <= village.now.before(millis(50_000)));
}

/// An API server that takes longer for an answer than an answer may be old makes the
/// decision late, not impossible.
#[test]
fn a_death_is_written_through_a_slow_api_server() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.lease_takes = millis(2_500);
    let took = crash(&mut village, "n5");
    assert!((4_000..=15_000).contains(&took), "{took} ms");
}

/// A single read of the Lease shows no renewal: if the reads at the beginning of a case
/// fail, the first one that succeeds is what the next is compared with.
#[test]
fn one_read_of_the_lease_is_not_enough() {
    for failing in 0..6 {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.leases_read.clear();
        village.lease_reads_fail = failing;
        crash(&mut village, "n5");
        let (written, ..) = village.writes[0];
        let read = |(at, name): &(Moment, String)| (name == "n5").then_some(*at);
        let first = village.leases_read.iter().find_map(read).unwrap();
        assert!(village.leases_read.len() >= 2, "{failing} failed");
        assert!(written.since(first) >= secs(2), "{failing} failed");
    }
}

/// Where there is no Lease one answer says so, and the watch shows every heartbeat.
#[test]
fn without_a_lease_one_read_is_enough() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.host("n5").lease = None;
    village.lease_reads_fail = 3;
    let took = crash(&mut village, "n5");
    assert!((4_000..=8_000).contains(&took), "{took} ms");
}
