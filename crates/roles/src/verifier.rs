//! Active verification: trying a node's agent and its kubelet port, now.

mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::{Answer, PortAnswer, ProbeOutcome, SUBJECTS_MAX, Verify};
use swimlet_protocol::{Bounded, MemberKey, Moment, NodeName, Role};

use crate::baseline::{Baseline, KubeletPort, Turns};
use crate::sweep::Sweep;
use requests::{Request, Waiting};

/// How long a kubelet's port has. Below the second between two rounds, so that the
/// answers of one are there before the next is asked.
pub const PORT_TIMEOUT: Duration = Duration::from_millis(800);
/// How long an agent has. Without a link the mesh dials it first, and gives up on
/// that by itself after 1.5 s; an answer is taken up to 5 s after its round was asked.
pub const AGENT_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Requests that an agent works on at once: one a round from each aggregator, some
/// rounds deep.
pub const REQUESTS_MAX_AGENT: usize = 8;
/// The same for an aggregator, which is asked by itself and by the other aggregators about
/// every case: some seconds' worth of rounds, each round of a mass failure in some tens of
/// requests.
pub const REQUESTS_MAX_AGGREGATOR: usize = 256;
/// Port checks for verification at once: the requests of several aggregators in a mass
/// failure. One that waits for a silent port is one socket.
pub const CHECKS_MAX: usize = 512;
/// Port checks for the baseline at once, beside those.
pub const BASELINE_CHECKS_MAX: usize = 32;
/// A port check that has waited this long for its turn is not made: an answer that comes
/// too late is none.
const WAIT_MAX: Duration = Duration::from_millis(400);
/// Outputs waiting to be polled: more than all requests at once lead to. Whoever drives
/// the machine drains it after each input.
const OUTPUTS_MAX: usize = 4 * REQUESTS_MAX_AGGREGATOR * SUBJECTS_MAX;

/// Tries nodes on request, and keeps the baseline by which its "no" counts.
///
/// One of each member, an aggregator's too. A request is answered when all its subjects
/// are tried or their time is over, [`AGENT_TIMEOUT`] after it came at the latest.
#[derive(Clone, Debug)]
pub struct Verifier {
    requests_max: usize,
    baseline: Baseline,
    turns: Turns,
    sweep: Sweep,
    next: u64,
    /// At most `requests_max`.
    requests: BTreeMap<u64, Request>,
    /// By token, and so in the order in which they began. At most two of each subject
    /// of a request, and those for the baseline.
    tries: BTreeMap<u64, Try>,
    /// Port checks that wait for their turn; at most one of each subject of a request.
    waiting: VecDeque<Waiting>,
    checks: usize,
    baseline_checks: usize,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An aggregator asks, a member's own aggregator too.
    Asked {
        /// Which.
        by: MemberKey,
        /// For what.
        request: Verify,
    },
    /// The answer to [`Output::ProbeAgent`].
    Probed {
        /// Which probe.
        token: u64,
        /// What came of it; [`ProbeOutcome::NoStatement`] for a member that is not known.
        outcome: ProbeOutcome,
        /// When that member had answered last before the probe, if ever.
        contact_before: Option<Moment>,
    },
    /// The answer to [`Output::CheckPort`].
    Checked {
        /// Which check.
        token: u64,
        /// What the port did.
        answer: PortAnswer,
    },
    /// The answer to [`Output::Subjects`].
    Subjects(Vec<KubeletPort>),
    /// On aggregators: every kubelet port there is, to be swept. Replaces the last list.
    Sweep(Vec<KubeletPort>),
    /// Time passed. Due at [`Verifier::next_wake`].
    Wake,
}

/// What the machine wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Have the mesh probe this agent now, and answer with [`Input::Probed`].
    ProbeAgent {
        /// Comes back in the answer.
        token: u64,
        /// Whom.
        subject: MemberKey,
    },
    /// Finish TLS with this port and ask it for its health, and answer with
    /// [`Input::Checked`].
    CheckPort {
        /// Comes back in the answer.
        token: u64,
        /// Where.
        port: SocketAddr,
        /// Whose kubelet serves there.
        of: Subject,
        /// How long this may take from now. A check without an answer by then found
        /// the port silent.
        limit: Duration,
    },
    /// Tell which ports the members that this one watches serve: [`Input::Subjects`].
    Subjects,
    /// A request is answered.
    Answer {
        /// Which aggregator asked.
        to: MemberKey,
        /// The request's round.
        round: u32,
        /// What was found, in the order of the request.
        answers: Bounded<Answer, SUBJECTS_MAX>,
    },
}

/// Whose kubelet a check is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The Node of this agent.
    Agent(MemberKey),
    /// The Node of this name.
    Node(NodeName),
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests beyond the bound.
    pub requests_refused: u64,
    /// Port checks that were not made, because too many were under way.
    pub checks_untried: u64,
    /// Ports reached that the baseline had no room for.
    pub baseline_overflow: u64,
    /// Outputs that found no room.
    pub outputs_overflow: u64,
}

