//! From a missed probe to an accusation: what others found, and whether we trust ourselves.

use std::time::Duration;

use swimlet_protocol::frame::{Claim, Finding, ProbeOutcome, ProbeReport, ProbeRequest};
use swimlet_protocol::{Frame, MemberKey, Moment};

use super::Mesh;
use crate::claims::millis;
use crate::constants::{
    ASK_ALL_MISSES, ASK_GRACE, ASK_LINKS_MIN, CLAIM_BATCH, DEAF_AFTER, PROBE_TIMEOUT, REPORT_FRESH,
};
use crate::timers::Timer;
use crate::watch::{Reply, Watch};

impl Mesh {
    /// Another observer misses a subject and asks us to try.
    pub(super) fn on_probe_request(
        &mut self,
        now: Moment,
        from: MemberKey,
        request: &ProbeRequest,
    ) {
        let subject = request.subject;
        let reply = Reply::Peer {
            to: from,
            seq: request.seq,
        };
        if subject == self.key {
            // We are here to say so ourselves.
            self.reply(subject, reply, ProbeOutcome::Reached);
            return;
        }
        if self.table.member(subject).is_none() {
            self.stats.dropped_unknown += 1;
            self.reply(subject, reply, ProbeOutcome::NoStatement);
            return;
        }
        if subject == from {
            self.volunteer(now, from);
            return;
        }
        let proven = self.is_path_proven(subject);
        let added = proven && !self.is_deaf(now) && self.errand(now, subject, reply);
        if !added {
            self.reply(subject, reply, ProbeOutcome::NoStatement);
        }
        self.stats.indirect_made += u64::from(added);
        // It misses one probe so far; whether that is an accusation it decides itself.
        if let Some(watch) = self.watches.get_mut(&subject)
            && request.silent_ms > 0
        {
            watch.requested = Some(now);
        }
    }

    /// A co-observer tells what came of our request.
    pub(super) fn on_probe_report(&mut self, now: Moment, from: MemberKey, report: &ProbeReport) {
        let subject = report.subject;
        let Some(watch) = self.watches.get_mut(&subject) else {
            self.stats.dropped_unasked += 1;
            return;
        };
        if !watch.asked.remove(&from) {
            self.stats.dropped_unasked += 1;
            return;
        }
        watch.heard_from += 1;
        let was_cleared = watch.is_cleared(now);
        match report.outcome {
            ProbeOutcome::NoStatement => return,
            ProbeOutcome::Reached => {
                watch.vouched = Some(now);
                watch.report(from, true, now);
            }
            ProbeOutcome::NotReached => watch.report(from, false, now),
        }
        let (cleared, missing) = (watch.is_cleared(now), watch.is_missing());
        if !cleared {
            if report.outcome == ProbeOutcome::NotReached {
                self.suspect(now, from, subject);
            }
            self.accuse(now, subject);
        } else if !was_cleared {
            if missing {
                // Others could make the probe that we missed.
                self.worsen();
            }
            self.withdraw_all(now, subject);
        }
    }

    /// Co-observers had their time: all of them silent means that we are hard to reach
    /// (Lifeguard's missed nacks).
    pub(super) fn asked_long_enough(&mut self, subject: MemberKey) {
        let Some(watch) = self.watches.get_mut(&subject) else {
            return;
        };
        let unheard = watch.asked_count > 1 && watch.heard_from == 0;
        watch.asked.clear();
        if unheard {
            self.worsen();
        }
    }

    /// A link to somebody we wanted to ask stands.
    pub(super) fn ask_now(&mut self, now: Moment, peer: MemberKey) {
        for subject in self.asks.remove(&peer).into_iter().flatten() {
            let Some(watch) = self.watches.get_mut(&subject) else {
                continue;
            };
            if let Some(first) = watch.first_unanswered {
                watch.asked.insert(peer);
                watch.asked_count += 1;
                self.ask(peer, subject, now.since(first));
            }
        }
    }

    /// Says aloud that we miss a subject, if there is enough to it.
    ///
    /// One lost datagram is not: a co-observer has to miss it too, or we have to miss it
    /// twice, whether or not there is anybody to ask, and more often the less we trust
    /// ourselves; a co-observer that reached it clears it; and nobody is accused while it
    /// may be us who is cut off.
    pub(super) fn accuse(&mut self, now: Moment, subject: MemberKey) {
        let Some(watch) = self.watches.get(&subject) else {
            return;
        };
        let missing = watch.observed && watch.contact && watch.is_missing();
        let supported = watch.is_corroborated(now)
            || watch.in_row >= self.misses_needed()
            || !self.switches.indirect_probes;
        let Some(first) = watch.first_unanswered.filter(|_| missing && supported) else {
            return;
        };
        if watch.is_cleared(now) && self.switches.indirect_probes {
            return;
        }
        let indirect = watch.indirect;
        if !self.heard_since(first + PROBE_TIMEOUT) || self.is_doubtful(now) {
            self.stats.misses_withheld += 1;
            return;
        }
        if let Some(watch) = self.watches.get_mut(&subject) {
            watch.claimed = true;
        }
        let silent_ms = millis(now.since(first));
        self.claim(
            now,
            subject,
            Finding::Missed {
                silent_ms,
                indirect,
            },
        );
        self.suspect(now, self.key, subject);
    }

