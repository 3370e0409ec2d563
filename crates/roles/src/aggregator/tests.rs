use std::net::IpAddr;

use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::frame::VerifySubject;
use swimlet_protocol::{ClusterId, Generation, MemberState, Role};
use swimlet_verdict::table::{Agent, Heartbeats, Port};
use swimlet_verdict::{Config as JudgeConfig, Evidence, Rule, WatchHealth};

use super::*;

const START: Moment = Moment::from_micros(1_000_000);

fn cluster() -> ClusterId {
    "test".parse().unwrap()
}

fn record(role: Role, index: u8) -> MemberRecord {
    let address = SocketAddr::from(([10, 0, 0, index], 10_271));
    MemberRecord {
        role,
        name: format!("n{index}").parse().unwrap(),
        generation: Generation(1_700_000_000_000),
        zone: "a".parse().unwrap(),
        addresses: Bounded::fill(&mut std::iter::once(address)),
        kubelet_port: 0,
    }
}

fn key(role: Role, index: u8) -> MemberKey {
    record(role, index).key(&cluster())
}

fn aggregator() -> Aggregator {
    let me = record(Role::Aggregator, 1);
    let config = Config {
        judge: JudgeConfig::new(me.key(&cluster())),
        record: me,
        host: None,
    };
    let mut aggregator = Aggregator::new(START, config);
    hand(&mut aggregator, START, Input::Wake);
    aggregator
}

fn node(index: u8, address: u8) -> NodeSeen {
    let name: NodeName = format!("n{index}").parse().unwrap();
    NodeSeen {
        key: MemberKey::of(&cluster(), Role::Agent, &name),
        node: NodeRef {
            uid: format!("uid-{name}").into(),
            name,
        },
        zone: "a".parse().unwrap(),
        addresses: vec![IpAddr::from([10, 0, 0, address])],
        kubelet_port: 10_250,
        ready: None,
        hold: false,
        deleting: false,
        lifecycle: Vec::new(),
        agentless: false,
    }
}

fn seen(node: NodeSeen) -> Input {
    Input::Edge(News::Node(node))
}

fn joined(role: Role, index: u8) -> Input {
    Input::Member(Event::Mesh(MeshEvent::Joined {
        key: key(role, index),
        record: record(role, index).into(),
    }))
}

fn hand(aggregator: &mut Aggregator, now: Moment, input: Input) -> Vec<Output> {
    aggregator.handle(now, input);
    std::iter::from_fn(|| aggregator.poll()).collect()
}

/// What it does within `time` from `from` on, without news.
fn wait(aggregator: &mut Aggregator, from: Moment, time: Duration) -> Vec<Output> {
    let mut outputs = Vec::new();
    while aggregator.next_wake() <= from + time {
        let now = aggregator.next_wake().max(from);
        outputs.extend(hand(aggregator, now, Input::Wake));
    }
    outputs
}

fn decision(subject: &NodeSeen, verdict: Verdict) -> Box<Decision> {
    Box::new(Decision {
        node: subject.node.clone(),
        episode: 4,
        verdict,
        evidence: Evidence {
            began: START,
            stood: Duration::from_secs(4),
            ready: None,
            agent: Agent::Silent,
            port: Port::Silent,
            heartbeats: Heartbeats::Silent,
            heartbeats_silent: Duration::from_secs(4),
            witnesses: Vec::new(),
            need: 2,
            rounds: 2,
            weakness: None,
            lifecycle: Vec::new(),
        },
        rule: Rule::NoPacketFromHost,
    })
}

fn swept(outputs: &[Output]) -> Vec<Vec<KubeletPort>> {
    let ports = |output: &Output| match output {
        Output::Member(member::Input::Sweep(ports)) => Some(ports.clone()),
        _ => None,
    };
    outputs.iter().filter_map(ports).collect()
}

fn verdicts(outputs: &[Output]) -> Vec<(MemberKey, bool)> {
    let verdict = |output: &Output| match output {
        Output::Member(member::Input::Verdict { subject, down }) => Some((*subject, *down)),
        _ => None,
    };
    outputs.iter().filter_map(verdict).collect()
}

/// To whom views were sent.
fn shown(outputs: &[Output]) -> Vec<MemberKey> {
    let to = |output: &Output| match output {
        Output::Member(member::Input::Send {
            to,
            frame: Frame::View(_),
        }) => Some(*to),
        _ => None,
    };
    outputs.iter().filter_map(to).collect()
}

