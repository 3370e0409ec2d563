use swimlet_protocol::frame::VerifySubject;
use swimlet_protocol::{Bounded, Generation, Incarnation};

use super::*;

const START: Moment = Moment::from_micros(1_000_000);

fn cluster() -> ClusterId {
    "test".parse().unwrap()
}

fn record(role: Role, index: u8) -> MemberRecord {
    let address = SocketAddr::from(([10, 0, 0, index], 10_270));
    MemberRecord {
        role,
        name: format!("n{index}").parse().unwrap(),
        generation: Generation(1_700_000_000_000),
        zone: "a".parse().unwrap(),
        addresses: Bounded::fill(&mut std::iter::once(address)),
        kubelet_port: if role == Role::Agent { 10_250 } else { 0 },
    }
}

fn identity(record: &MemberRecord) -> Identity {
    Identity {
        cluster: cluster(),
        role: record.role,
        name: record.name.clone(),
    }
}

fn member(role: Role) -> Member {
    let config = swimlet_mesh::Config {
        cluster: cluster(),
        me: record(role, 1),
        seed: 7,
        seeds: Vec::new(),
        peers: Vec::new(),
    };
    Member::new(START, config)
}

/// A peer's link comes up.
fn link(member: &mut Member, now: Moment, peer: &MemberRecord) -> Vec<Output> {
    let up = MeshInput::LinkUp {
        peer: identity(peer),
        addresses_seen: peer.addresses[0],
    };
    hand(member, now, Input::Mesh(up))
}

/// A peer introduces itself, without a link that stays.
fn introduce(member: &mut Member, now: Moment, peer: &MemberRecord) {
    let asked = MeshInput::SyncRequested {
        from: identity(peer),
        token: 1,
        request: SyncRequest {
            record: peer.clone().into(),
            incarnation: Incarnation(0),
            digest: 0,
            ranges: Bounded::default(),
        },
    };
    hand(member, now, Input::Mesh(asked));
}

fn hand(member: &mut Member, now: Moment, input: Input) -> Vec<Output> {
    member.handle(now, input);
    std::iter::from_fn(|| member.poll()).collect()
}

fn verify(round: u32, subject: MemberKey) -> Frame {
    let subject = VerifySubject {
        subject,
        kubelet: SocketAddr::from(([10, 0, 0, 9], 10_250)),
    };
    Frame::Verify(Verify {
        round,
        subjects: Bounded::fill(&mut std::iter::once(subject)),
    })
}

fn said(from: &MemberRecord, frame: Frame) -> Input {
    Input::Mesh(MeshInput::Frame {
        from: from.key(&cluster()),
        frame,
    })
}

fn verified_sent(outputs: &[Output]) -> Vec<(MemberKey, Verified)> {
    let sent = |output: &Output| match output {
        Output::Send {
            to,
            frame: Frame::Verified(answers),
        } => Some((*to, answers.clone())),
        _ => None,
    };
    outputs.iter().filter_map(sent).collect()
}

