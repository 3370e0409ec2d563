//! Requests under way: their tries, and the answers that are there already.

use swimlet_protocol::frame::{
    AgentAnswer, Answer, PortAnswer, ProbeOutcome, Verify, VerifySubject,
};
use swimlet_protocol::{Bounded, MemberKey, Moment};

use super::{CHECKS_MAX, Output, PORT_TIMEOUT, Subject, Verifier, WAIT_MAX, What};
use crate::baseline;

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Request {
    by: MemberKey,
    round: u32,
    answers: Vec<Answer>,
    /// Tries that are not over, two of each subject.
    open: usize,
}

/// A port check that waits until others are over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) asked: Moment,
    request: u64,
    index: usize,
    subject: VerifySubject,
}

impl Verifier {
    /// Tries every subject of the request at once.
    pub(super) fn asked(&mut self, now: Moment, by: MemberKey, request: Verify) {
        if self.requests.len() >= self.requests_max {
            self.stats.requests_refused += 1;
            return;
        }
        let round = request.round;
        let subjects = request.subjects.into_vec();
        let untried = |(index, subject): (usize, &VerifySubject)| Answer {
            // A request holds fewer subjects than a byte counts.
            index: u8::try_from(index).unwrap_or(u8::MAX),
            subject: subject.subject,
            agent: AgentAnswer::Untried,
            agent_baseline: false,
            port: PortAnswer::Untried,
            port_baseline: self.baseline.holds(now, subject.kubelet),
        };
        let entry = Request {
            by,
            round,
            answers: subjects.iter().enumerate().map(untried).collect(),
            open: 2 * subjects.len(),
        };
        let request = self.next;
        self.next += 1;
        self.requests.insert(request, entry);
        for (index, subject) in subjects.into_iter().enumerate() {
            let token = self.begin(now, What::Agent { request, index });
            self.put(Output::ProbeAgent {
                token,
                subject: subject.subject,
            });
            self.waiting.push_back(Waiting {
                asked: now,
                request,
                index,
                subject,
            });
        }
        self.take_turns(now);
        self.close(request);
    }

    /// Makes the port checks whose turn it is, as long as their answers are of use.
    pub(super) fn take_turns(&mut self, now: Moment) {
        while let Some(&first) = self.waiting.front() {
            let Waiting {
                asked,
                request,
                index,
                subject,
            } = first;
            let waited = now.since(asked);
            if waited >= WAIT_MAX {
                self.waiting.pop_front();
                self.stats.checks_untried += 1;
                self.fill(request, |_| {});
            } else if self.checks < CHECKS_MAX {
                self.waiting.pop_front();
                self.checks += 1;
                let port = subject.kubelet;
                let what = What::Port {
                    request,
                    index,
                    port,
                };
                let token = self.begin(now, what);
                self.put(Output::CheckPort {
                    token,
                    port,
                    of: Subject::Agent(subject.subject),
                    limit: PORT_TIMEOUT.saturating_sub(waited),
                });
            } else {
                return;
            }
        }
    }

    pub(super) fn probed(
        &mut self,
        now: Moment,
        token: u64,
        outcome: ProbeOutcome,
        contact_before: Option<Moment>,
    ) {
        let Some(&super::Try {
            what: What::Agent { request, index },
            ..
        }) = self.tries.get(&token)
        else {
            // Its time was over.
            return;
        };
        self.tries.remove(&token);
        let proven = contact_before.is_some_and(|at| now.since(at) <= baseline::WINDOW);
        let (agent, agent_baseline) = match outcome {
            ProbeOutcome::Reached => (AgentAnswer::Answers, true),
            ProbeOutcome::NotReached => (AgentAnswer::Silent, proven),
            ProbeOutcome::NoStatement => (AgentAnswer::Untried, false),
        };
        self.fill(request, |answers| {
            answers[index].agent = agent;
            answers[index].agent_baseline = agent_baseline;
        });
    }

    /// One try of a request is over.
    pub(super) fn fill(&mut self, request: u64, with: impl FnOnce(&mut [Answer])) {
        if let Some(entry) = self.requests.get_mut(&request) {
            with(&mut entry.answers);
            entry.open = entry.open.saturating_sub(1);
            self.close(request);
        }
    }

    /// Answers a request of which no try is open.
    fn close(&mut self, request: u64) {
        if self.requests.get(&request).is_none_or(|it| it.open > 0) {
            return;
        }
        if let Some(done) = self.requests.remove(&request) {
            self.put(Output::Answer {
                to: done.by,
                round: done.round,
                answers: Bounded::fill(&mut done.answers.into_iter()),
            });
        }
    }
}
