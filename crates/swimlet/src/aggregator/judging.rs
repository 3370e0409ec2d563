//! The task that owns the judge: evidence from the mesh and from the API server
//! in, questions and decisions out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
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
    AnswerSeen, Ask, Decision, Finding, Input, Judge, MemberChange, NodeRef, NodeSeen, Output,
    SeenShare, Verdict, WriteOutcome,
};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::view::{self, Question};
use crate::agent;
use crate::follow::{Follower, What};
use crate::member::driver::Event;
use crate::member::handle::Handle;
use crate::member::verifier::Verifier;

/// Verifications of our own and look-ups under way at once: some seconds' worth of rounds
/// of every aggregator, each round of a mass failure in some tens of requests.
const JOBS_MAX: usize = 256;
/// A wake-up later than this means that the process did not run, or barely. A busy
/// machine is late by some tenths of a second; the shortest persistence is a second.
const PAUSED: Duration = Duration::from_secs(1);
/// What the driver needs then to read the packets that the kernel has queued.
const CATCH_UP: Duration = Duration::from_millis(100);
/// How often the judge's gauges are shown, and the other aggregators are told what we see.
const VIEW_EVERY: Duration = Duration::from_secs(5);
/// The same after Nodes have come, gone or moved.
const VIEW_SOON: Duration = Duration::from_secs(1);

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
    nodes: BTreeMap<NodeName, NodeSeen>,
    /// Every aggregator that the mesh knows, gone ones too: it may come back.
    aggregators: BTreeMap<MemberKey, Aggregator>,
    /// Nodes that are to be written as unreachable, with the episode and the agent's key;
    /// the mesh is told when it is done. One entry a Node at most, because a decision that
    /// the writer replaced or dropped is never reported.
    unreachable: BTreeMap<NodeName, (u64, MemberKey)>,
    nodes_changed: bool,
    view_due: Moment,
}

/// An aggregator of the mesh, this one included.
struct Aggregator {
    record: MemberRecord,
    host: Option<NodeName>,
    gone: bool,
}

/// What the task takes up next.
enum Next {
    Stop,
    Edge(Input),
    Member(Event),
    Done(Result<Option<Input>, JoinError>),
    Question(Question),
    Wake,
}

impl Judging {
    /// A task over these parts.
    pub(crate) fn new(parts: Parts) -> Self {
        let clock = parts.member.clock();
        Self {
            parts,
            clock,
            jobs: JoinSet::new(),
            nodes: BTreeMap::new(),
            aggregators: BTreeMap::new(),
            unreachable: BTreeMap::new(),
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
            let wake = self.parts.judge.next_wake();
            let wake = wake.map_or(self.view_due, |wake| wake.min(self.view_due));
            let next = self.next(wake, &stop).await;
            self.notice_pause(wake).await;
            match next {
                Next::Stop => return,
                Next::Edge(input) => self.on_edge(input).await,
                Next::Member(event) => self.on_member(event),
                Next::Done(Ok(Some(input))) => self.feed(input),
                Next::Done(Ok(None)) => {}
                Next::Done(Err(error)) => warn!(%error, "a job of the judge failed"),
                Next::Question(question) => {
                    let answer = view::answer(&self.parts.judge, self.clock.now());
                    // Who asked may be gone.
                    let _ = question.reply.send(answer);
                }
                Next::Wake => self.feed(Input::Wake),
            }
        }
    }

    async fn next(&mut self, wake: Moment, stop: &CancellationToken) -> Next {
        tokio::select! {
            biased;
            () = stop.cancelled() => Next::Stop,
            Some(input) = self.parts.edge_events.recv() => Next::Edge(input),
            Some(event) = self.parts.member_events.recv() => Next::Member(event),
            Some(done) = self.jobs.join_next() => Next::Done(done),
            Some(question) = self.parts.questions.recv() => Next::Question(question),
            () = sleep_until(self.clock.instant(wake)) => Next::Wake,
        }
    }

    /// Tells the judge of a pause before anything else: what ripened while this process
    /// did not run is no evidence, and answers may wait unread.
    async fn notice_pause(&mut self, wake: Moment) {
        let missed = self.clock.now().since(wake);
        if missed > PAUSED {
            warn!(
                missed_ms = missed.as_millis(),
                "this process did not run; evidence starts anew"
            );
            self.feed(Input::Suspended { missed });
            sleep(CATCH_UP).await;
        }
    }

    fn feed(&mut self, input: Input) {
        self.parts.judge.handle(self.clock.now(), input);
    }

