//! Holds what a scenario expects against what happened.

use std::collections::BTreeSet;

use swimlet_protocol::Moment;
use swimlet_verdict::Verdict;

use super::Scenario;
use super::expect::{Expect, NoticeKind, Of};
use super::run::{Failure, Log, since, subject};
use crate::record::{MemberId, NodeId};
use crate::units::Span;
use crate::world::World;

/// Failures to see a thing are long lists in a large world; so many are named.
const NAMED_MAX: usize = 8;

/// A scenario, and what came of it.
struct Case<'a> {
    scenario: &'a Scenario,
    world: &'a World,
    log: &'a Log,
    failures: Vec<Failure>,
}

/// What did not hold of what the file expects.
pub(super) fn verify(scenario: &Scenario, world: &World, log: &Log) -> Vec<Failure> {
    let mut case = Case {
        scenario,
        world,
        log,
        failures: Vec::new(),
    };
    for (index, expect) in scenario.expects.iter().enumerate() {
        case.verify(index, expect);
    }
    if !scenario.open {
        case.verify_nothing_else_was_written();
    }
    case.failures
}

impl Case<'_> {
    fn verify(&mut self, index: usize, expect: &Expect) {
        self.verify_it_is_about_something(expect);
        match expect {
            Expect::Written {
                of,
                verdict,
                within,
                after,
                times,
            } => self.written(of, verdict.verdict(), (*after, *within), *times),
            Expect::MayBeWritten {
                of,
                verdict,
                times,
                after,
                within,
            } => self.may_be_written(
                of,
                verdict.map(super::expect::VerdictName::verdict),
                (*after, *within),
                *times,
            ),
            Expect::WrittenAtMost { of, nodes } => self.written_at_most(of, *nodes),
            Expect::Noticed { notice, of, within } => self.noticed(*notice, of, *within),
            Expect::NotNoticed { notice } => self.not_noticed(*notice),
            Expect::Decided {
                of,
                verdict,
                within,
            } => self.decided(of, verdict.verdict(), *within),
            Expect::EndsAs { .. }
            | Expect::ReadyBy { .. }
            | Expect::OneMesh { .. }
            | Expect::MembersAtMost { .. } => self.looked(index, expect),
            Expect::InTreeOnly { of } => self.in_tree_only(of),
            Expect::Suspended { of } => self.suspended(of),
            Expect::NoFalseDowns => self.at_most("false Downs", self.log.false_downs, 0),
            Expect::FalseDownsAtMost { events } => {
                self.at_most("false Downs", self.log.false_downs, *events);
            }
            Expect::LeaderChangesAtMost { changes } => {
                let leaders = self.log.leaders.into();
                self.at_most("leadership began", leaders, (*changes).into());
            }
            Expect::TakenBackAtMost { times } => {
                let taken_back = self.log.taken_back.into();
                self.at_most("Unknowns were taken back", taken_back, (*times).into());
            }
            Expect::InboxAtMost { packets } => {
                let inbox = self.world.counters().inbox_max;
                self.at_most("packets waited at one process", inbox, *packets);
            }
            Expect::TrafficAtMost {
                datagrams_per_s,
                bytes_per_s,
            } => self.traffic(*datagrams_per_s, *bytes_per_s),
        }
    }

    /// What is said of no node holds whatever happens.
    fn verify_it_is_about_something(&mut self, expect: &Expect) {
        let is_of_nodes = !matches!(expect, Expect::OneMesh { .. } | Expect::Noticed { .. });
        if let Some(of @ Of::Fault(name)) = expect.of()
            && is_of_nodes
            && self.nodes(of).is_empty()
        {
            self.fail(self.end(), format!("the fault {name:?} hit no node"));
        }
    }

    fn written_at_most(&mut self, of: &Of, nodes: u32) {
        let of: BTreeSet<_> = self.nodes(of).into_iter().collect();
        let mut written: BTreeSet<_> = self.log.writes.iter().map(|write| write.1).collect();
        written.retain(|node| of.contains(node));
        self.at_most("nodes were written", written.len() as u64, nodes.into());
    }

    fn suspended(&mut self, of: &Of) {
        let of = self.nodes(of);
        if !self.log.suspended.iter().any(|node| of.contains(node)) {
            let text = "no member noticed that it was not run".to_owned();
            self.fail(self.end(), text);
        }
    }

    fn fail(&mut self, at: Moment, text: String) {
        self.failures.push(Failure {
            at: since(self.world.began(), at),
            invariant: None,
            text,
        });
    }

    fn at_most(&mut self, what: &str, count: u64, most: u64) {
        if count > most {
            self.fail(self.end(), format!("{count} {what}, at most {most} may"));
        }
    }

    fn end(&self) -> Moment {
        self.world.began() + self.scenario.lasts.duration()
    }

    fn nodes(&self, of: &Of) -> Vec<NodeId> {
        self.log.nodes(self.scenario, of)
    }

    /// When a node was first hit by what an expectation names.
    fn base(&self, of: &Of, node: Option<NodeId>) -> Moment {
        let hit = self
            .log
            .hits(self.scenario, of)
            .filter(|(_, nodes)| node.is_none_or(|node| nodes.contains(&node)))
            .map(|(at, _)| *at)
            .min();
        hit.unwrap_or(self.world.began())
    }

    fn writes_about(
        &self,
        node: NodeId,
    ) -> impl Iterator<Item = &(Moment, NodeId, Verdict, MemberId)> {
        self.log.writes.iter().filter(move |write| write.1 == node)
    }

    fn written(&mut self, of: &Of, verdict: Verdict, window: (Span, Span), times: u32) {
        let (after, within) = window;
        for node in self.nodes(of) {
            let base = self.base(of, Some(node));
            let writes: Vec<_> = self
                .writes_about(node)
                .filter(|write| write.2 == verdict)
                .map(|write| write.0)
                .collect();
            if writes.len() != times as usize {
                let text = format!(
                    "node {} was written as {verdict} {} times, and not {times}{}",
                    node.0,
                    writes.len(),
                    self.standing_of(node)
                );
                self.fail(self.end(), text);
            }
            let Some(first) = writes.first() else {
                continue;
            };
            let took = since(base, *first);
            if took > within || took < after {
                let text = format!(
                    "node {} was written after {took}, and not within {within} nor before {after}",
                    node.0
                );
                self.fail(*first, text);
            }
        }
    }

    fn may_be_written(
        &mut self,
        of: &Of,
        verdict: Option<Verdict>,
        window: (Span, Option<Span>),
        times: u32,
    ) {
        for node in self.nodes(of) {
            let base = self.base(of, Some(node));
            let writes: Vec<_> = self
                .writes_about(node)
                .filter(|write| verdict.is_none_or(|verdict| write.2 == verdict))
                .map(|write| since(base, write.0))
                .collect();
            if writes.len() > times as usize {
                let text = format!(
                    "node {} was written {} times, and at most {times} may be",
                    node.0,
                    writes.len()
                );
                self.fail(self.end(), text);
            }
            let (after, within) = window;
            let outside = |at: &Span| *at < after || within.is_some_and(|within| *at > within);
            if let Some(at) = writes.into_iter().find(outside) {
                let text = format!("node {} was written after {at}, outside its time", node.0);
                self.fail(base + at.duration(), text);
            }
        }
    }

    fn verify_nothing_else_was_written(&mut self) {
        let mut spoken_of: BTreeSet<(NodeId, Option<Verdict>)> = BTreeSet::new();
        for expect in &self.scenario.expects {
            let (of, verdict) = match expect {
                Expect::Written { of, verdict, .. } => (of, Some(verdict.verdict())),
                Expect::MayBeWritten { of, verdict, .. } => (of, verdict.map(|v| v.verdict())),
                Expect::WrittenAtMost { of, .. } => (of, None),
                _ => continue,
            };
            spoken_of.extend(self.nodes(of).into_iter().map(|node| (node, verdict)));
        }
        for (at, node, verdict, _) in &self.log.writes {
            let spoken =
                spoken_of.contains(&(*node, None)) || spoken_of.contains(&(*node, Some(*verdict)));
            if !spoken {
                let text = format!(
                    "node {} was written as {verdict}: nothing expects it",
                    node.0
                );
                self.fail(*at, text);
            }
        }
    }

    /// Where a node stands with the leader, for people who look for the reason.
    fn standing_of(&self, node: NodeId) -> String {
        let standing = self
            .world
            .leader()
            .and_then(|leader| self.world.standing(leader, node));
        standing.map_or_else(String::new, |standing| {
            format!(
                "; to the leader it is {} by {}: {}",
                standing.verdict, standing.rule, standing.summary
            )
        })
    }

    fn noticed(&mut self, kind: NoticeKind, of: &Of, within: Span) {
        let from = self.base(of, None);
        let until = from + within.duration();
        let names: Vec<_> = self
            .nodes(of)
            .into_iter()
            .filter_map(|node| self.world.member_view(self.world.agent_of(node)?))
            .map(|view| view.name)
            .collect();
        let is_it = |(at, notice): &(Moment, swimlet_verdict::Notice)| {
            (from..=until).contains(at)
                && kind.is(notice)
                && subject(notice).is_none_or(|node| names.contains(node))
        };
        if !self.log.notices.iter().any(is_it) {
            self.fail(
                until,
                format!("nobody was told of {kind:?} within {within}"),
            );
        }
    }

    fn not_noticed(&mut self, kind: NoticeKind) {
        let notice = self.log.notices.iter().find(|(_, n)| kind.is(n));
        if let Some((at, notice)) = notice {
            self.fail(*at, format!("people were told {notice:?}"));
        }
    }

    fn decided(&mut self, of: &Of, verdict: Verdict, within: Span) {
        for node in self.nodes(of) {
            let from = self.base(of, Some(node));
            let until = from + within.duration();
            let is_it = |(at, about, what): &(Moment, NodeId, Verdict)| {
                (from..=until).contains(at) && *about == node && *what == verdict
            };
            if !self.log.decisions.iter().any(is_it) {
                let text = format!(
                    "node {} was not decided to be {verdict} within {within}{}",
                    node.0,
                    self.standing_of(node)
                );
                self.fail(until, text);
            }
        }
    }

    fn looked(&mut self, index: usize, expect: &Expect) {
        let found = self.log.looks.get(&index).cloned().unwrap_or_default();
        if found.is_empty() {
            return;
        }
        let mut text = found.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>();
        if found.len() > NAMED_MAX {
            text.push(format!("and {} more", found.len() - NAMED_MAX));
        }
        let at = match expect {
            Expect::ReadyBy { of, within } | Expect::OneMesh { of, within } => {
                self.base(of, None) + within.duration()
            }
            _ => self.end(),
        };
        self.fail(at, text.join("; "));
    }

    fn in_tree_only(&mut self, of: &Of) {
        let of = match of {
            Of::Nodes(nodes) => nodes.clone(),
            of => self.nodes(of),
        };
        let other = self.log.in_tree.iter().find(|(_, node)| !of.contains(node));
        if let Some((at, node)) = other {
            let text = format!("the controller manager wrote Unknown to node {}", node.0);
            self.fail(*at, text);
        }
    }

    fn traffic(&mut self, datagrams_per_s: u64, bytes_per_s: u64) {
        let counters = self.world.counters();
        let seconds = self.scenario.lasts.as_micros().div_ceil(1_000_000);
        let over = seconds * u64::from(self.world.members()).max(1);
        let datagrams = counters.datagrams_sent / over;
        let bytes = counters.bytes_sent / over;
        self.at_most("datagrams a second and member", datagrams, datagrams_per_s);
        self.at_most("bytes a second and member", bytes, bytes_per_s);
    }
}