/// A taken-over node must not be able to make others knock at ports.
#[test]
fn only_an_aggregator_may_ask_for_verification() {
    let mut me = member(Role::Agent);
    let (agent, aggregator) = (record(Role::Agent, 2), record(Role::Aggregator, 3));
    link(&mut me, START, &agent);
    link(&mut me, START, &aggregator);
    let ask = verify(1, MemberKey(99));
    let outputs = hand(&mut me, START, said(&agent, ask.clone()));
    let by = agent.key(&cluster());
    assert_eq!(outputs, [Output::Event(Event::Refused { by })]);
    let outputs = hand(&mut me, START, said(&aggregator, ask));
    let [Output::CheckPort { token, node, .. }] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(*node, None, "nobody of that key is known");
    // A member that is not known is not probed, and is not said to be silent.
    let answer = PortAnswer::Refuses;
    let token = *token;
    let outputs = hand(&mut me, START, Input::Checked { token, answer });
    let sent = verified_sent(&outputs);
    let [(to, answers)] = &sent[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(*to, aggregator.key(&cluster()));
    assert_eq!(answers.answers[0].port, PortAnswer::Refuses);
    let untried = swimlet_protocol::frame::AgentAnswer::Untried;
    assert_eq!(answers.answers[0].agent, untried);
}

/// How much of the cluster is seen decides who leads: that is the aggregators' affair.
#[test]
fn only_an_aggregators_view_counts() {
    let mut me = member(Role::Aggregator);
    let (agent, aggregator) = (record(Role::Agent, 2), record(Role::Aggregator, 3));
    link(&mut me, START, &agent);
    link(&mut me, START, &aggregator);
    let view = View { alive: 1, of: 2 };
    let outputs = hand(&mut me, START, said(&agent, Frame::View(view)));
    assert_eq!(outputs, []);
    let by = aggregator.key(&cluster());
    let outputs = hand(&mut me, START, said(&aggregator, Frame::View(view)));
    assert_eq!(outputs, [Output::Event(Event::View { by, view })]);
}

fn rounds_sent(outputs: &[Output]) -> Vec<u32> {
    let round = |output: &Output| match output {
        Output::Send {
            frame: Frame::Verify(request),
            ..
        } => Some(request.round),
        _ => None,
    };
    outputs.iter().filter_map(round).collect()
}

#[test]
fn a_frame_without_a_link_waits_for_one_and_the_newest_alone() {
    let mut me = member(Role::Aggregator);
    let peer = record(Role::Agent, 2);
    let to = peer.key(&cluster());
    introduce(&mut me, START, &peer);
    for round in 1..=2 {
        let frame = verify(round, to);
        let outputs = hand(&mut me, START, Input::Send { to, frame });
        let dialled = Output::Dial {
            peer: identity(&peer),
            addresses: peer.addresses.to_vec(),
        };
        assert_eq!(outputs, [dialled]);
    }
    let outputs = link(&mut me, START + UNSENT_AGE_MAX, &peer);
    assert_eq!(rounds_sent(&outputs), [2]);
    let frame = verify(3, to);
    let outputs = hand(&mut me, START, Input::Send { to, frame });
    assert_eq!(rounds_sent(&outputs), [3], "over the link that stands");
}

#[test]
fn a_frame_that_waited_too_long_is_not_sent() {
    let peer = record(Role::Agent, 2);
    let to = peer.key(&cluster());
    let waiting = || {
        let mut me = member(Role::Aggregator);
        introduce(&mut me, START, &peer);
        let frame = verify(1, to);
        hand(&mut me, START, Input::Send { to, frame });
        me
    };
    let mut late = waiting();
    let after = START + UNSENT_AGE_MAX + Duration::from_millis(1);
    assert_eq!(rounds_sent(&link(&mut late, after, &peer)), []);
    let mut failed = waiting();
    let failure = MeshInput::DialFailed { peer: to };
    hand(&mut failed, START, Input::Mesh(failure));
    assert_eq!(rounds_sent(&link(&mut failed, START, &peer)), []);
}

#[test]
fn an_aggregators_own_verification_is_answered_to_itself() {
    let mut me = member(Role::Aggregator);
    let Frame::Verify(request) = verify(5, MemberKey(99)) else {
        panic!("a request");
    };
    let outputs = hand(&mut me, START, Input::Verify(request));
    let [Output::CheckPort { token, .. }] = outputs[..] else {
        panic!("{outputs:?}");
    };
    let answer = PortAnswer::Silent;
    let outputs = hand(&mut me, START, Input::Checked { token, answer });
    let [Output::Event(Event::Verified { by, answers })] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!((*by, answers.round), (me.key(), 5));
}

#[test]
fn a_port_is_checked_in_the_name_of_its_node() {
    let mut me = member(Role::Agent);
    let (subject, aggregator) = (record(Role::Agent, 2), record(Role::Aggregator, 3));
    introduce(&mut me, START, &subject);
    link(&mut me, START, &aggregator);
    let ask = verify(1, subject.key(&cluster()));
    let outputs = hand(&mut me, START, said(&aggregator, ask));
    let named = outputs.iter().any(|output| {
        matches!(output, Output::CheckPort { node: Some(name), .. } if *name == subject.name)
    });
    assert!(named, "{outputs:?}");
}
