//! Claims and self-reports: from observers and agents to the aggregators.

use std::time::Duration;

use swimlet_protocol::frame::{Claim, Finding, SelfReport};
use swimlet_protocol::{MemberKey, MemberState, Moment, Role};

use super::Mesh;
use crate::api::Event;
use crate::claims::{Heard, Order, millis};
use crate::constants::{CLAIM_AGE_MAX, CLAIM_BATCH, CLAIM_ORDER_SLACK, CLAIM_RETRY, RELAY_MAX};
use crate::suspicion::Word;
use crate::timers::Timer;

impl Mesh {
    /// Sends what waits for the aggregators.
    ///
    /// An agent sends its claims to each aggregator it has a link to, and its
    /// self-report to its home; an aggregator sends both to the other aggregators.
    pub(super) fn send_claims(&mut self, now: Moment) {
        self.outbox.expire(now);
        self.outbox.repeat(now);
        if let Some(next) = self.outbox.next_repeat() {
            self.timers.set_by(Timer::Claims, next);
        }
        if self.outbox.is_empty() {
            return;
        }
        let targets = self.linked_aggregators();
        let home = self.home.filter(|home| targets.contains(home));
        let Some(first) = home.or_else(|| targets.first().copied()) else {
            self.timers.set_by(Timer::Claims, now + CLAIM_RETRY);
            return;
        };
        let (claims, count) = self.outbox.take_claims(now);
        let reports = self.outbox.take_reports(now);
        self.stats.claims_sent += (count * targets.len()) as u64;
        for &to in &targets {
            for frame in &claims {
                self.send(to, frame.clone());
            }
        }
        let informed = if self.is_aggregator() {
            targets
        } else {
            vec![first]
        };
        for to in informed {
            for frame in &reports {
                self.send(to, frame.clone());
            }
        }
    }

    /// Observers, or an aggregator on their behalf, tell whom they miss.
    pub(super) fn on_claims(&mut self, now: Moment, from: MemberKey, claims: Vec<Claim>) {
        let relayed = self.role_of(from) == Some(Role::Aggregator);
        if !self.is_aggregator() {
            self.stats.dropped_role += claims.len() as u64;
            return;
        }
        // What waited in the socket while we were not run is older than it says.
        let late = millis(self.lateness(now));
        for mut claim in claims {
            if claim.accuser != from && !relayed {
                self.stats.dropped_role += 1;
                continue;
            }
            claim.age_ms = claim.age_ms.saturating_add(late);
            if self.take_claim(now, &claim) && claim.accuser == from && !relayed {
                self.outbox.relay(now, claim);
                self.timers.set_by(Timer::Claims, now + CLAIM_BATCH);
            }
        }
    }

    /// Agents, or an aggregator on their behalf, tell what they found at home.
    pub(super) fn on_reports(&mut self, now: Moment, from: MemberKey, reports: Vec<SelfReport>) {
        let relayed = self.role_of(from) == Some(Role::Aggregator);
        if !self.is_aggregator() {
            self.stats.dropped_role += reports.len() as u64;
            return;
        }
        let late = millis(self.lateness(now));
        for mut report in reports {
            if report.node != from && !relayed {
                self.stats.dropped_role += 1;
                continue;
            }
            report.age_ms = report.age_ms.saturating_add(late);
            let Some(member) = self.table.member(report.node) else {
                self.stats.dropped_unknown += 1;
                continue;
            };
            if member.generation() != report.generation {
                self.stats.dropped_generation += 1;
                continue;
            }
            if too_old(report.age_ms) {
                self.stats.dropped_stale += 1;
                continue;
            }
            self.event(Event::Report(report.clone()));
            if !relayed {
                self.outbox.relay_report(now, report);
                self.timers.set_by(Timer::Claims, now + CLAIM_BATCH);
            }
        }
    }

    /// Our own local checks' findings.
    pub(super) fn self_report(&mut self, now: Moment, mut report: SelfReport) {
        report.node = self.key;
        report.generation = self.me.generation;
        if self.is_aggregator() {
            self.event(Event::Report(report.clone()));
        }
        self.outbox.report(now, report);
        self.timers.set_by(Timer::Claims, now);
    }

    /// Drops claims nobody may repeat any more, and what waits too long.
    pub(super) fn expire_claims(&mut self, now: Moment) {
        self.outbox.expire(now);
        let fresh = |at: Moment| now.since(at) <= CLAIM_AGE_MAX + CLAIM_ORDER_SLACK;
        self.seen_claims.retain(|_, heard| fresh(heard.found()));
        self.refuted.retain(|_, &mut at| fresh(at));
    }

    /// The member itself or the judge raised its incarnation: claims name none, so what was
    /// found before is told from what was found after by its age.
    pub(super) fn note_refutation(&mut self, now: Moment, subject: MemberKey) {
        if self.is_aggregator() {
            self.refuted.insert(subject, now);
        }
    }

    /// Aggregators that a link leads to, in the order of their keys.
    pub(super) fn linked_aggregators(&self) -> Vec<MemberKey> {
        let linked = |key: &MemberKey| self.links.is_up(*key);
        self.table
            .aggregators()
            .iter()
            .copied()
            .filter(linked)
            .collect()
    }

    /// Takes a claim to the judge and into the rule. `false` if nobody else needs it.
    fn take_claim(&mut self, now: Moment, claim: &Claim) -> bool {
        let Some(member) = self.table.member(claim.subject) else {
            self.stats.dropped_unknown += 1;
            return false;
        };
        if member.generation() != claim.generation {
            self.stats.dropped_generation += 1;
            return false;
        }
        let (at, answered) = (member.incarnation, member.last_contact);
        let heard = Heard::new(now, claim);
        let place = (claim.subject, claim.accuser);
        let seen = self.seen_claims.get(&place);
        let order = seen.map_or(Order::New, |seen| seen.order(&heard));
        let missed = claim.finding != Finding::Answered;
        let since = answered.max(self.refuted.get(&claim.subject).copied());
        let refuted = since.is_some_and(|at| heard.found() <= at + CLAIM_ORDER_SLACK);
        if too_old(claim.age_ms) || order != Order::New || (missed && refuted) {
            self.stats.dropped_stale += 1;
            // An answer is said again because a relayed one may be lost as well.
            return order == Order::Repeated && !missed;
        }
        if seen.is_none() && self.seen_claims.len() >= RELAY_MAX {
            self.stats.dropped_busy += 1;
        } else {
            self.seen_claims.insert(place, heard);
        }
        self.event(Event::Claim(claim.clone()));
        match claim.finding {
            Finding::Missed { .. } => {
                let word = Word {
                    state: MemberState::Suspect,
                    at,
                    said: heard.found(),
                };
                self.hear_word(now, claim.accuser, claim.subject, word);
            }
            Finding::Answered => self.withdraw(now, claim.accuser, claim.subject),
        }
        true
    }
}

fn too_old(age_ms: u32) -> bool {
    Duration::from_millis(age_ms.into()) > CLAIM_AGE_MAX
}
