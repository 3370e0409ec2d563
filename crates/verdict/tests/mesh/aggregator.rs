//! An aggregator's judge: what the mesh says goes in, what it asks for is done.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use swimlet_mesh::{Event, Input as MeshInput};
use swimlet_protocol::frame::{Claim, Finding as Found, SelfReport, Verified, Verify, View};
use swimlet_protocol::{
    Bounded, Frame, MemberKey, MemberRecord, MemberState, Moment, NodeName, Role,
};
use swimlet_verdict::{
    AnswerSeen, Config, Decision, Finding, Input, Judge, MemberChange, NodeSeen, Output, SeenShare,
    Verdict, WatchHealth,
};

use crate::member::heard_now;
use crate::net::{Decided, Net};

/// How often aggregators tell each other how much they see.
const VIEW_EVERY: Duration = Duration::from_secs(5);

/// The judge and what stands around it.
pub(crate) struct Court {
    pub(crate) judge: Judge,
    nodes: BTreeMap<NodeName, NodeSeen>,
    aggregators: BTreeMap<MemberKey, MemberRecord>,
    wake: Option<Moment>,
}

impl Court {
    /// Every Node's addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.values().flat_map(|node| node.addresses.clone())
    }

    /// The Node that an aggregator runs on: it uses its host's addresses.
    fn host_of(&self, record: &MemberRecord) -> Option<NodeName> {
        let runs_on = |node: &&NodeSeen| {
            let mut own = record.addresses.iter().map(SocketAddr::ip);
            own.any(|ip| node.addresses.contains(&ip))
        };
        let node = self.nodes.values().find(runs_on)?;
        Some(node.node.name.clone())
    }
}

impl Net {
    /// A new judge, which lists the Nodes.
    pub(crate) fn convene(&mut self, member: usize) {
        let key = self.members[member].key;
        let record = self.members[member].record.clone();
        self.members[member].court = Some(Court {
            judge: Judge::new(self.now, Config::new(key)),
            nodes: BTreeMap::new(),
            aggregators: BTreeMap::new(),
            wake: None,
        });
        self.note_member(member, key, &record, None);
        let listed = self.random(Duration::from_secs(2));
        self.after_at(member, listed, move |net| {
            for host in 0..net.hosts.len() {
                let seen = net.node(host);
                net.on_node(member, seen);
            }
            net.judge(member, Input::NodeWatch(WatchHealth::Fresh));
            net.judge(member, Input::NodesListed);
        });
        self.after_at(member, VIEW_EVERY, move |net| net.show_view(member));
    }

    pub(crate) fn adjourn(&mut self, member: usize) {
        let court = self.members[member].court.as_mut();
        if let Some(at) = court.and_then(|court| court.wake.take()) {
            self.judge_wakes.remove(&(at, member));
        }
    }

    /// Gives an aggregator the election's Lease, or takes it.
    pub(crate) fn lead(&mut self, member: usize, leads: bool) {
        self.judge(member, Input::Leadership(leads));
    }

    pub(crate) fn judge(&mut self, member: usize, input: Input) {
        if !self.members[member].running {
            return;
        }
        let Some(court) = &mut self.members[member].court else {
            return;
        };
        court.judge.handle(self.now, input);
        let mut outputs = Vec::new();
        while let Some(output) = court.judge.poll() {
            outputs.push(output);
        }
        let wake = court.judge.next_wake();
        let before = std::mem::replace(&mut court.wake, wake);
        self.judge_wakes
            .remove(&(before.unwrap_or_default(), member));
        self.judge_wakes.extend(wake.map(|at| (at, member)));
        for output in outputs {
            self.note(member, &output);
            self.do_for_judge(member, output);
        }
    }

    /// A direct answer, link or frame of that member arrived.
    pub(crate) fn heard(&mut self, member: usize, key: MemberKey) {
        self.news(member, heard_now(key));
    }

    pub(crate) fn on_verified(&mut self, member: usize, by: MemberKey, answers: Verified) {
        self.news(member, verified(by, answers));
    }

    pub(crate) fn on_view(&mut self, member: usize, by: MemberKey, view: View) {
        let seen = SeenShare {
            alive: view.alive,
            of: view.of,
        };
        self.news(
            member,
            Input::PeerView {
                aggregator: by,
                seen,
            },
        );
    }

    /// The Node watch shows a Node.
    pub(crate) fn on_node(&mut self, member: usize, seen: NodeSeen) {
        let Some(court) = &mut self.members[member].court else {
            return;
        };
        let new = court
            .nodes
            .insert(seen.node.name.clone(), seen.clone())
            .is_none();
        self.judge(member, Input::Node(seen));
        if new {
            // An aggregator that joined before its Node was seen gets its host now.
            let court = self.members[member].court.as_ref().unwrap();
            for (key, record) in court.aggregators.clone() {
                self.note_member(member, key, &record, None);
            }
        }
    }

    pub(crate) fn on_mesh(&mut self, member: usize, event: Event) {
        if self.members[member].court.is_none() {
            return;
        }
        self.after_at(member, Duration::ZERO, move |net| match event {
            Event::Joined { key, record } => {
                net.note_member(member, key, &record, Some(Duration::ZERO));
            }
            Event::Left { key } => net.note_change(member, key, MemberChange::Left),
            Event::StateChanged {
                key,
                to: MemberState::Down,
                ..
            }
            | Event::Forgotten { key } => net.note_change(member, key, MemberChange::Gone),
            Event::StateChanged {
                key,
                from: MemberState::Down | MemberState::Left,
                to: MemberState::Alive,
                ..
            } => net.note_change(member, key, MemberChange::Joined),
            Event::Claim(claim) => net.judge(member, claimed(&claim)),
            Event::Report(report) => net.judge(member, reported(&report)),
            _ => {}
        });
    }

