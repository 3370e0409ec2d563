use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use swimlet_protocol::frame::{
    Check, Claim, Finding, Leave, ProbeOutcome, ProbeReport, ProbeRequest, SelfReport, Update,
    Verify,
};
use swimlet_protocol::stream::SyncMember;
use swimlet_protocol::{
    Bounded, Frame, Generation, Incarnation, MemberKey, MemberState, Moment, Role,
};

use self::net::Net;
use super::joining::Told;
use crate::constants::{ACCUSERS_MIN, NEVER_REACHED_AFTER, OBSERVERS};
use crate::{Event, Input};

mod net;
mod scenarios;
mod wording;

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

#[test]
fn two_and_three_members_notice_a_death() {
    for (aggregators, agents) in [(1, 1), (1, 2)] {
        let mut net = Net::formed(5, aggregators, agents);
        let death = net.now;
        let dead = aggregators + agents - 1;
        net.kill(dead);
        let down = net.run_until(20 * SECOND, |net| {
            net.who_differs(dead, MemberState::Down).is_empty()
        });
        assert!(down);
        assert!(
            net.claims(death)
                .iter()
                .all(|(_, claim)| claim.subject == net.key(dead))
        );
    }
}

#[test]
fn the_first_miss_comes_within_two_seconds() {
    for seed in 0..10 {
        let mut net = Net::formed(seed, 3, 8);
        let death = net.now;
        net.kill(6);
        let missed = |net: &Net| {
            net.events(death)
                .any(|(_, _, event)| matches!(event, Event::Missed { .. }))
        };
        assert!(net.run_until(2 * SECOND, missed), "seed {seed}");
    }
}

/// Scenario 1: ingress dropped, egress fine.
#[test]
fn a_deaf_member_accuses_nobody_into_down() {
    for (aggregators, agents) in [(3, 8), (3, 30)] {
        let mut net = Net::formed(6, aggregators, agents);
        let since = net.now;
        let deaf = aggregators + 1;
        let key = net.key(deaf);
        net.deafen(deaf);
        net.run(300 * SECOND);
        let wronged: Vec<_> = net
            .claims(since)
            .into_iter()
            .filter(|(_, claim)| claim.accuser == key)
            .collect();
        assert_eq!(wronged, [], "a deaf member holds its accusations back");
        for i in net.living().into_iter().filter(|&i| i != deaf) {
            let others = net.living();
            for other in others
                .into_iter()
                .filter(|&other| other != deaf && other != i)
            {
                assert_eq!(
                    net.state(other, i),
                    Some(MemberState::Alive),
                    "{other} about {i}"
                );
            }
        }
        assert!(net.nodes[deaf].mesh.health() > 0);
    }
}

/// Scenario 6: it says of everybody, in every way there is, that they are dead.
#[test]
fn a_liar_changes_nobodys_state() {
    let mut net = Net::formed(7, 3, 20);
    let since = net.now;
    let liar = 5;
    for _ in 0..20 {
        for about in (0..net.nodes.len()).filter(|&about| about != liar) {
            let record = net.nodes[about].record.clone();
            let (subject, by) = (net.key(about), net.key(liar));
            let lies = [MemberState::Suspect, MemberState::Down, MemberState::Left].map(|state| {
                Update::Changed {
                    subject,
                    generation: record.generation,
                    incarnation: Incarnation(0),
                    state,
                    by,
                }
            });
            let claim = |accuser| Claim {
                accuser,
                subject,
                generation: record.generation,
                finding: Finding::Missed {
                    silent_ms: 5_000,
                    indirect: false,
                },
                age_ms: 0,
                health: 0,
            };
            let someone = net.key((about + 1) % net.nodes.len());
            let request = ProbeRequest {
                seq: 1,
                subject,
                silent_ms: 5_000,
            };
            let frames = [
                Frame::Gossip(Bounded::fill(&mut lies.into_iter())),
                Frame::Claims(Bounded::fill(&mut [claim(by), claim(someone)].into_iter())),
                Frame::ProbeRequest(request),
            ];
            for to in (0..net.nodes.len()).filter(|&to| to != liar) {
                for frame in &frames {
                    net.forge(liar, to, frame.clone());
                }
            }
        }
        net.run(SECOND);
    }
    let changed: Vec<_> = net
        .events(since)
        .filter(|(_, _, event)| matches!(event, Event::StateChanged { .. }))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
    let accusers: BTreeSet<_> = net
        .claims(since)
        .iter()
        .map(|(_, claim)| claim.accuser)
        .collect();
    assert_eq!(
        accusers,
        [net.key(liar)].into(),
        "it speaks under its own name alone"
    );
    assert!(net.nodes[0].mesh.stats().dropped_role > 0);
}