/// The links to a node are evidence until its condition stands in the API server: a
/// write that failed is tried again, and needs them.
#[test]
fn the_mesh_hears_of_a_death_when_it_is_written_and_not_before() {
    let subject = node(2, 2);
    let written = |episode, outcome| {
        Input::Edge(News::Written {
            node: subject.node.clone(),
            episode,
            outcome,
        })
    };
    let decided = || {
        let mut aggregator = aggregator();
        hand(&mut aggregator, START, seen(subject.clone()));
        let entry = (4, subject.key);
        aggregator
            .unreachable
            .insert(subject.node.name.clone(), entry);
        aggregator
    };
    for outcome in [WriteOutcome::Written, WriteOutcome::WouldWrite] {
        let mut aggregator = decided();
        let other = hand(&mut aggregator, START, written(3, outcome));
        assert_eq!(verdicts(&other), [], "another episode's");
        let outputs = hand(&mut aggregator, START, written(4, outcome));
        assert_eq!(verdicts(&outputs), [(subject.key, true)], "{outcome:?}");
        let again = hand(&mut aggregator, START, written(4, outcome));
        assert_eq!(verdicts(&again), []);
    }
    for outcome in [
        WriteOutcome::Superseded,
        WriteOutcome::Conflict,
        WriteOutcome::Gone,
        WriteOutcome::Failed,
    ] {
        let outputs = hand(&mut decided(), START, written(4, outcome));
        assert_eq!(verdicts(&outputs), [], "{outcome:?}");
    }
    let mut gone = decided();
    let deleted = News::NodeGone(subject.node.clone());
    hand(&mut gone, START, Input::Edge(deleted));
    let outputs = hand(&mut gone, START, written(4, WriteOutcome::Written));
    assert_eq!(verdicts(&outputs), [], "of a Node that is gone");
}

/// Guards a living host's links: what became of a withdrawn decision, or of another verdict
/// of the same episode, tells the mesh nothing.
#[test]
fn a_decision_that_was_replaced_tells_the_mesh_nothing() {
    let subject = node(2, 2);
    for verdict in [Verdict::Alive, Verdict::KubeletDown] {
        let mut aggregator = aggregator();
        hand(&mut aggregator, START, seen(subject.clone()));
        aggregator.decide(decision(&subject, Verdict::Unreachable));
        aggregator.decide(decision(&subject, verdict));
        let written = Input::Edge(News::Written {
            node: subject.node.clone(),
            episode: 4,
            outcome: WriteOutcome::Written,
        });
        let outputs = hand(&mut aggregator, START, written);
        assert_eq!(verdicts(&outputs), [], "{verdict:?}");
    }
}

/// Scenario 9: a late word about an older object of that name is none about this one.
#[test]
fn an_older_node_of_that_name_takes_nothing_away() {
    let mut aggregator = aggregator();
    let mut old = node(2, 2);
    old.node.uid = "older".into();
    hand(&mut aggregator, START, seen(node(2, 2)));
    hand(
        &mut aggregator,
        START,
        Input::Edge(News::NodeGone(old.node)),
    );
    assert!(aggregator.nodes.contains_key(&node(2, 2).node.name));
}

#[test]
fn the_sweep_follows_the_nodes() {
    let mut aggregator = aggregator();
    let mut now = START;
    let mut unserved = node(3, 3);
    unserved.kubelet_port = 0;
    let mut agentless = node(4, 4);
    agentless.agentless = true;
    for node in [node(2, 2), unserved, agentless] {
        hand(&mut aggregator, now, seen(node));
    }
    let outputs = wait(&mut aggregator, now, VIEW_SOON);
    let wanted = KubeletPort {
        address: SocketAddr::from(([10, 0, 0, 2], 10_250)),
        node: node(2, 2).node.name,
    };
    assert_eq!(swept(&outputs), [vec![wanted]]);
    now += VIEW_SOON;
    // A heartbeat changes the object and none of this.
    let mut held = node(2, 2);
    held.hold = true;
    hand(&mut aggregator, now, seen(held));
    let outputs = wait(&mut aggregator, now, VIEW_EVERY * 2);
    assert_eq!(swept(&outputs), Vec::<Vec<KubeletPort>>::new());
    now += VIEW_EVERY * 2;
    let gone = News::NodeGone(node(2, 2).node);
    hand(&mut aggregator, now, Input::Edge(gone));
    let outputs = wait(&mut aggregator, now, VIEW_SOON);
    assert_eq!(swept(&outputs), [vec![]]);
}

fn host_of(aggregator: &Aggregator, index: u8) -> Option<String> {
    let known = &aggregator.aggregators[&key(Role::Aggregator, index)];
    known.host.as_ref().map(ToString::to_string)
}

/// An aggregator is no witness beside the agent of its own host, so its host must be
/// known; of two Nodes with its address it may be either.
#[test]
fn an_aggregator_is_placed_by_its_address() {
    let mut aggregator = aggregator();
    hand(&mut aggregator, START, joined(Role::Aggregator, 2));
    assert_eq!(host_of(&aggregator, 2), None, "no Node was seen yet");
    hand(&mut aggregator, START, seen(node(7, 2)));
    wait(&mut aggregator, START, VIEW_SOON);
    assert_eq!(host_of(&aggregator, 2).as_deref(), Some("n7"));
    let now = START + VIEW_SOON;
    hand(&mut aggregator, now, seen(node(8, 2)));
    wait(&mut aggregator, now, VIEW_SOON);
    assert_eq!(host_of(&aggregator, 2), None, "two Nodes have its address");
}

