//! What an aggregator's role wants of its edge: reads of Leases, and writes.

use std::time::Duration;

use swimlet_cluster::leases::{LEASE_READS_MAX, READS_AT_ONCE};
use swimlet_cluster::writer::{
    DECISION_AGE_MAX, PENDING_MAX, READ_AGE_MAX, WRITES_AT_ONCE, overtaken,
};
use swimlet_protocol::Moment;
use swimlet_roles::aggregator::{Input, Output};
use swimlet_verdict::{Decision, Input as News, LeaseRead, NodeRef, NodeSeen, WriteOutcome};

use super::{Ask, Call, Reply, WRITER_CLOSED};
use crate::record::{MemberId, What};
use crate::world::World;

// What the role wants.
impl World {
    pub(crate) fn of_aggregator(&mut self, member: MemberId, output: Output) {
        match output {
            Output::Member(input) => self.feed(member, input),
            Output::Decide(decision) => self.decide(member, *decision),
            Output::ReadLease(node) => self.ask_lease(member, node),
            Output::StepDown(reason) => {
                self.tell(What::StepsDown { member, reason });
                if let Some((now, edge)) = self.edge(member) {
                    edge.election.step_down(now);
                }
                self.edge_later(member, Duration::ZERO);
            }
            Output::Stand(stands) => {
                if let Some((now, edge)) = self.edge(member) {
                    edge.election.stand(now, stands);
                }
            }
            Output::Round { .. } => {}
            Output::Notice(notice) => self.tell(What::Noticed { by: member, notice }),
        }
    }

    fn ask_lease(&mut self, member: MemberId, node: NodeRef) {
        let Some((_, edge)) = self.edge(member) else {
            return;
        };
        if edge.reads.len() + edge.reading >= LEASE_READS_MAX {
            let read = LeaseRead::Failed;
            self.inform(member, Input::Edge(News::Lease { node, read }));
            return;
        }
        edge.reads.push_back(node);
        self.step_reads(member);
    }

    pub(super) fn step_reads(&mut self, member: MemberId) {
        loop {
            let Some((_, edge)) = self.edge(member) else {
                return;
            };
            if edge.reading >= READS_AT_ONCE {
                return;
            }
            let Some(node) = edge.reads.pop_front() else {
                return;
            };
            edge.reading += 1;
            self.call(member, Call::Lease(node.clone()), Ask::Lease(node));
        }
    }

    pub(super) fn lease_read(&mut self, member: MemberId, node: NodeRef, reply: Option<Reply>) {
        if let Some((_, edge)) = self.edge(member) {
            edge.reading -= 1;
        }
        let read = match reply {
            Some(Reply::Lease(read)) => read,
            _ => LeaseRead::Failed,
        };
        self.inform(member, Input::Edge(News::Lease { node, read }));
    }
}

// The writer.
impl World {
    fn decide(&mut self, member: MemberId, decision: Decision) {
        if let Some(node) = self.node_named(&decision.node.name) {
            self.trace.text(decision.verdict.as_str());
            self.tell(What::Decided {
                by: member,
                node,
                decision: Box::new(decision.clone()),
            });
        }
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        let writes = decision.verdict.reason().is_some();
        if !writes && let Some(withdrawn) = edge.writing.get_mut(&decision.node) {
            *withdrawn = true;
        }
        edge.waiting
            .retain(|(_, waiting)| waiting.node != decision.node);
        if writes && edge.waiting.len() >= PENDING_MAX {
            self.report(member, &decision, WriteOutcome::Failed);
        } else if writes {
            edge.waiting.push_back((now, decision));
            self.step_writer(member);
        }
    }

    pub(super) fn step_writer(&mut self, member: MemberId) {
        loop {
            let Some((now, edge)) = self.edge(member) else {
                return;
            };
            if edge.closed_until.is_some_and(|until| until > now) {
                return;
            }
            if edge.closed_until.take().is_some() {
                // It was decided on what was known before.
                let waiting = std::mem::take(&mut edge.waiting);
                for (_, decision) in waiting {
                    self.report(member, &decision, WriteOutcome::Failed);
                }
                return;
            }
            let Some((since, _)) = edge.waiting.front() else {
                return;
            };
            if now.since(*since) > DECISION_AGE_MAX {
                if let Some((_, decision)) = edge.waiting.pop_front() {
                    self.report(member, &decision, WriteOutcome::Superseded);
                }
                continue;
            }
            if edge.writing.len() >= WRITES_AT_ONCE {
                return;
            }
            let idle =
                |(_, decision): &(Moment, Decision)| !edge.writing.contains_key(&decision.node);
            let Some(index) = edge.waiting.iter().position(idle) else {
                return;
            };
            let Some((_, decision)) = edge.waiting.remove(index) else {
                return;
            };
            self.attempt(member, decision);
        }
    }

    fn attempt(&mut self, member: MemberId, decision: Decision) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        if !edge.may_act(now) {
            self.report(member, &decision, WriteOutcome::Failed);
            return;
        }
        edge.writing.insert(decision.node.clone(), false);
        let node = decision.node.clone();
        self.call(member, Call::Get(Box::new(decision), now), Ask::Get(node));
    }

    /// The Node was read afresh.
    pub(super) fn got(
        &mut self,
        member: MemberId,
        decision: Box<Decision>,
        began: Moment,
        node: Option<(Box<NodeSeen>, u64)>,
    ) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        let withdrawn = edge.writing.get(&decision.node) == Some(&true);
        let Some((fresh, version)) = node else {
            self.wrote(member, &decision, WriteOutcome::Gone);
            return;
        };
        if let Some(outcome) = overtaken(&fresh, &decision) {
            self.wrote(member, &decision, outcome);
        } else if withdrawn || now.since(began) > READ_AGE_MAX {
            self.wrote(member, &decision, WriteOutcome::Superseded);
        } else if edge.may_act(now) {
            let ask = Ask::Patch(decision.clone(), version);
            self.call(member, Call::Patch(decision), ask);
        } else {
            self.wrote(member, &decision, WriteOutcome::Failed);
        }
    }

    pub(super) fn wrote(&mut self, member: MemberId, decision: &Decision, outcome: WriteOutcome) {
        if let Some((_, edge)) = self.edge(member) {
            edge.writing.remove(&decision.node);
        }
        self.report(member, decision, outcome);
    }

    pub(super) fn write_failed(&mut self, member: MemberId, decision: &Decision) {
        if let Some((now, edge)) = self.edge(member) {
            edge.closed_until = Some(now + WRITER_CLOSED);
        }
        self.wrote(member, decision, WriteOutcome::Failed);
    }

    fn report(&mut self, member: MemberId, decision: &Decision, outcome: WriteOutcome) {
        if outcome != WriteOutcome::Written
            && let Some(node) = self.node_named(&decision.node.name)
        {
            self.tell(What::NotWritten {
                by: member,
                node,
                outcome,
            });
        }
        let written = News::Written {
            node: decision.node.clone(),
            episode: decision.episode,
            outcome,
        };
        self.inform(member, Input::Edge(written));
    }
}