#[test]
fn a_leave_is_no_accusation() {
    let mut net = Net::formed(8, 3, 17);
    let since = net.now;
    net.input(6, Input::Leave);
    net.run(SECOND);
    net.kill(6);
    assert!(net.run_until(10 * SECOND, |net| {
        net.who_differs(6, MemberState::Left).is_empty()
    }));
    net.run(30 * SECOND);
    assert_eq!(net.claims(since), []);
    let missed = net
        .events(since)
        .any(|(_, _, event)| matches!(event, Event::Missed { .. }));
    assert!(!missed);
}

/// Scenarios 9 and 11: under the same name, at another address, with an older clock.
#[test]
fn a_restart_with_its_clock_in_the_past_rejoins_within_seconds() {
    for (aggregators, agents) in [(3, 8), (3, 30)] {
        for (generation, host) in [
            (1_000_000_000_000, 5),
            (1_000_000_000_001, 99),
            (1_800_000_000_000, 99),
        ] {
            let mut net = Net::formed(9, aggregators, agents);
            let since = net.now;
            let generation = Generation(generation);
            net.restart(5, generation, host);
            let key = net.key(5);
            let back = net.run_until(10 * SECOND, |net| {
                let mut others = net.living();
                others.retain(|&i| i != 5);
                others.iter().all(|&i| {
                    let member = net.nodes[i].mesh.member(key);
                    member.is_some_and(|m| {
                        m.generation() == generation && m.state == MemberState::Alive
                    })
                })
            });
            assert!(
                back,
                "{agents} agents, generation {generation:?} at host {host}"
            );
            net.run(30 * SECOND);
            let claims = net.claims(since);
            assert!(
                claims.iter().all(|(_, claim)| claim.subject == key),
                "{claims:?}"
            );
            assert_eq!(net.who_differs(5, MemberState::Alive), [0; 0]);
        }
    }
}

/// An aggregator that was cut off while a member restarted tells of the earlier start. It
/// was believed, and the later start taken for a clock that lied.
#[test]
fn an_aggregator_that_was_cut_off_does_not_bring_an_earlier_start_back() {
    let mut net = Net::formed(18, 3, 27);
    let far = (3..30).find(|&i| i != 7 && !net.nodes[7].mesh.links.is_up(net.key(i)));
    let (aggregator, far) = (net.key(0), far.unwrap());
    let key = net.key(far);
    let earlier = net.nodes[far].mesh.me.clone();
    let mut later = (*earlier).clone();
    later.generation.0 += 1_000;
    let known = later.generation;
    let mesh = &mut net.nodes[7].mesh;
    mesh.hear_record(net.now, aggregator, key, Arc::new(later), Incarnation(0));
    assert_eq!(mesh.member(key).unwrap().generation(), known);
    let mut told = |asked, now, heard_s| {
        let told = Told {
            by: aggregator,
            asked,
            is_memory: false,
        };
        let member = SyncMember {
            record: earlier.clone(),
            incarnation: Incarnation(0),
            state: MemberState::Alive,
            heard_s,
        };
        mesh.hear_synced(now, told, key, member);
        mesh.member(key).unwrap().generation()
    };
    let later = net.now + 10 * SECOND;
    assert_eq!(told(later, later, 20), known);
    // Its answer may have been on its way since before the restart.
    assert_eq!(told(net.now.before(SECOND), later, 0), known);
    // What it heard of the member itself since then is true: its clock is in the past.
    assert_eq!(told(later, later, 1), earlier.generation);
}

/// Whoever watches `node`.
fn watchers(net: &Net, node: usize) -> usize {
    let key = net.key(node);
    let mut living = net.living();
    living.retain(|&i| net.nodes[i].mesh.subjects().contains(&key));
    living.len()
}