#[test]
fn an_aggregator_that_was_told_its_host_keeps_it() {
    let me = record(Role::Aggregator, 1);
    let config = Config {
        judge: JudgeConfig::new(me.key(&cluster())),
        record: me,
        host: Some("told".parse().unwrap()),
    };
    let mut aggregator = Aggregator::new(START, config);
    hand(&mut aggregator, START, seen(node(7, 1)));
    wait(&mut aggregator, START, VIEW_SOON);
    assert_eq!(host_of(&aggregator, 1).as_deref(), Some("told"));
}

#[test]
fn other_aggregators_are_told_what_is_seen_while_they_are_there() {
    let mut aggregator = aggregator();
    let other = key(Role::Aggregator, 2);
    hand(&mut aggregator, START, joined(Role::Aggregator, 2));
    hand(&mut aggregator, START, joined(Role::Agent, 3));
    let mut now = START;
    let mut next = |aggregator: &mut Aggregator| {
        let outputs = wait(aggregator, now, VIEW_EVERY);
        now += VIEW_EVERY;
        shown(&outputs)
    };
    assert_eq!(next(&mut aggregator), [other]);
    let changed = |from, to| {
        Input::Member(Event::Mesh(MeshEvent::StateChanged {
            key: other,
            from,
            to,
            by: None,
        }))
    };
    let (alive, down) = (MemberState::Alive, MemberState::Down);
    hand(&mut aggregator, START, changed(alive, down));
    assert_eq!(next(&mut aggregator), []);
    hand(&mut aggregator, START, changed(down, alive));
    assert_eq!(next(&mut aggregator), [other]);
    let forgotten = MeshEvent::Forgotten { key: other };
    hand(
        &mut aggregator,
        START,
        Input::Member(Event::Mesh(forgotten)),
    );
    assert_eq!(next(&mut aggregator), []);
}

#[test]
fn a_round_goes_to_the_verifiers_and_our_own_part_to_our_own_member() {
    let mut aggregator = aggregator();
    let other = key(Role::Agent, 2);
    let subject = VerifySubject {
        subject: key(Role::Agent, 3),
        kubelet: SocketAddr::from(([10, 0, 0, 3], 10_250)),
    };
    let ask = |verifier| Ask {
        verifier,
        subjects: vec![subject],
    };
    let asks = vec![ask(aggregator.me), ask(other)];
    aggregator.grant(Wish::Verify { round: 9, asks });
    let outputs: Vec<_> = std::iter::from_fn(|| aggregator.poll()).collect();
    let [
        Output::Round {
            subjects,
            verifiers: 2,
        },
        Output::Member(member::Input::Verify(own)),
        Output::Member(member::Input::Send {
            to,
            frame: Frame::Verify(theirs),
        }),
    ] = &outputs[..]
    else {
        panic!("{outputs:?}");
    };
    assert_eq!((&subjects[..], *to), (&[subject.subject][..], other));
    assert_eq!((own, own.round), (theirs, 9));
}

/// Scenarios 16 and 21: what ripened while this process did not run is no evidence.
#[test]
fn a_pause_is_noticed_before_anything_else_is_taken() {
    let mut aggregator = aggregator();
    let fresh = News::NodeWatch(WatchHealth::Fresh);
    let wake = aggregator.next_wake();
    assert!(!aggregator.is_late(wake + PAUSED));
    hand(&mut aggregator, wake + PAUSED, Input::Edge(fresh.clone()));
    assert_eq!(aggregator.stats().pauses, 0);
    let late = aggregator.next_wake() + PAUSED + Duration::from_millis(1);
    assert!(aggregator.is_late(late));
    let before = aggregator.judge().stats().suspensions;
    hand(&mut aggregator, late, Input::Edge(fresh));
    assert_eq!(aggregator.stats().pauses, 1);
    assert_eq!(aggregator.judge().stats().suspensions, before + 1);
    assert!(!aggregator.is_late(late), "it is said once");
}

/// Events were lost: the whole picture makes up for them.
#[test]
fn a_census_makes_up_for_lost_events() {
    let mut aggregator = aggregator();
    let entry = |index, state| {
        let record = record(Role::Aggregator, index);
        (record.into(), key(Role::Aggregator, index), state)
    };
    let census = vec![
        entry(2, MemberState::Alive),
        entry(3, MemberState::Down),
        entry(4, MemberState::Left),
    ];
    let lost = Input::Member(Event::Members(census));
    hand(&mut aggregator, START, lost);
    let mut here: Vec<_> = aggregator.aggregators().collect();
    here.sort_unstable();
    let mut wanted = vec![key(Role::Aggregator, 1), key(Role::Aggregator, 2)];
    wanted.sort_unstable();
    assert_eq!(here, wanted);
}
