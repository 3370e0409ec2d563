//! The host lives: nothing is ever written before in-tree would, and most of it
//! never.

use super::village::{AgentRuns, Kubelet, Village, secs};
use crate::{Notice, Profile, Rule, Verdict};
use swimlet_protocol::frame::Check;

/// Scenario 13: the agent is killed, node and kubelet are fine.
#[test]
fn a_missing_agent_is_never_written() {
    for profile in [Profile::Default, Profile::Fast, Profile::Cautious] {
        let mut village = Village::of(12, &["a", "b", "c"], profile);
        village.host("n5").agent = AgentRuns::Killed;
        village.run(secs(15));
        assert_eq!(
            village.verdict("n5"),
            Verdict::Alive,
            "a restart is no news"
        );
        village.run(secs(600));
        assert!(village.writes.is_empty());
        assert_eq!(
            village.said("n5"),
            [(Verdict::AgentMissing, Rule::PortAnswers)]
        );
        assert_eq!(
            village
                .notices
                .iter()
                .filter(|(_, notice)| matches!(notice, Notice::AgentMissing { .. }))
                .count(),
            1,
            "said once"
        );
        village.host("n5").agent = AgentRuns::Yes;
        village.run(secs(30));
        assert_eq!(village.verdict("n5"), Verdict::Alive);
    }
}

/// Scenario 7: UDP is blocked, TCP works.
#[test]
fn a_blocked_mesh_port_is_reported_and_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n5").mesh_blocked = true;
    village.run(secs(300));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n5"), Verdict::AgentMissing);
}

/// Scenario 14: the kubelet is killed, the agent says so.
#[test]
fn a_killed_kubelet_is_written_with_its_own_reason_and_not_before_in_tree() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let killed = village.now;
    village.host("n5").kubelet = Kubelet::Killed;
    village.run_until(secs(120), |village| !village.written("n5").is_empty());
    let took = village.written_after("n5", killed).unwrap();
    assert!((secs(50)..secs(75)).contains(&took), "{took:?}");
    assert_eq!(village.written("n5"), [Verdict::KubeletDown]);
    assert_eq!(Verdict::KubeletDown.reason(), Some("KubeletUnresponsive"));
    village.run(secs(120));
    assert_eq!(village.writes.len(), 1);
    village.host("n5").kubelet = Kubelet::Works;
    village.run(secs(60));
    assert_eq!(village.verdict("n5"), Verdict::Alive);
    assert_eq!(village.writes.len(), 1);
}

#[test]
fn a_kubelet_upgrade_of_40_s_is_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n5").kubelet = Kubelet::Killed;
    village.run(secs(40));
    village.host("n5").kubelet = Kubelet::Works;
    village.run(secs(120));
    assert!(village.writes.is_empty());
}

/// The agent's word against a moving Lease: the kubelet lives.
#[test]
fn a_heartbeat_contradicts_the_agent_s_word() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.host("n5").kubelet = Kubelet::Killed;
    for _ in 0..30 {
        village.run(secs(10));
        let host = village.host("n5");
        host.lease = host.lease.map(|lease| lease + 1);
    }
    assert!(village.writes.is_empty());
}

/// Scenario 31: agent and kubelet restart together, the host lives: an RST is a packet.
#[test]
fn a_refusing_host_is_never_unreachable() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let host = village.host("n5");
    host.agent = AgentRuns::Killed;
    host.kubelet = Kubelet::Killed;
    village.run(secs(45));
    assert!(
        village.writes.is_empty(),
        "within its time nothing is written"
    );
    village.run_until(secs(60), |village| !village.written("n5").is_empty());
    assert_eq!(village.written("n5"), [Verdict::KubeletDown]);
    assert_eq!(village.writes[0].3, Rule::PortDeadAndHeartbeatsSilent);
}

#[test]
fn both_back_within_their_time_are_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let host = village.host("n5");
    host.agent = AgentRuns::Killed;
    host.kubelet = Kubelet::Killed;
    village.run(secs(45));
    let host = village.host("n5");
    host.agent = AgentRuns::Yes;
    host.kubelet = Kubelet::Works;
    village.run(secs(60));
    assert!(village.writes.is_empty());
    assert_eq!(village.verdict("n5"), Verdict::Alive);
}

/// A hung userland whose kernel still accepts.
#[test]
fn a_hung_userland_is_a_kubelet_down() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let hung = village.now;
    let host = village.host("n5");
    host.agent = AgentRuns::Killed;
    host.kubelet = Kubelet::Hung;
    village.run_until(secs(120), |village| !village.written("n5").is_empty());
    let took = village.written_after("n5", hung).unwrap();
    assert!((secs(50)..secs(75)).contains(&took), "{took:?}");
    assert_eq!(village.written("n5"), [Verdict::KubeletDown]);
}

/// Scenario 15: one node does not reach the API server.
#[test]
fn a_node_cut_off_from_the_api_server_is_written_with_its_own_reason() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let cut = village.now;
    village.host("n5").reaches_api = false;
    village.run_until(secs(120), |village| !village.written("n5").is_empty());
    let took = village.written_after("n5", cut).unwrap();
    assert!((secs(50)..secs(75)).contains(&took), "{took:?}");
    assert_eq!(village.written("n5"), [Verdict::ApiCutOff]);
    assert_eq!(Verdict::ApiCutOff.reason(), Some("NodeCutOffFromApiServer"));
}