    /// Something for the judge's task, which takes it after what came before.
    fn news(&mut self, member: usize, input: Input) {
        if self.members[member].court.is_some() {
            self.after_at(member, Duration::ZERO, move |net| net.judge(member, input));
        }
    }

    fn note_member(
        &mut self,
        member: usize,
        key: MemberKey,
        record: &MemberRecord,
        heard: Option<Duration>,
    ) {
        let court = self.members[member].court.as_mut().unwrap();
        let aggregator = record.role == Role::Aggregator;
        if aggregator {
            court.aggregators.insert(key, record.clone());
        }
        let host = aggregator.then(|| court.host_of(record)).flatten();
        self.judge(
            member,
            Input::Member {
                key,
                change: MemberChange::Joined,
                aggregator,
                host,
                heard_age: heard,
            },
        );
    }

    fn note_change(&mut self, member: usize, key: MemberKey, change: MemberChange) {
        let court = self.members[member].court.as_mut().unwrap();
        let aggregator = match change {
            MemberChange::Joined => court.aggregators.contains_key(&key),
            MemberChange::Left | MemberChange::Gone => court.aggregators.remove(&key).is_some(),
        };
        self.judge(
            member,
            Input::Member {
                key,
                change,
                aggregator,
                host: None,
                heard_age: None,
            },
        );
    }

    fn do_for_judge(&mut self, member: usize, output: Output) {
        match output {
            Output::Decide(decision) => self.decided(member, *decision),
            Output::Observe { subject } => self.after_at(member, Duration::ZERO, move |net| {
                let observers = net.members[member].mesh.observers_of(subject);
                net.judge(member, Input::Observers { subject, observers });
            }),
            Output::Verify { round, asks } => {
                for ask in asks {
                    let subjects = Bounded::fill(&mut ask.subjects.into_iter());
                    let request = Verify { round, subjects };
                    let verifier = self.keys[&ask.verifier];
                    self.after_at(member, Duration::ZERO, move |net| {
                        if verifier == member {
                            net.verify(member, member, request);
                        } else {
                            net.send_or_dial(member, verifier, Frame::Verify(request));
                        }
                    });
                }
            }
            Output::ReadLease(node) => self.read_lease(member, node),
            other @ (Output::StepDown { .. } | Output::Notice(_)) => {
                self.announced.push(other);
            }
        }
    }

    fn decided(&mut self, member: usize, decision: Decision) {
        self.decisions.push(Decided {
            at: self.now,
            by: member,
            node: self.host_of(&decision.node.name),
            decision: decision.clone(),
        });
        let court = self.members[member].court.as_ref().unwrap();
        let subject = court.nodes.get(&decision.node.name).map(|node| node.key);
        let mesh = &self.members[member].mesh;
        let known = subject.and_then(|subject| mesh.member(subject));
        let generation = known.map(|known| known.record.generation);
        if let (Verdict::Unreachable, Some(subject), Some(generation)) =
            (decision.verdict, subject, generation)
        {
            self.after_at(member, Duration::ZERO, move |net| {
                net.feed(
                    member,
                    MeshInput::Verdict {
                        subject,
                        generation,
                        down: true,
                    },
                );
            });
        }
        self.carry_to_api(member, decision);
    }

    fn show_view(&mut self, member: usize) {
        let court = self.members[member].court.as_ref().unwrap();
        let seen = court.judge.brakes().seen;
        let others: Vec<_> = court.aggregators.keys().copied().collect();
        let view = Frame::View(View {
            alive: seen.alive,
            of: seen.of,
        });
        for other in others {
            let other = self.keys[&other];
            if other != member {
                self.send_or_dial(member, other, view.clone());
            }
        }
        self.after_at(member, VIEW_EVERY, move |net| net.show_view(member));
    }
}

fn claimed(claim: &Claim) -> Input {
    Input::Claim {
        accuser: claim.accuser,
        subject: claim.subject,
        finding: match claim.finding {
            Found::Missed { silent_ms, .. } => Finding::Missed {
                silent: millis(silent_ms),
            },
            Found::Answered => Finding::Answered,
        },
        age: millis(claim.age_ms),
        health: claim.health,
    }
}

fn reported(report: &SelfReport) -> Input {
    Input::Report {
        node: report.node,
        age: millis(report.age_ms),
        kubelet_healthz: report.kubelet_healthz,
        kubelet_port: report.kubelet_port,
        api: report.api,
    }
}

fn verified(verifier: MemberKey, answers: Verified) -> Input {
    let seen = |answer: swimlet_protocol::frame::Answer| AnswerSeen {
        subject: answer.subject,
        index: answer.index,
        agent: answer.agent,
        agent_baseline: answer.agent_baseline,
        port: answer.port,
        port_baseline: answer.port_baseline,
    };
    Input::Verified {
        verifier,
        round: answers.round,
        health: answers.health,
        answers: answers.answers.into_iter().map(seen).collect(),
    }
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}