    /// How often in a row we alone have to miss a subject before we accuse it: twice at full
    /// health, six times at the worst.
    fn misses_needed(&self) -> u32 {
        2 + u32::from(self.health.score() / 2)
    }

    pub(super) fn claim(&mut self, now: Moment, subject: MemberKey, finding: Finding) {
        let Some(generation) = self.table.member(subject).map(|member| member.generation()) else {
            return;
        };
        let claim = Claim {
            accuser: self.key,
            subject,
            generation,
            finding,
            age_ms: 0,
            health: self.health.score(),
        };
        self.tell_judge(claim.clone());
        self.outbox.claim(now, claim);
        self.timers.set_by(Timer::Claims, now + CLAIM_BATCH);
    }

    /// Asks the subject's other observers, and aggregators, to try it now.
    pub(super) fn ask_others(&mut self, now: Moment, subject: MemberKey, silent: Duration) {
        use rand::seq::SliceRandom;
        let mut others = self.observers_of(subject);
        for &aggregator in self.table.aggregators() {
            if self.links.is_up(aggregator) && !others.contains(&aggregator) {
                others.push(aggregator);
            }
        }
        let unheard = |key: &MemberKey| self.watches.get(key).is_some_and(Watch::is_missing);
        others.retain(|key| *key != self.key && *key != subject && !unheard(key));
        let (mut linked, mut far): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|&key| self.links.is_up(key));
        far.shuffle(&mut self.rng);
        let in_row = self.watches.get(&subject).map_or(0, |watch| watch.in_row);
        if in_row > ASK_ALL_MISSES {
            linked.shuffle(&mut self.rng);
            linked.truncate(ASK_LINKS_MIN);
        }
        let missing = ASK_LINKS_MIN.saturating_sub(linked.len());
        for peer in far.into_iter().take(missing) {
            let free = !self.links.is_dialing(peer) && self.links.may_dial_at(now, peer) <= now;
            if free && self.links.take_token(now) && self.dial(now, peer) {
                self.asks.entry(peer).or_default().insert(subject);
            }
        }
        if let Some(watch) = self.watches.get_mut(&subject) {
            watch.asked = linked.iter().copied().collect();
            watch.asked_count = linked.len();
            watch.heard_from = 0;
        }
        let wait = self.health.stretch(PROBE_TIMEOUT) + ASK_GRACE;
        self.timers.set(Timer::Asked(subject), now + wait);
        for peer in linked {
            self.ask(peer, subject, silent);
        }
    }

    pub(super) fn worsen(&mut self) {
        if self.switches.local_health {
            self.health.worsen();
        }
    }

    fn ask(&mut self, peer: MemberKey, subject: MemberKey, silent: Duration) {
        self.stats.indirect_asked += 1;
        let request = ProbeRequest {
            seq: self.probe_seq,
            subject,
            silent_ms: millis(silent),
        };
        self.send(peer, Frame::ProbeRequest(request));
    }

    /// Whether most of our own probes are missed by us alone (Lifeguard's local health,
    /// carried further: such a member accuses nobody). Subjects that a co-observer
    /// misses too do not count against us, so a failing rack silences nobody.
    fn is_doubtful(&self, now: Moment) -> bool {
        if !self.switches.local_health {
            return false;
        }
        let proven = self
            .watches
            .iter()
            .filter(|(_, watch)| watch.observed && watch.contact);
        let (mut watched, mut alone) = (0, 0);
        for (subject, watch) in proven {
            watched += 1;
            let shared = watch.is_corroborated(now)
                || self
                    .suspicions
                    .get(subject)
                    .is_some_and(|s| s.by_another(self.key, now, REPORT_FRESH));
            alone += usize::from(watch.is_missing() && !shared);
        }
        self.size() > 2 && alone * 2 > watched
    }

    /// Whether anybody was heard since then; of two members one has nobody else to hear.
    fn heard_since(&self, then: Moment) -> bool {
        self.size() <= 2 || self.heard_at > then || !self.switches.local_health
    }

    /// Whether nobody at all is heard, though somebody should be.
    pub(super) fn is_deaf(&self, now: Moment) -> bool {
        let silent = now.since(self.heard_at) > DEAF_AFTER;
        self.size() > 2 && silent && self.switches.local_health
    }
}
