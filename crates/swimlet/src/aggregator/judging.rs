//! The task that drives the aggregator: evidence from the mesh and from the API server
//! in, questions and decisions out.

use std::collections::VecDeque;
use std::time::Duration;

use swimlet_cluster::EdgeHandle;
use swimlet_protocol::Moment;
use swimlet_roles::Aggregator;
use swimlet_roles::aggregator::{Config, Input, Output};
use swimlet_roles::member::{self, Event};
use swimlet_telemetry::{Clock, catalogue};
use swimlet_verdict::{Decision, Input as News};
use tokio::sync::mpsc;
use tokio::time::{sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::view::{self, Question};
use crate::agent;
use crate::follow::{Follower, What};
use crate::member::handle::Handle;

/// What the driver needs after a pause to read the packets that the kernel has queued.
const CATCH_UP: Duration = Duration::from_millis(100);

/// Orders that wait for the member's driver: four rounds of 16,384, which is what the
/// aggregator itself keeps at most. The judge asks again in the next round for what found
/// no room.
const ORDERS_MAX: usize = 65_536;

/// What the task is made of.
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) member: Handle,
    pub(crate) member_events: mpsc::Receiver<Event>,
    pub(crate) edge: EdgeHandle,
    pub(crate) edge_events: mpsc::Receiver<News>,
    pub(crate) questions: mpsc::Receiver<Question>,
    pub(crate) follower: Follower,
}

/// The task itself.
pub(crate) struct Judging {
    aggregator: Aggregator,
    member: Handle,
    member_events: mpsc::Receiver<Event>,
    edge: EdgeHandle,
    edge_events: mpsc::Receiver<News>,
    questions: mpsc::Receiver<Question>,
    follower: Follower,
    clock: Clock,
    orders: Orders,
}

/// Orders for the member that its driver had no room for yet. This task never waits for
/// the driver: a judge that waits comes late to its next look, and what is late is taken
/// for a pause of this process, after which all evidence starts anew.
#[derive(Default)]
struct Orders {
    waiting: VecDeque<member::Input>,
    dropped: u64,
}

/// What the task takes up next.
enum Next {
    Stop,
    /// Some orders were handed over.
    Ordered,
    Take(Input),
    Question(Question),
}

impl Judging {
    /// A task over these parts.
    pub(crate) fn new(parts: Parts) -> Self {
        let clock = parts.member.clock();
        Self {
            aggregator: Aggregator::new(clock.now(), parts.config),
            member: parts.member,
            member_events: parts.member_events,
            edge: parts.edge,
            edge_events: parts.edge_events,
            questions: parts.questions,
            follower: parts.follower,
            clock,
            orders: Orders::default(),
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.act();
            let next = self.next(self.aggregator.next_wake(), &stop).await;
            self.catch_up().await;
            match next {
                Next::Stop => return,
                Next::Ordered => {}
                Next::Take(input) => {
                    self.tell(&input);
                    self.feed(input);
                }
                Next::Question(question) => {
                    let answer = view::answer(self.aggregator.judge(), self.clock.now());
                    // Who asked may be gone.
                    let _ = question.reply.send(answer);
                }
            }
        }
    }

    async fn next(&mut self, wake: Moment, stop: &CancellationToken) -> Next {
        tokio::select! {
            biased;
            () = stop.cancelled() => Next::Stop,
            () = self.member.feed_first(&mut self.orders.waiting), if !self.orders.is_empty() => {
                Next::Ordered
            }
            next = heard(
                &mut self.edge_events,
                &mut self.member_events,
                &mut self.questions,
            ) => next,
            () = sleep_until(self.clock.instant(wake)) => Next::Take(Input::Wake),
        }
    }

    /// After a pause the aggregator hears of it before anything else: what ripened while
    /// this process did not run is no evidence, and answers may wait unread.
    async fn catch_up(&mut self) {
        if self.aggregator.is_late(self.clock.now()) {
            warn!("this process did not run; evidence starts anew");
            self.feed(Input::Wake);
            sleep(CATCH_UP).await;
        }
    }

    fn feed(&mut self, input: Input) {
        self.aggregator.handle(self.clock.now(), input);
    }

    /// Tells people what comes in.
    fn tell(&self, input: &Input) {
        match input {
            Input::Member(Event::Mesh(event)) => {
                agent::tell(event);
                self.follow(|| What::Mesh(event.clone()));
            }
            Input::Edge(News::Leadership(leads)) => {
                info!(leads, "leadership changed");
                self.follow(|| What::Leads(*leads));
                metrics::gauge!(catalogue::LEADER).set(f64::from(u8::from(*leads)));
            }
            _ => {}
        }
    }

    /// Does everything the aggregator wants, without waiting for anybody: time that passes
    /// between two looks is then time in which this process did not run.
    fn act(&mut self) {
        while let Some(output) = self.aggregator.poll() {
            match output {
                Output::Member(order) => self.orders.push(order),
                Output::Decide(decision) => self.decide(*decision),
                Output::ReadLease(node) => {
                    if let Err(failed) = self.edge.read_lease(node) {
                        self.feed(Input::Edge(*failed));
                    }
                }
                Output::StepDown(reason) => {
                    warn!(?reason, "releasing the Lease");
                    self.edge.step_down();
                }
                Output::Stand(may_stand) => {
                    self.edge.stand(may_stand);
                    view::show_gauges(self.aggregator.judge());
                    view::show_edge(self.edge.stats());
                    view::show_drops(self.aggregator.stats(), self.orders.dropped);
                }
                Output::Round {
                    subjects,
                    verifiers,
                } => self.follow(|| What::Round {
                    subjects,
                    verifiers,
                }),
                Output::Notice(notice) => {
                    warn!(?notice, "the judge wants this known");
                    view::count(&notice);
                    self.edge.notice(&notice);
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
        metrics::counter!(catalogue::DECISIONS, "verdict" => verdict.as_str()).increment(1);
        if verdict.reason().is_some() {
            metrics::histogram!(catalogue::DETECTION, "verdict" => verdict.as_str())
                .record(evidence.stood.as_secs_f64());
            info!(node = %node.name, %verdict, %rule, evidence = evidence.summary(), "decided");
        } else {
            debug!(node = %node.name, %verdict, %rule, "decided");
        }
        self.follow(|| What::Decided(Box::new(decision.clone())));
        if let Err(failed) = self.edge.decide(decision) {
            self.feed(Input::Edge(*failed));
        }
    }

    fn follow(&self, what: impl FnOnce() -> What) {
        self.follower.tell(self.member.key(), what);
    }
}

impl Orders {
    fn push(&mut self, order: member::Input) {
        if self.waiting.len() < ORDERS_MAX {
            self.waiting.push_back(order);
        } else {
            self.dropped += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// What comes next, in fair turns: a list of all Nodes must not keep the mesh's word from
/// the judge, nor a storm of the mesh the Nodes'. Waits for ever when all have ended.
async fn heard(
    edge: &mut mpsc::Receiver<News>,
    member: &mut mpsc::Receiver<Event>,
    questions: &mut mpsc::Receiver<Question>,
) -> Next {
    tokio::select! {
        Some(news) = edge.recv() => Next::Take(Input::Edge(news)),
        Some(event) = member.recv() => Next::Take(Input::Member(event)),
        Some(question) = questions.recv() => Next::Question(question),
        else => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