/// A member that comes back while its place on the rings was kept, as each one that a
/// roll-out restarts does: its watches were dropped, and nobody's neighbours changed.
#[test]
fn who_comes_back_is_watched_again_and_its_next_death_is_claimed() {
    for leaves in [false, true] {
        let mut net = Net::formed(27, 3, 20);
        assert_eq!(watchers(&net, 6), OBSERVERS);
        let gone = if leaves {
            net.input(6, Input::Leave);
            net.run(SECOND);
            MemberState::Left
        } else {
            MemberState::Down
        };
        net.kill(6);
        assert!(net.run_until(20 * SECOND, |net| net.who_differs(6, gone).is_empty()));
        net.run(2 * SECOND);
        assert_eq!(watchers(&net, 6), 0, "leaves: {leaves}");
        net.restart(6, Generation(1_800_000_000_000), 6);
        net.run(20 * SECOND);
        assert_eq!(net.who_differs(6, MemberState::Alive), [0; 0]);
        assert_eq!(watchers(&net, 6), OBSERVERS, "leaves: {leaves}");
        let (since, key) = (net.now, net.key(6));
        net.kill(6);
        let claimed = net.run_until(5 * SECOND, |net| {
            let claims = net.claims(since).into_iter();
            let about = claims.filter(|(_, claim)| claim.subject == key);
            let accusers: BTreeSet<_> = about.map(|(_, claim)| claim.accuser).collect();
            accusers.len() >= ACCUSERS_MIN
        });
        assert!(claimed, "leaves: {leaves}");
    }
}

/// Scenario 31, of the agent alone: who is back at once after a crash, and was watched for
/// long before, is not accused for what its observers knew of the start before.
#[test]
fn who_restarts_after_a_crash_is_brought_down_by_nobody() {
    for seed in 40..46 {
        let mut net = Net::formed(seed, 3, 20);
        net.run(2 * NEVER_REACHED_AFTER);
        let (since, key) = (net.now, net.key(6));
        net.restart(6, Generation(1_800_000_000_000), 6);
        net.run(20 * SECOND);
        let down = net.events(since).find(|(_, _, event)| {
            matches!(event, Event::StateChanged { key: about, to: MemberState::Suspect | MemberState::Down, .. } if *about == key)
        });
        assert!(down.is_none(), "seed {seed}: {down:?}");
        assert_eq!(net.who_differs(6, MemberState::Alive), [0; 0]);
    }
}

/// Scenario 10.
#[test]
fn restarts_in_a_loop_leave_one_member() {
    let mut net = Net::formed(10, 3, 8);
    for i in 0..400_u64 {
        net.restart(6, Generation(1_700_000_100_000 + i), 6);
        net.run(Duration::from_millis(700));
    }
    net.run(20 * SECOND);
    for &i in &[0, 1, 2, 3, 6, 9] {
        let stats = net.nodes[i].mesh.stats();
        assert_eq!((stats.members, stats.members_alive), (10, 10), "at {i}");
        assert!(stats.news_queue < 100);
    }
    assert_eq!(net.who_differs(6, MemberState::Alive), [0; 0]);
}

/// Scenario 8.
#[test]
fn a_new_node_takes_over_a_dead_ones_address() {
    let mut net = Net::formed(11, 3, 8);
    net.kill(6);
    net.run(2 * SECOND);
    let heir = net.add(Role::Agent);
    let generation = net.nodes[heir].record.generation;
    net.restart(heir, generation, 6);
    net.run(30 * SECOND);
    assert_eq!(net.who_differs(6, MemberState::Down), [0; 0]);
    assert_eq!(net.who_differs(heir, MemberState::Alive), [0; 0]);
    let told = net
        .events(Moment::ORIGIN)
        .any(|(_, _, event)| matches!(event, Event::AddressConflict { .. }));
    assert!(told);
}