/// Something under way, answered by its token.
#[derive(Clone, Debug)]
struct Try {
    at: Moment,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// An agent's probe for a request.
    Agent { request: u64, index: usize },
    /// A port's check for a request.
    Port {
        request: u64,
        index: usize,
        port: SocketAddr,
    },
    /// A check of one of our subjects' ports.
    Turn { port: SocketAddr },
    /// A check of any node's port, on an aggregator.
    Sweep { port: SocketAddr },
}

impl Verifier {
    /// The verifier of a member in this role, which has reached nobody yet.
    #[must_use]
    pub fn new(now: Moment, role: Role) -> Self {
        let requests_max = match role {
            Role::Agent => REQUESTS_MAX_AGENT,
            Role::Aggregator => REQUESTS_MAX_AGGREGATOR,
        };
        Self {
            requests_max,
            baseline: Baseline::default(),
            turns: Turns::new(now),
            sweep: Sweep::default(),
            next: 0,
            requests: BTreeMap::new(),
            tries: BTreeMap::new(),
            waiting: VecDeque::new(),
            checks: 0,
            baseline_checks: 0,
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes one piece of news. `now` must not run backwards.
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Asked { by, request } => self.asked(now, by, request),
            Input::Probed {
                token,
                outcome,
                contact_before,
            } => self.probed(now, token, outcome, contact_before),
            Input::Checked { token, answer } => self.checked(now, token, answer),
            Input::Subjects(ports) => {
                if let Some(port) = self.turns.next(now, &ports) {
                    let what = What::Turn { port: port.address };
                    self.check_baseline(now, port, what);
                }
            }
            Input::Sweep(ports) => self.sweep.take_in(now, ports),
            Input::Wake => self.wake(now),
        }
    }

    /// The next thing to be done, if any. Drain it after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to feed [`Input::Wake`] at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let overdue = self.tries.first_key_value();
        let overdue = overdue.map(|(_, begun)| begun.at + AGENT_TIMEOUT);
        let waited = self.waiting.front().map(|first| first.asked + WAIT_MAX);
        let due = [overdue, waited, self.sweep.due()].into_iter().flatten();
        due.fold(self.turns.due, Moment::min)
    }

    /// How many ports were reached within the baseline window before `now`.
    #[must_use]
    pub fn paths(&self, now: Moment) -> usize {
        self.baseline.count(now)
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            baseline_overflow: self.baseline.overflow(),
            ..self.stats
        }
    }

    fn wake(&mut self, now: Moment) {
        self.expire(now);
        if self.turns.due <= now {
            self.turns.put_off(now);
            self.put(Output::Subjects);
        }
        if self.sweep.due().is_some_and(|due| due <= now) {
            let room = self.baseline_checks < BASELINE_CHECKS_MAX;
            if let Some(port) = self.sweep.next(now, room) {
                let what = What::Sweep { port: port.address };
                self.check_baseline(now, port, what);
            }
        }
    }

    fn check_baseline(&mut self, now: Moment, port: KubeletPort, what: What) {
        self.baseline_checks += 1;
        let token = self.begin(now, what);
        self.put(Output::CheckPort {
            token,
            port: port.address,
            of: Subject::Node(port.node),
            limit: PORT_TIMEOUT,
        });
    }

    fn checked(&mut self, now: Moment, token: u64, answer: PortAnswer) {
        let Some(begun) = self.tries.remove(&token) else {
            // Its time was over.
            return;
        };
        match begun.what {
            What::Port {
                request,
                index,
                port,
            } => {
                self.baseline.note(now, port, answer);
                self.checks = self.checks.saturating_sub(1);
                self.fill(request, |found| found[index].port = answer);
                self.take_turns(now);
            }
            What::Turn { port } => {
                self.turns.busy = false;
                self.note_baseline(now, port, answer);
            }
            What::Sweep { port } => self.note_baseline(now, port, answer),
            // No answer to a probe.
            What::Agent { .. } => drop(self.tries.insert(token, begun)),
        }
    }

    fn note_baseline(&mut self, now: Moment, port: SocketAddr, answer: PortAnswer) {
        self.baseline.note(now, port, answer);
        self.baseline_checks = self.baseline_checks.saturating_sub(1);
    }

    /// Gives up what nobody answered: this member is slower than its own timeouts allow,
    /// and it is the one that is sick.
    fn expire(&mut self, now: Moment) {
        while let Some(first) = self.tries.first_entry()
            && now.since(first.get().at) >= AGENT_TIMEOUT
        {
            let (token, what) = (*first.key(), first.get().what);
            match what {
                What::Agent { .. } => self.probed(now, token, ProbeOutcome::NoStatement, None),
                What::Port { .. } | What::Turn { .. } | What::Sweep { .. } => {
                    self.checked(now, token, PortAnswer::Untried);
                }
            }
        }
        self.take_turns(now);
    }

    fn begin(&mut self, now: Moment, what: What) -> u64 {
        let token = self.next;
        self.next += 1;
        self.tries.insert(token, Try { at: now, what });
        token
    }

    fn put(&mut self, output: Output) {
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        } else {
            self.stats.outputs_overflow += 1;
        }
    }
}

#[cfg(test)]
mod tests;