    async fn on_edge(&mut self, input: Input) {
        match &input {
            Input::Node(node) => self.see_node(node),
            // A late word about an older object of that name is none about this one.
            Input::NodeGone(node) if self.is_current(node) => {
                self.nodes.remove(&node.name);
                self.unreachable.remove(&node.name);
                self.nodes_changed = true;
            }
            Input::Leadership(leads) => {
                info!(leads, "leadership changed");
                self.follow(|| What::Leads(*leads));
                metrics::gauge!(catalogue::LEADER).set(f64::from(u8::from(*leads)));
            }
            Input::Written {
                node,
                episode,
                outcome,
            } => self.tell_mesh(&node.name, *episode, *outcome).await,
            _ => {}
        }
        if self.nodes_changed {
            // Nodes come by the thousand when the watch starts: what follows from all of
            // them is worked out once for many.
            self.view_due = self.view_due.min(self.clock.now() + VIEW_SOON);
        }
        self.feed(input);
    }

    fn is_current(&self, node: &NodeRef) -> bool {
        let seen = self.nodes.get(&node.name);
        seen.is_some_and(|seen| seen.node == *node)
    }

    fn see_node(&mut self, node: &NodeSeen) {
        let old = self.nodes.insert(node.node.name.clone(), node.clone());
        self.nodes_changed |= old.is_none_or(|old| {
            old.addresses != node.addresses
                || old.kubelet_port != node.kubelet_port
                || old.agentless != node.agentless
        });
    }

    /// Lets the mesh drop its links to a node once it is written, and not before: an
    /// attempt that has to be repeated needs them for its evidence.
    async fn tell_mesh(&mut self, node: &NodeName, episode: u64, outcome: WriteOutcome) {
        let Some((_, key)) = self
            .unreachable
            .get(node)
            .copied()
            .filter(|(decided, _)| *decided == episode)
        else {
            return;
        };
        self.unreachable.remove(node);
        if matches!(outcome, WriteOutcome::Written | WriteOutcome::WouldWrite) {
            self.parts.member.verdict(key, true).await;
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
            Event::Members(members) => self.note_all(members),
        }
    }

    /// Takes note of every member anew, after events were lost.
    fn note_all(&mut self, members: Vec<(MemberRecord, MemberKey, MemberState)>) {
        for (record, key, state) in members {
            self.note_member(key, &record, None);
            self.note_state(key, state);
        }
    }

    fn note_state(&mut self, key: MemberKey, state: MemberState) {
        match state {
            MemberState::Alive | MemberState::Suspect => {}
            MemberState::Down => self.note_gone(key, MemberChange::Gone),
            MemberState::Left => self.note_gone(key, MemberChange::Left),
        }
    }

    fn on_mesh(&mut self, event: MeshEvent) {
        agent::tell(&event);
        self.follow(|| What::Mesh(event.clone()));
        match event {
            // That a member joined says nothing of when it was heard.
            MeshEvent::Joined { key, record } => self.note_member(key, &record, None),
            MeshEvent::Remembered {
                key,
                record,
                state,
                heard,
            } => {
                self.note_member(key, &record, Some(heard));
                self.note_state(key, state);
            }
            MeshEvent::Left { key } => self.note_gone(key, MemberChange::Left),
            MeshEvent::StateChanged {
                key,
                to: MemberState::Down,
                ..
            } => self.note_gone(key, MemberChange::Gone),
            MeshEvent::Forgotten { key } => {
                self.note_gone(key, MemberChange::Gone);
                self.aggregators.remove(&key);
            }
            MeshEvent::StateChanged {
                key,
                from: MemberState::Down | MemberState::Left,
                to: MemberState::Alive,
                ..
            } => self.note_return(key),
            MeshEvent::Suspended { late } => self.feed(Input::Suspended { missed: late }),
            MeshEvent::Claim(claim) => self.feed(claimed(&claim)),
            MeshEvent::Report(report) => self.feed(reported(&report)),
            _ => {}
        }
    }

    fn note_member(&mut self, key: MemberKey, record: &MemberRecord, heard: Option<Duration>) {
        let aggregator = record.role == Role::Aggregator;
        let host = aggregator.then(|| self.host_of(key, record)).flatten();
        if aggregator {
            let entry = Aggregator {
                record: record.clone(),
                host: host.clone(),
                gone: false,
            };
            self.aggregators.insert(key, entry);
        }
        self.feed(Input::Member {
            key,
            change: MemberChange::Joined,
            aggregator,
            host,
            heard_age: heard,
        });
    }

