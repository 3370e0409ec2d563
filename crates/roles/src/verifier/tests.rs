use std::net::SocketAddr;

use swimlet_protocol::frame::{AgentAnswer, VerifySubject};

use super::*;

const WELL: PortAnswer = PortAnswer::Tls { names_node: true };
const ASKER: MemberKey = MemberKey(1);
const START: Moment = Moment::from_micros(1_000_000);

fn subject(index: u64) -> VerifySubject {
    let [.., high, low] = index.to_be_bytes();
    VerifySubject {
        subject: MemberKey(1_000 + index),
        kubelet: SocketAddr::from(([10, 0, high, low], 10_250)),
    }
}

fn request(round: u32, subjects: impl Iterator<Item = u64>) -> Input {
    Input::Asked {
        by: ASKER,
        request: Verify {
            round,
            subjects: Bounded::fill(&mut subjects.map(subject)),
        },
    }
}

fn polled(verifier: &mut Verifier) -> Vec<Output> {
    std::iter::from_fn(|| verifier.poll()).collect()
}

/// Tokens of probes and of port checks that were asked for.
fn tokens(outputs: &[Output]) -> (Vec<u64>, Vec<u64>) {
    let (mut probes, mut checks) = (Vec::new(), Vec::new());
    for output in outputs {
        match output {
            Output::ProbeAgent { token, .. } => probes.push(*token),
            Output::CheckPort { token, .. } => checks.push(*token),
            Output::Subjects | Output::Answer { .. } => {}
        }
    }
    (probes, checks)
}

fn answers(outputs: Vec<Output>) -> Vec<(u32, Vec<Answer>)> {
    let answer = |output| match output {
        Output::Answer { to, round, answers } => {
            assert_eq!(to, ASKER);
            Some((round, answers.into_vec()))
        }
        _ => None,
    };
    outputs.into_iter().filter_map(answer).collect()
}

fn checked(token: u64, answer: PortAnswer) -> Input {
    Input::Checked { token, answer }
}

fn probed(token: u64, outcome: ProbeOutcome, contact_before: Option<Moment>) -> Input {
    Input::Probed {
        token,
        outcome,
        contact_before,
    }
}

/// What a verifier says of one subject that neither probe nor check reaches.
fn silent(verifier: &mut Verifier, now: Moment, contact_before: Option<Moment>) -> Answer {
    verifier.handle(now, request(1, 0..1));
    let (probes, checks) = tokens(&polled(verifier));
    let outcome = ProbeOutcome::NotReached;
    verifier.handle(now, probed(probes[0], outcome, contact_before));
    verifier.handle(now, checked(checks[0], PortAnswer::Silent));
    answers(polled(verifier))[0].1[0]
}

#[test]
fn a_request_is_answered_in_its_order_once_all_tries_are_over() {
    let mut verifier = Verifier::new(START, Role::Agent);
    verifier.handle(START, request(7, 0..3));
    let (probes, checks) = tokens(&polled(&mut verifier));
    assert_eq!((probes.len(), checks.len()), (3, 3));
    for &token in probes.iter().rev() {
        verifier.handle(START, probed(token, ProbeOutcome::Reached, None));
    }
    verifier.handle(START, checked(checks[2], PortAnswer::Refuses));
    verifier.handle(START, checked(checks[0], WELL));
    assert_eq!(polled(&mut verifier), [], "one check is open");
    verifier.handle(START, checked(checks[1], PortAnswer::Accepts));
    let answered = answers(polled(&mut verifier));
    let [(7, found)] = &answered[..] else {
        panic!("{answered:?}");
    };
    let ports: Vec<_> = found.iter().map(|answer| answer.port).collect();
    assert_eq!(ports, [WELL, PortAnswer::Accepts, PortAnswer::Refuses]);
    for (index, answer) in found.iter().enumerate() {
        assert_eq!(usize::from(answer.index), index);
        assert_eq!(answer.subject, subject(index as u64).subject);
        assert_eq!(answer.agent, AgentAnswer::Answers);
        assert!(answer.agent_baseline);
    }
}

/// Scenario 36: only a path that worked lately can fail.
#[test]
fn a_silence_counts_only_over_a_path_that_worked() {
    let mut verifier = Verifier::new(START, Role::Agent);
    let answer = silent(&mut verifier, START, None);
    assert_eq!(
        (answer.agent, answer.port),
        (AgentAnswer::Silent, PortAnswer::Silent)
    );
    assert!(!answer.agent_baseline && !answer.port_baseline);

    verifier.handle(START, request(2, 0..1));
    let (probes, checks) = tokens(&polled(&mut verifier));
    verifier.handle(START, probed(probes[0], ProbeOutcome::Reached, None));
    verifier.handle(START, checked(checks[0], WELL));
    polled(&mut verifier);
    let answer = silent(&mut verifier, START, Some(START));
    assert!(answer.agent_baseline && answer.port_baseline);
    assert_eq!(verifier.paths(START), 1);

    let late = START + crate::baseline::WINDOW + Duration::from_secs(1);
    let answer = silent(&mut verifier, late, Some(START));
    assert!(!answer.agent_baseline && !answer.port_baseline);
}

/// Who is slower than its own timeouts allow is sick itself, and says nothing.
#[test]
fn what_nobody_answers_is_no_silence() {
    let mut verifier = Verifier::new(START, Role::Agent);
    verifier.handle(START, request(1, 0..1));
    let (probes, checks) = tokens(&polled(&mut verifier));
    let end = START + AGENT_TIMEOUT;
    let mut seen = Vec::new();
    while verifier.next_wake() <= end {
        verifier.handle(verifier.next_wake(), Input::Wake);
        seen.extend(polled(&mut verifier));
    }
    let answered = answers(seen);
    let [(1, found)] = &answered[..] else {
        panic!("{answered:?}");
    };
    assert_eq!(found[0].agent, AgentAnswer::Untried);
    assert_eq!(found[0].port, PortAnswer::Untried);
    // What comes later is no answer to anything.
    verifier.handle(end, probed(probes[0], ProbeOutcome::Reached, None));
    verifier.handle(end, checked(checks[0], WELL));
    assert_eq!(answers(polled(&mut verifier)), []);
    assert_eq!(verifier.paths(end), 0);
}