/// Scenario 16.
#[test]
fn after_a_suspension_nobody_is_judged_by_timers_that_fired_late() {
    for frozen in [0, 5] {
        let mut net = Net::formed(12, 3, 17);
        net.freeze(frozen);
        net.run(60 * SECOND);
        let since = net.now;
        net.thaw(frozen);
        net.run(30 * SECOND);
        let key = net.key(frozen);
        let claims = net.nodes[frozen]
            .events
            .iter()
            .filter(|(at, _)| *at >= since);
        let wrong: Vec<_> = claims
            .filter(|(_, event)| match event {
                Event::Missed { .. } => true,
                Event::Claim(claim) => claim.subject != key && claim.accuser == key,
                Event::StateChanged { to, .. } => !matches!(to, MemberState::Alive),
                _ => false,
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(
            net.who_differs(frozen, MemberState::Alive),
            [0; 0],
            "it is back"
        );
        assert_eq!(net.nodes[frozen].mesh.stats().suspensions, 1);
    }
}

/// Scenario 17.
#[test]
fn halves_of_a_split_mesh_find_each_other_again() {
    let mut net = Net::formed(13, 3, 17);
    let (left, right): (Vec<_>, Vec<_>) = (0..20).partition(|i| i % 2 == 0);
    net.split(&left, &right);
    net.run(600 * SECOND);
    net.cut.clear();
    let one = net.run_until(120 * SECOND, |net| {
        (0..20).all(|i| net.who_differs(i, MemberState::Alive).is_empty())
    });
    assert!(one);
}

/// All aggregators are rolled at once: whoever they come back as, the mesh finds them where
/// it found them at first.
#[test]
fn aggregators_that_all_left_are_found_again() {
    let mut net = Net::formed(16, 3, 17);
    for aggregator in 0..3 {
        net.input(aggregator, Input::Leave);
        net.kill(aggregator);
    }
    net.run(10 * SECOND);
    for aggregator in 0..3 {
        net.restart(aggregator, Generation(1_800_000_000_000), aggregator);
    }
    let one = net.run_until(40 * SECOND, |net| {
        (0..20).all(|i| net.who_differs(i, MemberState::Alive).is_empty())
    });
    assert!(one);
}

/// The gentle sister of scenario 2: everybody loses one datagram in twenty.
#[test]
fn loss_brings_nobody_down() {
    let mut net = Net::formed(14, 3, 17);
    let since = net.now;
    net.loss = 0.05;
    net.run(600 * SECOND);
    let down: Vec<_> = net
        .events(since)
        .filter(|(_, _, event)| {
            matches!(
                event,
                Event::StateChanged {
                    to: MemberState::Down,
                    ..
                }
            )
        })
        .collect();
    assert!(down.is_empty(), "{down:?}");
    let misses: u64 = net.nodes.iter().map(|node| node.mesh.stats().misses).sum();
    let claims = net.claims(since);
    let accusations = claims
        .iter()
        .filter(|(_, claim)| claim.finding != Finding::Answered);
    // Each aggregator hears each: three times as many as were made.
    let made = accusations.count() as u64 / 3;
    assert!(
        misses > 500 && made * 10 < misses,
        "{made} accusations, {misses} misses"
    );
}

#[test]
fn an_aggregator_passes_on_what_its_agents_say_and_never_back() {
    let mut net = Net::formed(15, 3, 30);
    let since = net.now;
    let report = SelfReport {
        node: net.key(4),
        generation: net.nodes[4].record.generation,
        age_ms: 0,
        kubelet_healthz: Check::Passing,
        kubelet_port: Check::Failing,
        api: Check::Passing,
    };
    net.input(4, Input::SelfReport(report.clone()));
    net.run(2 * SECOND);
    for aggregator in 0..3 {
        let heard: Vec<_> = net.nodes[aggregator]
            .events
            .iter()
            .filter_map(|(at, event)| match event {
                Event::Report(report) if *at >= since => Some(report),
                _ => None,
            })
            .collect();
        let [one] = heard[..] else {
            panic!("{aggregator} heard {heard:?}");
        };
        assert_eq!(one.kubelet_port, Check::Failing);
        assert!(one.age_ms < 1_000);
    }
}

#[test]
fn the_judges_word_reaches_everybody_and_the_member_takes_it_back() {
    let mut net = Net::formed(16, 3, 30);
    let (subject, generation) = (net.key(9), net.nodes[9].record.generation);
    let verdict = |down| Input::Verdict {
        subject,
        generation,
        down,
    };
    // An agent has no judge.
    net.input(12, verdict(true));
    assert_eq!(net.nodes[12].mesh.stats().dropped_role, 1);
    net.kill(9);
    net.run(Duration::from_millis(3_500));
    net.input(0, verdict(true));
    let down = net.run_until(2 * SECOND, |net| {
        net.who_differs(9, MemberState::Down).is_empty()
    });
    assert!(down, "{:?}", net.who_differs(9, MemberState::Down));
    net.run(SECOND);
    net.input(0, verdict(false));
    let alive = net.run_until(2 * SECOND, |net| {
        net.who_differs(9, MemberState::Alive).is_empty()
    });
    assert!(alive);
    // Whom the judge takes back is watched again, and if it is dead missed again.
    assert!(net.run_until(SECOND, |net| watchers(net, 9) == OBSERVERS));
}

#[test]
fn a_living_member_refutes_its_death() {
    let mut net = Net::formed(17, 3, 30);
    let (subject, generation) = (net.key(9), net.nodes[9].record.generation);
    net.input(
        0,
        Input::Verdict {
            subject,
            generation,
            down: true,
        },
    );
    let back = net.run_until(60 * SECOND, |net| {
        net.who_differs(9, MemberState::Alive).is_empty()
            && net.nodes[0]
                .mesh
                .member(subject)
                .is_some_and(|member| member.incarnation > Incarnation(0))
    });
    assert!(back);
    assert!(
        net.nodes[9]
            .events
            .iter()
            .any(|(_, event)| matches!(event, Event::Refuted { .. }))
    );
}

#[test]
fn anti_entropy_heals_a_lost_update() {
    let mut net = Net::formed(18, 3, 27);
    // Somebody far away, so that no link tells of it.
    let far = (0..30).find(|&i| i != 7 && !net.nodes[7].mesh.links.is_up(net.key(i)));
    let far = far.unwrap();
    let key = net.key(far);
    net.nodes[7].mesh.forget(key);
    assert_eq!(net.state(7, far), None);
    let known = net.run_until(20 * SECOND, |net| {
        net.state(7, far) == Some(MemberState::Alive)
    });
    assert!(known);
    net.run(60 * SECOND);
    let digest = |i: usize| net.nodes[i].mesh.digest();
    assert!(
        (0..30).all(|i| digest(i) == digest(0)),
        "one table everywhere"
    );
}

/// Of a member that news told of before the memory came a judge must know when it was heard,
/// or it takes it for one that never had an agent.
#[test]
fn restarted_aggregators_are_told_when_a_member_was_heard_that_news_told_of_first() {
    let mut net = Net::formed(24, 3, 17);
    let (dead, key) = (9, net.key(9));
    for aggregator in 0..3 {
        net.kill(aggregator);
    }
    net.run(2 * SECOND);
    net.kill(dead);
    net.run(2 * SECOND);
    let restart = net.now;
    net.restart(0, Generation(1_800_000_000_000), 0);
    // The first agent's news of it comes before any memory.
    let linked = |net: &Net| (3..20).find(|&i| net.nodes[0].mesh.links.is_up(net.key(i)));
    assert!(net.run_until(60 * SECOND, |net| linked(net).is_some()));
    assert_eq!(net.state(0, dead), None);
    let agent = linked(&net).unwrap();
    let from = net.key(agent);
    // It introduces itself first, as it would.
    let joined = [agent, dead].map(|i| Update::Joined {
        record: net.nodes[i].mesh.me.clone(),
        incarnation: Incarnation(0),
    });
    let news = Frame::Gossip(Bounded::fill(&mut joined.into_iter()));
    let heard = Input::Frame { from, frame: news };
    net.nodes[0].mesh.handle(net.now, heard);
    assert_eq!(net.state(0, dead), Some(MemberState::Alive));
    assert!(net.run_until(60 * SECOND, |net| {
        let mut events = net.events(restart).filter(|&(_, i, _)| i == 0);
        events.any(
            |(_, _, event)| matches!(event, Event::Remembered { key: about, .. } if *about == key),
        )
    }));
}

/// A node dies while every aggregator is away: the next ones hear of it from those who stayed.
#[test]
fn restarted_aggregators_are_told_whom_the_mesh_gave_up_without_them() {
    let mut net = Net::formed(24, 3, 17);
    let (dead, key) = (9, net.key(9));
    for aggregator in 0..3 {
        net.kill(aggregator);
    }
    net.kill(dead);
    let death = net.now;
    // Three aggregators and the dead one are gone for everybody who stayed.
    assert!(net.run_until(60 * SECOND, |net| {
        (3..20).all(|i| i == dead || net.state(i, dead) == Some(MemberState::Down))
    }));
    let restart = net.now;
    for aggregator in 0..3 {
        // Their seeds are each other, so those who stayed come to them.
        let generation = Generation(1_800_000_000_000);
        net.restart(aggregator, generation, aggregator);
    }
    let told = |net: &Net, aggregator: usize, about: MemberKey| {
        let remembered = |event: &Event| match event {
            Event::Remembered {
                key, state, heard, ..
            } if *key == about => Some((*state, *heard)),
            _ => None,
        };
        let mut events = net.events(restart).filter(|&(_, i, _)| i == aggregator);
        events.find_map(|(at, _, event)| remembered(event).map(|told| (at, told)))
    };
    assert!(net.run_until(120 * SECOND, |net| {
        (0..3).all(|aggregator| told(net, aggregator, key).is_some())
    }));
    for aggregator in 0..3 {
        let (at, (state, heard)) = told(&net, aggregator, key).unwrap();
        assert_eq!(state, MemberState::Down);
        assert!(heard + SECOND >= at.since(death), "{heard:?}");
        assert_eq!(
            net.state(aggregator, dead),
            None,
            "it does not enter tables"
        );
        // Of the living it is told beside their joining, and after it.
        let events: Vec<_> = net.nodes[aggregator].events.iter().collect();
        for (i, (_, event)) in events.iter().enumerate() {
            if let Event::Remembered {
                key,
                state: MemberState::Alive,
                ..
            } = event
            {
                let joined = |(_, event): &&(Moment, Event)| matches!(event, Event::Joined { key: joined, .. } if joined == key);
                assert!(events[..i].iter().any(joined));
            }
        }
    }
    let agents_told = net
        .events(Moment::ORIGIN)
        .any(|(_, i, event)| i >= 3 && matches!(event, Event::Remembered { .. }));
    assert!(!agents_told, "agents have no judge");
}

#[test]
fn a_bad_frame_changes_nothing_and_is_counted() {
    let mut net = Net::formed(19, 1, 4);
    let since = net.now;
    let report = |node| SelfReport {
        node,
        generation: Generation(0),
        age_ms: 0,
        kubelet_healthz: Check::Failing,
        kubelet_port: Check::Failing,
        api: Check::Failing,
    };
    let (other, liar, stranger) = (net.key(2), net.key(3), MemberKey(77));
    let mut future = net.nodes[2].record.clone();
    future.generation = Generation(u64::MAX);
    let future = Update::Joined {
        record: future.into(),
        incarnation: Incarnation(0),
    };
    let unknown = Update::Changed {
        subject: stranger,
        generation: Generation(0),
        incarnation: Incarnation(0),
        state: MemberState::Down,
        by: liar,
    };
    let leave = Leave {
        generation: Generation(5),
        incarnation: Incarnation(0),
    };
    for frame in [
        Frame::Reports(Bounded::fill(
            &mut [report(other), report(liar)].into_iter(),
        )),
        Frame::Gossip(Bounded::fill(&mut [future, unknown].into_iter())),
        Frame::ProbeRequest(ProbeRequest {
            seq: 0,
            subject: stranger,
            silent_ms: 0,
        }),
        Frame::ProbeReport(ProbeReport {
            seq: 0,
            subject: other,
            outcome: ProbeOutcome::NotReached,
        }),
        Frame::Leave(leave),
        Frame::Verify(Verify {
            round: 0,
            subjects: Bounded::new(),
        }),
    ] {
        net.forge(3, 0, frame);
    }
    net.run(5 * SECOND);
    assert_quiet(&net, since);
    let stats = net.nodes[0].mesh.stats();
    assert_eq!(stats.dropped_role, 1, "a report about another");
    assert_eq!(
        stats.dropped_generation, 3,
        "a report, a record and a goodbye"
    );
    assert_eq!(stats.dropped_unknown, 2);
    assert_eq!(stats.dropped_unasked, 2);
}

#[test]
fn active_verification_probes_whom_it_is_told_to() {
    let mut net = Net::formed(20, 3, 30);
    net.kill(9);
    let mesh = |net: &Net, i: usize| net.nodes[i].probed.clone();
    for (token, about) in [(1, 8), (2, 9), (3, 10)] {
        let subject = net.key(about);
        net.input(0, Input::ProbeNow { subject, token });
    }
    net.input(
        0,
        Input::ProbeNow {
            subject: MemberKey(77),
            token: 4,
        },
    );
    net.run(3 * SECOND);
    let mut outcomes = mesh(&net, 0);
    outcomes.sort_by_key(|&(token, _)| token);
    let expected = [
        (1, ProbeOutcome::Reached),
        (2, ProbeOutcome::NotReached),
        (3, ProbeOutcome::Reached),
        (4, ProbeOutcome::NoStatement),
    ];
    assert_eq!(outcomes, expected);
}

/// Two thirds of the members die at once: whoever watches them still says so, about them alone.
#[test]
fn a_failing_rack_silences_nobody() {
    let mut net = Net::formed(21, 3, 57);
    let death = net.now;
    let dead: Vec<_> = (20..60).collect();
    for &i in &dead {
        net.kill(i);
    }
    net.run(15 * SECOND);
    let claims = net.claims(death);
    let keys: BTreeSet<_> = dead.iter().map(|&i| net.key(i)).collect();
    for &i in &dead {
        let key = net.key(i);
        let accusers: BTreeSet<_> = claims
            .iter()
            .filter(|(_, c)| c.subject == key)
            .map(|(_, c)| c.accuser)
            .collect();
        let observers = net.nodes[0].mesh.table.observers_of(key);
        let observed = observers.iter().any(|observer| !keys.contains(observer));
        assert_eq!(!accusers.is_empty(), observed, "{i}");
    }
    let missed = |claim: &Claim| matches!(claim.finding, Finding::Missed { .. });
    let wronged: Vec<_> = claims
        .iter()
        .filter(|(_, c)| missed(c) && !keys.contains(&c.subject))
        .collect();
    assert!(wronged.is_empty(), "{wronged:?}");
}

#[test]
fn equal_seeds_make_equal_runs() {
    let run = |seed| {
        let mut net = Net::with_seeds(seed, 3);
        net.trace = Some(DefaultHasher::new());
        net.loss = 0.1;
        for i in 0..14 {
            net.add(if i < 3 { Role::Aggregator } else { Role::Agent });
        }
        net.run(20 * SECOND);
        net.kill(5);
        net.run(20 * SECOND);
        net.trace.take().unwrap().finish()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_mesh_of_three_hundred_forms_within_thirty_seconds() {
    let mut net = Net::formed(22, 3, 0);
    for _ in 0..297 {
        net.add(Role::Agent);
    }
    let formed = net.run_until(30 * SECOND, |net| {
        net.nodes
            .iter()
            .all(|node| node.mesh.stats().members == 299)
    });
    assert!(formed);
    net.run(30 * SECOND);
    let since = net.now;
    net.run(10 * SECOND);
    assert_eq!(net.claims(since), []);
    for node in &net.nodes {
        let stats = node.mesh.stats();
        assert!(stats.links >= stats.subjects, "{stats:?}");
    }
}

/// Members that were made knowing each other are a mesh like one that formed by itself.
#[test]
fn members_that_start_knowing_each_other_are_at_rest_and_notice_a_death() {
    let mut net = Net::placed(28, 3, 57);
    net.run(20 * SECOND);
    let since = net.now;
    net.run(20 * SECOND);
    assert_quiet(&net, since);
    for i in net.living() {
        assert_eq!(watchers(&net, i), OBSERVERS, "of {i}");
        let stats = net.nodes[i].mesh.stats();
        assert_eq!((stats.joins, stats.foca_errors), (0, 0));
    }
    net.kill(30);
    assert!(net.run_until(15 * SECOND, |net| {
        net.who_differs(30, MemberState::Down).is_empty()
    }));
}
