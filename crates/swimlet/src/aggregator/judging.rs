//! The task that owns the judge: evidence from the mesh and from the API server
//! in, questions and decisions out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use swimlet_cluster::EdgeHandle;
use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::frame::{Claim, Finding as Found, SelfReport, Verified, Verify, View};
use swimlet_protocol::{
    Bounded, Frame, MemberKey, MemberRecord, MemberState, Moment, NodeName, Role,
};
use swimlet_telemetry::{Clock, catalogue};
use swimlet_verdict::{
    AnswerSeen, Ask, Brake, Decision, Finding, Input, Judge, MemberChange, NodeSeen, Output,
    SeenShare, Verdict,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::view::{self, Answer, Question};
use crate::agent;
use crate::follow::{Follower, What};
use crate::member::driver::{Event, Handle};
use crate::member::verifier::Verifier;

/// Verification rounds and lookups under way at once. A round a second of at most
/// a second each, from every aggregator, with room for mass failures.
const JOBS_MAX: usize = 256;
/// How often the judge's gauges are shown, and the other aggregators are told what we see.
const VIEW_EVERY: Duration = Duration::from_secs(5);

/// Kubelet ports to be reached for the baseline, with their nodes' names.
pub(crate) type Ports = Arc<Vec<(SocketAddr, NodeName)>>;

/// What the task is made of.
pub(crate) struct Parts {
    pub(crate) judge: Judge,
    pub(crate) member: Handle,
    pub(crate) record: MemberRecord,
    pub(crate) host: Option<NodeName>,
    pub(crate) verifier: Verifier,
    pub(crate) member_events: mpsc::Receiver<Event>,
    pub(crate) edge: EdgeHandle,
    pub(crate) edge_events: mpsc::Receiver<Input>,
    pub(crate) questions: mpsc::Receiver<Question>,
    pub(crate) ports: watch::Sender<Ports>,
    pub(crate) follower: Follower,
}

/// The task itself.
pub(crate) struct Judging {
    parts: Parts,
    clock: Clock,
    jobs: JoinSet<Option<Input>>,
    /// Every Node's addresses, to find the host of an aggregator.
    hosts: BTreeMap<IpAddr, NodeName>,
    nodes: BTreeMap<NodeName, NodeSeen>,
    aggregators: BTreeMap<MemberKey, MemberRecord>,
    nodes_changed: bool,
    view_due: Moment,
}

impl Judging {
    /// A task over these parts.
    pub(crate) fn new(parts: Parts) -> Self {
        let clock = parts.member.clock();
        Self {
            parts,
            clock,
            jobs: JoinSet::new(),
            hosts: BTreeMap::new(),
            nodes: BTreeMap::new(),
            aggregators: BTreeMap::new(),
            nodes_changed: false,
            view_due: Moment::ORIGIN,
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let me = self.parts.record.clone();
        self.note_member(self.parts.member.key(), &me, None);
        loop {
            self.act().await;
            self.show().await;
            let wake = self
                .parts
                .judge
                .next_wake()
                .map_or(self.view_due, |w| w.min(self.view_due));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(input) = self.parts.edge_events.recv() => self.on_edge(input),
                Some(event) = self.parts.member_events.recv() => self.on_member(event),
                Some(done) = self.jobs.join_next() => match done {
                    Ok(Some(input)) => self.feed(input),
                    Ok(None) => {}
                    Err(error) => warn!(%error, "a job of the judge failed"),
                },
                Some(question) = self.parts.questions.recv() => self.answer(question),
                () = sleep_until(self.clock.instant(wake)) => self.feed(Input::Wake),
            }
        }
    }

    fn feed(&mut self, input: Input) {
        self.parts.judge.handle(self.clock.now(), input);
    }

    fn on_edge(&mut self, input: Input) {
        match &input {
            Input::Node(node) => {
                for address in &node.addresses {
                    self.hosts.insert(*address, node.node.name.clone());
                }
                self.nodes_changed |= self
                    .nodes
                    .insert(node.node.name.clone(), node.clone())
                    .is_none_or(|old| {
                        old.addresses != node.addresses || old.kubelet_port != node.kubelet_port
                    });
            }
            Input::NodeGone(node) => {
                self.nodes.remove(&node.name);
                self.hosts.retain(|_, name| *name != node.name);
                self.nodes_changed = true;
            }
            Input::Leadership(leads) => {
                info!(leads, "leadership changed");
                self.follow(|| What::Leads(*leads));
                metrics::gauge!(catalogue::LEADER).set(f64::from(u8::from(*leads)));
            }
            _ => {}
        }
        self.feed(input);
        if self.nodes_changed {
            // An aggregator that joined before its Node was seen gets its host now.
            for (key, record) in self.aggregators.clone() {
                self.note_member(key, &record, None);
            }
        }
    }

    fn on_member(&mut self, event: Event) {
        match event {
            Event::Heard(node) => self.feed(Input::Heard {
                node,
                age: Duration::ZERO,
            }),
            Event::VerifyAsked { by, request } => {
                let verifier = self.parts.verifier.clone();
                self.spawn(async move {
                    verifier.answer(by, request).await;
                    None
                });
            }
            Event::Verified { by, answers } => self.feed(verified(by, answers)),
            Event::View { by, view } => self.feed(Input::PeerView {
                aggregator: by,
                seen: SeenShare {
                    alive: view.alive,
                    of: view.of,
                },
            }),
            Event::Mesh(event) => self.on_mesh(event),
        }
    }

    fn on_mesh(&mut self, event: MeshEvent) {
        agent::tell(&event);
        self.follow(|| What::Mesh(event.clone()));
        match event {
            MeshEvent::Joined { key, record } => {
                self.note_member(key, &record, Some(Duration::ZERO))
            }
            MeshEvent::Left { key } => self.note_change(key, MemberChange::Left),
            MeshEvent::StateChanged {
                key,
                to: MemberState::Down,
                ..
            }
            | MeshEvent::Forgotten { key } => self.note_change(key, MemberChange::Gone),
            MeshEvent::StateChanged {
                key,
                from: MemberState::Down | MemberState::Left,
                to: MemberState::Alive,
                ..
            } => self.note_change(key, MemberChange::Joined),
            MeshEvent::Claim(claim) => self.feed(claimed(&claim)),
            MeshEvent::Report(report) => self.feed(reported(&report)),
            _ => {}
        }
    }

    fn note_member(&mut self, key: MemberKey, record: &MemberRecord, heard: Option<Duration>) {
        let aggregator = record.role == Role::Aggregator;
        if aggregator {
            self.aggregators.insert(key, record.clone());
        }
        let host = aggregator.then(|| self.host_of(key, record)).flatten();
        self.feed(Input::Member {
            key,
            change: MemberChange::Joined,
            aggregator,
            host,
            heard_age: heard,
        });
    }

    /// The Node that an aggregator runs on: it uses its host's addresses.
    fn host_of(&self, key: MemberKey, record: &MemberRecord) -> Option<NodeName> {
        if key == self.parts.member.key() && self.parts.host.is_some() {
            return self.parts.host.clone();
        }
        let mut addresses = record.addresses.iter().map(SocketAddr::ip);
        addresses.find_map(|ip| self.hosts.get(&ip).cloned())
    }

    fn note_change(&mut self, key: MemberKey, change: MemberChange) {
        let aggregator = match change {
            MemberChange::Joined => self.aggregators.contains_key(&key),
            MemberChange::Left | MemberChange::Gone => self.aggregators.remove(&key).is_some(),
        };
        self.feed(Input::Member {
            key,
            change,
            aggregator,
            host: None,
            heard_age: None,
        });
    }

    /// Does everything the judge asks for.
    async fn act(&mut self) {
        while let Some(output) = self.parts.judge.poll() {
            match output {
                Output::Decide(decision) => self.decide(*decision).await,
                Output::Observe { subject } => {
                    let member = self.parts.member.clone();
                    self.spawn(async move {
                        let observers = member.observers_of(subject).await;
                        Some(Input::Observers { subject, observers })
                    });
                }
                Output::Verify { round, asks } => {
                    self.follow(|| round_of(&asks));
                    for ask in asks {
                        self.ask(round, ask);
                    }
                }
                Output::ReadLease(node) => {
                    if let Err(failed) = self.parts.edge.read_lease(node) {
                        self.feed(*failed);
                    }
                }
                Output::StepDown { reason } => {
                    warn!(?reason, "releasing the Lease");
                    self.parts.edge.step_down();
                }
                Output::Notice(notice) => {
                    warn!(?notice, "the judge wants this known");
                    view::count(&notice);
                }
            }
        }
    }

    async fn decide(&mut self, decision: Decision) {
        let Decision {
            node,
            verdict,
            rule,
            evidence,
            ..
        } = &decision;
        let verdict = *verdict;
        metrics::counter!(catalogue::DECISIONS, "verdict" => verdict.as_str()).increment(1);
        if verdict.reason().is_some() {
            metrics::histogram!(catalogue::DETECTION, "verdict" => verdict.as_str())
                .record(evidence.stood.as_secs_f64());
            info!(node = %node.name, %verdict, %rule, evidence = evidence.summary(), "decided");
        } else {
            debug!(node = %node.name, %verdict, %rule, "decided");
        }
        let key = self.nodes.get(&node.name).map(|seen| seen.key);
        if let (Some(key), Verdict::Unreachable) = (key, verdict) {
            self.parts.member.verdict(key, true).await;
        }
        self.follow(|| What::Decided(Box::new(decision.clone())));
        if let Err(failed) = self.parts.edge.decide(decision) {
            self.feed(*failed);
        }
    }

    fn ask(&mut self, round: u32, ask: Ask) {
        let subjects = Bounded::fill(&mut ask.subjects.into_iter());
        let request = Verify { round, subjects };
        if ask.verifier == self.parts.member.key() {
            let (verifier, me) = (self.parts.verifier.clone(), ask.verifier);
            self.spawn(async move { Some(verified(me, verifier.verify(request).await)) });
        } else {
            let member = self.parts.member.clone();
            self.spawn(async move {
                member.send(ask.verifier, Frame::Verify(request)).await;
                None
            });
        }
    }

    fn follow(&self, what: impl FnOnce() -> What) {
        self.parts.follower.tell(self.parts.member.key(), what);
    }

    fn spawn(&mut self, job: impl Future<Output = Option<Input>> + Send + 'static) {
        if self.jobs.len() < JOBS_MAX {
            self.jobs.spawn(job);
        } else {
            metrics::counter!(catalogue::QUEUE_DROPS, "queue" => "judge_jobs").increment(1);
        }
    }

    /// Brings gauges, the baseline's ports and the other aggregators up to date.
    async fn show(&mut self) {
        if self.nodes_changed {
            self.nodes_changed = false;
            let ports = self
                .nodes
                .values()
                .filter(|n| n.kubelet_port != 0 && !n.agentless);
            let ports = ports.flat_map(|node| {
                let name = node.node.name.clone();
                let port = node.kubelet_port;
                node.addresses
                    .iter()
                    .map(move |ip| (SocketAddr::new(*ip, port), name.clone()))
            });
            self.parts.ports.send_replace(Arc::new(ports.collect()));
        }
        let now = self.clock.now();
        if now < self.view_due {
            return;
        }
        self.view_due = now + VIEW_EVERY;
        let brakes = self.parts.judge.brakes();
        view::show_gauges(&self.parts.judge);
        view::show_edge(self.parts.edge.stats());
        for (brake, on) in [
            (Brake::Minority, brakes.minority),
            (Brake::Share, brakes.share),
            (Brake::Graded, brakes.graded),
            (Brake::CoveredByNone, brakes.covered_by_none),
        ] {
            metrics::gauge!(catalogue::BRAKE, "brake" => brake.as_str())
                .set(f64::from(u8::from(on)));
        }
        self.parts.edge.stand(self.parts.judge.may_stand());
        let seen = Frame::View(View {
            alive: brakes.seen.alive,
            of: brakes.seen.of,
        });
        let others = self
            .aggregators
            .keys()
            .filter(|key| **key != self.parts.member.key());
        for other in others {
            self.parts.member.send(*other, seen.clone()).await;
        }
    }

    fn answer(&self, question: Question) {
        let answer = |reply: oneshot::Sender<Answer>| {
            drop(reply.send(view::answer(&self.parts.judge, self.clock.now())));
        };
        answer(question.reply);
    }
}

fn round_of(asks: &[Ask]) -> What {
    let subjects: BTreeSet<_> = asks
        .iter()
        .flat_map(|ask| &ask.subjects)
        .map(|s| s.subject)
        .collect();
    What::Round {
        subjects: subjects.into_iter().collect(),
        verifiers: asks.len(),
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