/// Scenario 15: many at once are no nodes but the control plane.
#[test]
fn many_nodes_cut_off_from_the_api_server_are_not_written() {
    let mut village = Village::of(20, &["a", "b", "c"], Profile::Fast);
    village.each(0..5, |host| host.reaches_api = false);
    village.run(secs(300));
    assert!(village.writes.is_empty());
    assert!(
        village
            .notices
            .iter()
            .any(|(_, notice)| matches!(notice, Notice::ApiCutOffMany { nodes } if *nodes >= 2))
    );
    // One is left: its clock starts when the others are gone.
    village.each(1..5, |host| host.reaches_api = true);
    let alone = village.now;
    village.run_until(secs(120), |village| !village.written("n0").is_empty());
    assert!(village.written_after("n0", alone).unwrap() >= secs(50));
    assert_eq!(village.writes.len(), 1);
}

/// Scenario 36: one port stops while the other works.
#[test]
fn a_path_that_stops_while_the_other_works_is_not_written() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.each(0..12, |host| host.port_blocked = true);
    village.run(secs(300));
    assert!(village.writes.is_empty());
    village.each(0..12, |host| host.port_blocked = false);
    village.host("n5").mesh_blocked = true;
    village.run(secs(300));
    assert!(village.writes.is_empty());
}

/// Scenario 36: where only the mesh port ever had a path, its silence is weak
/// evidence, and the heartbeats must be silent for two periods besides.
#[test]
fn one_path_alone_is_weak_evidence() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.each(0..12, |host| {
        host.port_blocked = true;
        host.port_baseline = false;
    });
    village.host("n5").mesh_blocked = true;
    village.run(secs(120));
    assert!(village.writes.is_empty(), "its heartbeats move");
    let died = village.now;
    village.kill("n7");
    village.run_until(secs(60), |village| !village.written("n7").is_empty());
    assert!(village.written_after("n7", died).unwrap() >= secs(20));
    assert_eq!(village.writes[0].3, Rule::NoPacketAndHeartbeatsSilent);
    assert_eq!(village.writes.len(), 1);
}

/// A kubelet whose checks pass and whose heartbeats stopped (an expired client
/// certificate, a hung sync loop): found by its missing status reports, confirmed by
/// its Lease, never before in-tree would.
#[test]
fn a_kubelet_that_stops_reporting_is_found_without_the_agent_s_word() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    village.run(secs(400));
    assert_eq!(village.lease_reads, 0);
    let stopped = village.now;
    village.host("n5").mute = true;
    village.run_until(secs(900), |village| !village.written("n5").is_empty());
    assert!(village.written_after("n5", stopped).unwrap() >= secs(50));
    assert_eq!(village.written("n5"), [Verdict::ApiCutOff]);
    assert_eq!(village.writes[0].3, Rule::HeartbeatsSilent);
    assert_eq!(village.writes.len(), 1);
}

/// Slow status reports alone are no evidence: the Lease moves.
#[test]
fn slow_status_reports_with_a_moving_lease_are_no_evidence() {
    let mut village = Village::of(6, &["a", "b", "c"], Profile::Fast);
    village.each(0..6, |host| host.reports_status = false);
    village.run(secs(2_000));
    assert!(village.writes.is_empty());
    assert!(village.lease_reads > 0, "they were looked at");
    assert!(village.lease_reads < 6 * 4 * 5, "{}", village.lease_reads);
}

/// Scenario 15 with slow Leases: that its agent does not reach the API server is no
/// reason to write a node whose kubelet goes another way.
#[test]
fn an_agent_without_a_path_does_not_cut_its_kubelet_off() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let host = village.host("n5");
    host.lease_duration = secs(3_600);
    host.says = Some((Check::Passing, Check::Failing));
    village.run(secs(3_600));
    assert!(village.writes.is_empty(), "{:?}", village.writes);
    // Once its heartbeats are silent too, it is written.
    village.host("n5").mute = true;
    village.run_until(secs(3_600), |village| !village.written("n5").is_empty());
    assert_eq!(village.written("n5"), [Verdict::ApiCutOff]);
}

/// No loop of Unknown and True: a kubelet that took our Unknown back is believed over its
/// agent, until the agent's word has cleared once. Slow Leases say nothing in time.
#[test]
fn a_word_that_was_taken_back_is_barred_until_it_clears() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let host = village.host("n5");
    host.lease_duration = secs(7_200);
    host.says = Some((Check::Failing, Check::Passing));
    village.run(secs(1_200));
    assert_eq!(village.written("n5"), [Verdict::KubeletDown], "once");
    assert_eq!(village.verdict("n5"), Verdict::Alive);
    // The agent restarts, and its first word of the kubelet is that it never worked.
    village.host("n5").says = Some((Check::NeverWorked, Check::Passing));
    village.run(secs(30));
    village.host("n5").says = Some((Check::Failing, Check::Passing));
    village.run(secs(300));
    assert_eq!(village.writes.len(), 1, "that is no clearance");
    village.host("n5").says = None;
    village.run(secs(30));
    let fails = village.now;
    village.host("n5").kubelet = Kubelet::Killed;
    village.run_until(secs(120), |village| village.writes.len() == 2);
    assert!(village.written_after("n5", fails).unwrap() >= secs(50));
}

/// The same where there is no Lease that could speak for the kubelet.
#[test]
fn without_a_lease_a_wrong_word_costs_one_unknown() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Fast);
    let host = village.host("n5");
    host.lease = None;
    host.says = Some((Check::Passing, Check::Failing));
    village.run(secs(1_800));
    assert_eq!(village.written("n5"), [Verdict::ApiCutOff]);
}