    /// A member is there again in the generation that we knew.
    fn note_return(&mut self, key: MemberKey) {
        match self.aggregators.get(&key).map(|known| known.record.clone()) {
            Some(record) => self.note_member(key, &record, Some(Duration::ZERO)),
            None => self.feed(Input::Member {
                key,
                change: MemberChange::Joined,
                aggregator: false,
                host: None,
                heard_age: Some(Duration::ZERO),
            }),
        }
    }

    fn note_gone(&mut self, key: MemberKey, change: MemberChange) {
        let known = self.aggregators.get_mut(&key);
        let aggregator = known.map(|known| known.gone = true).is_some();
        self.feed(Input::Member {
            key,
            change,
            aggregator,
            host: None,
            heard_age: None,
        });
    }

    /// The Node that an aggregator runs on: it uses its host's addresses. Unknown if
    /// two Nodes have that address.
    fn host_of(&self, key: MemberKey, record: &MemberRecord) -> Option<NodeName> {
        if key == self.parts.member.key() && self.parts.host.is_some() {
            return self.parts.host.clone();
        }
        let ips: Vec<_> = record.addresses.iter().map(SocketAddr::ip).collect();
        let has_one = |node: &&NodeSeen| node.addresses.iter().any(|ip| ips.contains(ip));
        let mut hosts = self.nodes.values().filter(has_one);
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.node.name.clone()),
            _ => None,
        }
    }

    /// Finds the aggregators' hosts anew: Nodes have come, gone, or changed addresses.
    fn place_aggregators(&mut self) {
        let moved = self.aggregators.iter().filter(|(_, known)| !known.gone);
        let moved: Vec<_> = moved
            .filter(|(key, known)| self.host_of(**key, &known.record) != known.host)
            .map(|(key, known)| (*key, known.record.clone()))
            .collect();
        for (key, record) in moved {
            self.note_member(key, &record, None);
        }
    }

    /// Does everything the judge asks for.
    async fn act(&mut self) {
        while let Some(output) = self.parts.judge.poll() {
            match output {
                Output::Decide(decision) => self.decide(*decision),
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
                        self.ask(round, ask).await;
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

    fn decide(&mut self, decision: Decision) {
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
            let entry = (decision.episode, key);
            self.unreachable.insert(node.name.clone(), entry);
        }
        self.follow(|| What::Decided(Box::new(decision.clone())));
        if let Err(failed) = self.parts.edge.decide(decision) {
            self.feed(*failed);
        }
    }

    /// Asks one verifier. Requests to others are handed to the driver, which never waits
    /// for this task; our own verification runs beside it.
    async fn ask(&mut self, round: u32, ask: Ask) {
        let subjects = Bounded::fill(&mut ask.subjects.into_iter());
        let request = Verify { round, subjects };
        if ask.verifier == self.parts.member.key() {
            let (verifier, me) = (self.parts.verifier.clone(), ask.verifier);
            self.spawn(async move { Some(verified(me, verifier.verify(request).await)) });
        } else {
            let frame = Frame::Verify(request);
            self.parts.member.send(ask.verifier, frame).await;
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
        let now = self.clock.now();
        if now < self.view_due {
            return;
        }
        self.view_due = now + VIEW_EVERY;
        if std::mem::take(&mut self.nodes_changed) {
            self.place_aggregators();
            self.show_ports();
        }
        let brakes = self.parts.judge.brakes();
        view::show_gauges(&self.parts.judge);
        view::show_edge(self.parts.edge.stats());
        self.parts.edge.stand(self.parts.judge.may_stand());
        let seen = Frame::View(View {
            alive: brakes.seen.alive,
            of: brakes.seen.of,
        });
        let me = self.parts.member.key();
        for (other, known) in &self.aggregators {
            if *other != me && !known.gone {
                self.parts.member.send(*other, seen.clone()).await;
            }
        }
    }

    /// Every kubelet port, for the sweep.
    fn show_ports(&self) {
        let served = |node: &&NodeSeen| node.kubelet_port != 0 && !node.agentless;
        let of = |node: &NodeSeen| {
            let (name, port) = (node.node.name.clone(), node.kubelet_port);
            let addresses = node.addresses.clone().into_iter();
            addresses.map(move |ip| (SocketAddr::new(ip, port), name.clone()))
        };
        let ports = self.nodes.values().filter(served).flat_map(of).collect();
        self.parts.ports.send_replace(Arc::new(ports));
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