#[test]
fn an_answer_of_the_other_kind_ends_no_try() {
    let mut verifier = Verifier::new(START, Role::Agent);
    verifier.handle(START, request(1, 0..1));
    let (probes, checks) = tokens(&polled(&mut verifier));
    verifier.handle(START, checked(probes[0], WELL));
    verifier.handle(START, probed(checks[0], ProbeOutcome::Reached, None));
    verifier.handle(START, checked(checks[0], WELL));
    assert_eq!(polled(&mut verifier), []);
    verifier.handle(START, probed(probes[0], ProbeOutcome::NoStatement, None));
    assert_eq!(answers(polled(&mut verifier)).len(), 1);
}

#[test]
fn requests_beyond_the_bound_are_refused_and_counted() {
    let mut verifier = Verifier::new(START, Role::Agent);
    for round in 0..10 {
        verifier.handle(START, request(round, 0..1));
    }
    let (probes, _) = tokens(&polled(&mut verifier));
    assert_eq!(probes.len(), REQUESTS_MAX_AGENT);
    assert_eq!(verifier.stats().requests_refused, 2);
}

/// A mass failure: what fits is checked, the rest as soon as there is room, and what
/// waited too long is said to be untried.
#[test]
fn port_checks_are_bounded_and_late_ones_not_made() {
    let mut verifier = Verifier::new(START, Role::Aggregator);
    let size = SUBJECTS_MAX as u64;
    for round in 0..15 {
        let first = u64::from(round) * size;
        verifier.handle(START, request(round, first..first + size));
    }
    let (probes, mut checks) = tokens(&polled(&mut verifier));
    let all = 15 * SUBJECTS_MAX;
    assert_eq!((probes.len(), checks.len()), (all, CHECKS_MAX));
    for token in probes {
        verifier.handle(START, probed(token, ProbeOutcome::NotReached, None));
    }
    let soon = START + Duration::from_millis(100);
    verifier.handle(soon, checked(checks.remove(0), PortAnswer::Silent));
    let next = polled(&mut verifier);
    let [Output::CheckPort { token, limit, .. }] = &next[..] else {
        panic!("{next:?}");
    };
    assert_eq!(*limit, PORT_TIMEOUT - Duration::from_millis(100));
    checks.push(*token);

    let late = START + WAIT_MAX;
    assert_eq!(verifier.next_wake(), late);
    verifier.handle(late, Input::Wake);
    let outputs = polled(&mut verifier);
    assert_eq!(tokens(&outputs).1, [], "it is too late for more");
    // Of some requests nothing was made at all.
    let mut answered = answers(outputs);
    let untried = all - CHECKS_MAX - 1;
    assert_eq!(verifier.stats().checks_untried, untried as u64);
    for token in checks {
        verifier.handle(late, checked(token, PortAnswer::Silent));
        answered.extend(answers(polled(&mut verifier)));
    }
    assert_eq!(answered.len(), 15);
    let found = answered.iter().flat_map(|(_, found)| found);
    let not_made = found.filter(|answer| answer.port == PortAnswer::Untried);
    assert_eq!(not_made.count(), untried);
}

/// The baseline goes on beside any verification, and never floods the cluster.
#[test]
fn the_sweep_has_few_checks_under_way_and_reaches_every_port() {
    let mut verifier = Verifier::new(START, Role::Aggregator);
    let port = |index| KubeletPort {
        address: subject(index).kubelet,
        node: format!("n{index}").parse().unwrap(),
    };
    verifier.handle(START, Input::Sweep((0..200).map(port).collect()));
    let mut open = VecDeque::new();
    let mut reached = std::collections::BTreeSet::new();
    let end = START + Duration::from_secs(62);
    let mut most = 0;
    while verifier.next_wake() <= end {
        let now = verifier.next_wake();
        verifier.handle(now, Input::Wake);
        for output in polled(&mut verifier) {
            if let Output::CheckPort { token, port, .. } = output {
                open.push_back(token);
                reached.insert(port);
            }
        }
        most = most.max(open.len());
        // Answers come only when no more is asked.
        if open.len() >= BASELINE_CHECKS_MAX {
            for token in open.drain(..) {
                verifier.handle(now, checked(token, WELL));
            }
        }
    }
    assert!(most <= BASELINE_CHECKS_MAX, "{most}");
    assert_eq!(reached.len(), 200);
}

/// A check that the edge never answers does not end the baseline.
#[test]
fn a_lost_check_of_a_subject_is_given_up() {
    let mut verifier = Verifier::new(START, Role::Agent);
    let watched = vec![
        KubeletPort {
            address: subject(0).kubelet,
            node: "n0".parse().unwrap(),
        },
        KubeletPort {
            address: subject(1).kubelet,
            node: "n1".parse().unwrap(),
        },
    ];
    let mut asked = Vec::new();
    let end = START + Duration::from_secs(10);
    while verifier.next_wake() <= end {
        let now = verifier.next_wake();
        verifier.handle(now, Input::Wake);
        while let Some(output) = verifier.poll() {
            match output {
                Output::Subjects => verifier.handle(now, Input::Subjects(watched.clone())),
                Output::CheckPort { port, .. } => asked.push(port),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(asked, [subject(0).kubelet, subject(1).kubelet]);
}
