//! Probes and their answers.

use std::time::Duration;

use swimlet_protocol::frame::{Ack, Finding, Probe, ProbeOutcome, ProbeReport};
use swimlet_protocol::{Frame, MemberKey, MemberState, Moment};

use super::Mesh;
use crate::api::{Event, Output};
use crate::constants::{
    DIAL_PROBE_TIMEOUT, ERRANDS_MAX, HOME_MISSES_MAX, KEEP_INTERVAL, MISSING_INTERVAL,
    PIGGYBACK_BYTES, PROBE_INTERVAL, PROBE_TIMEOUT, REACHED_GRACE, SLOT_MIN,
};
use crate::timers::Timer;
use crate::watch::{Open, Reply, Watch};

impl Mesh {
    /// The next probe of a subject is due.
    pub(super) fn probe_due(&mut self, now: Moment, subject: MemberKey) {
        let idle = self
            .watches
            .get(&subject)
            .is_some_and(|watch| watch.open.is_none());
        if idle {
            self.probe(now, subject, false);
        }
    }

    /// Sends a probe, or dials to send one.
    pub(super) fn probe(&mut self, now: Moment, subject: MemberKey, indirect: bool) {
        let Some(watch) = self.watches.get(&subject) else {
            return;
        };
        let (contact, wanted) = (watch.contact, !watch.replies.is_empty());
        let gone = self.table.state(subject).is_none_or(MemberState::is_gone);
        if gone && !wanted {
            return;
        }
        let open = |dialing| Open {
            sent: now,
            dialing,
            indirect,
        };
        if self.links.is_up(subject) {
            self.open_probe(subject, open(false));
            self.send_probe(now, subject);
            return;
        }
        if !self.links.is_dialing(subject) {
            // A subject that never answered is dialled at the pace of repairs.
            if !contact && !wanted {
                return;
            }
            let retry = self.links.may_dial_at(now, subject);
            if retry > now && !wanted {
                self.timers.set(Timer::Probe(subject), retry);
                return;
            }
            if !self.dial(now, subject) {
                self.reply_all(subject, ProbeOutcome::NoStatement);
                self.timers
                    .set(Timer::Probe(subject), now + MISSING_INTERVAL);
                return;
            }
        }
        self.open_probe(subject, open(true));
        let timeout = self.health.stretch(DIAL_PROBE_TIMEOUT);
        self.timers.set(Timer::Timeout(subject), now + timeout);
    }

    /// Puts a probe on the subject's link.
    pub(super) fn send_probe(&mut self, now: Moment, subject: MemberKey) {
        let Some((target, _, held)) = self.table.standing(subject) else {
            return;
        };
        self.probe_seq = self.probe_seq.wrapping_add(1);
        let seq = self.probe_seq;
        let probe = Probe {
            seq,
            target,
            held,
            digest: self.digest(),
            news: self.news_for(subject, PIGGYBACK_BYTES),
        };
        if let Some(watch) = self.watches.get_mut(&subject) {
            watch.probe_sent(seq);
            if let Some(open) = &mut watch.open {
                open.dialing = false;
            }
        }
        self.stats.probes += 1;
        let timeout = self.health.stretch(PROBE_TIMEOUT);
        self.timers.set(Timer::Timeout(subject), now + timeout);
        self.send(subject, Frame::Probe(probe));
    }

    /// An open probe was not answered in time.
    pub(super) fn probe_timed_out(&mut self, now: Moment, subject: MemberKey) {
        let deaf = self.is_deaf(now);
        let Some(watch) = self.watches.get_mut(&subject) else {
            return;
        };
        let Some(open) = watch.open else {
            return;
        };
        let replies = watch.missed();
        let next = (open.sent + MISSING_INTERVAL).max(now + Duration::from_millis(1));
        if !watch.contact {
            // Only a path that worked can fail. But claims need a home that hears them.
            watch.forgive();
            watch.never_answered = watch.never_answered.saturating_add(1);
            let useless = watch.never_answered >= HOME_MISSES_MAX;
            self.timers.set(Timer::Probe(subject), next);
            self.reply_unproven(subject, replies);
            if useless {
                self.home_failed(now, subject);
            }
            self.drop_if_idle(subject);
            return;
        }
        self.stats.misses += 1;
        let (observed, in_row) = (watch.observed, watch.in_row);
        let silent = now.since(watch.first_unanswered.unwrap_or(open.sent));
        let outcome = if deaf {
            ProbeOutcome::NoStatement
        } else {
            ProbeOutcome::NotReached
        };
        for reply in replies {
            self.reply(subject, reply, outcome);
        }
        if self.drop_if_idle(subject) {
            return;
        }
        self.timers.set(Timer::Probe(subject), next);
        if in_row >= HOME_MISSES_MAX {
            self.home_failed(now, subject);
            self.try_hint(now, subject);
        }
        if observed {
            self.event(Event::Missed {
                subject,
                silent,
                in_row,
            });
            self.ask_others(now, subject, silent);
            // Whoever reaches it says so within a round trip.
            self.timers.set(Timer::Accuse(subject), now + REACHED_GRACE);
        }
    }

    /// Somebody probes us.
    pub(super) fn on_probe(&mut self, now: Moment, from: MemberKey, probe: Probe) {
        self.probed_by.insert(from, now);
        if probe.target == self.me.generation {
            if matches!(probe.held, MemberState::Suspect | MemberState::Down) {
                self.refute(now, self.ledger.incarnation());
            }
        } else {
            // It knows another start of ours: introduce ourselves again.
            self.reintroduce(from);
        }
        let ack = Ack {
            seq: probe.seq,
            generation: self.me.generation,
            incarnation: self.ledger.incarnation(),
            next_slot_ms: self.next_slot_ms(now, from),
            digest: self.digest(),
            news: self.news_for(from, PIGGYBACK_BYTES),
        };
        self.send(from, Frame::Ack(ack));
        if self.table.state(from) == Some(MemberState::Suspect) {
            // Lifeguard's buddy the other way round: whoever probes us hears it as well.
            self.tell_held(from, MemberState::Suspect);
        }
        self.on_news(now, from, probe.news);
        self.compare_digest(now, from, probe.digest);
    }

    /// Somebody answers.
    pub(super) fn on_ack(&mut self, now: Moment, from: MemberKey, ack: Ack) {
        let expected = self
            .watches
            .get(&from)
            .is_some_and(|watch| watch.expects(ack.seq));
        if !expected {
            self.stats.dropped_unasked += 1;
            return;
        }
        if !self.own_generation(now, from, ack.generation, ack.incarnation) {
            return;
        }
        self.answered(now, from, ack.next_slot_ms);
        self.on_news(now, from, ack.news);
        self.compare_digest(now, from, ack.digest);
    }

    /// A subject answered a probe of ours: it lives, whatever anybody says.
    fn answered(&mut self, now: Moment, subject: MemberKey, next_slot_ms: u16) {
        self.stats.acks += 1;
        self.timers.cancel(Timer::Timeout(subject));
        self.timers.cancel(Timer::Asked(subject));
        self.timers.cancel(Timer::Accuse(subject));
        self.table.note_contact(subject, now);
        let Some(watch) = self.watches.get_mut(&subject) else {
            return;
        };
        let claimed = std::mem::take(&mut watch.claimed);
        let (observed, in_time) = (watch.observed, watch.open.is_some());
        let replies = watch.answered();
        if in_time {
            self.health.improve();
        }
        for reply in replies {
            self.reply(subject, reply, ProbeOutcome::Reached);
        }
        self.acquit(now, subject);
        if self.table.state(subject) == Some(MemberState::Down) {
            self.tell_held(subject, MemberState::Down);
        }
        if claimed {
            self.claim(now, subject, Finding::Answered);
        }
        if self.drop_if_idle(subject) {
            return;
        }
        let pause = if observed {
            let period = self.period_of(subject);
            Duration::from_millis(next_slot_ms.into()).clamp(SLOT_MIN, period + period / 2)
        } else {
            KEEP_INTERVAL
        };
        self.timers.set(Timer::Probe(subject), now + pause);
    }

    /// The edge asks for an active verification.
    pub(super) fn probe_now(&mut self, now: Moment, subject: MemberKey, token: u64) {
        let reply = Reply::Edge { token };
        if self.table.member(subject).is_none() || !self.errand(now, subject, reply) {
            self.reply(subject, reply, ProbeOutcome::NoStatement);
        }
    }

    /// We were not run: open probes get a fresh chance, and who waited for them hears nothing.
    pub(super) fn reprobe_all(&mut self, now: Moment) {
        let subjects: Vec<_> = self.watches.keys().copied().collect();
        for subject in subjects {
            let Some(watch) = self.watches.get_mut(&subject) else {
                continue;
            };
            let disturbed = watch.open.is_some() || watch.is_missing();
            watch.forgive();
            self.timers.cancel(Timer::Timeout(subject));
            self.timers.cancel(Timer::Asked(subject));
            self.timers.cancel(Timer::Accuse(subject));
            self.reply_all(subject, ProbeOutcome::NoStatement);
            if disturbed && !self.drop_if_idle(subject) {
                self.probe(now, subject, false);
            }
        }
    }

    /// Removes a watch nobody needs.
    pub(super) fn drop_if_idle(&mut self, subject: MemberKey) -> bool {
        let idle = self.watches.get(&subject).is_some_and(Watch::is_idle);
        if idle {
            self.watches.remove(&subject);
            self.timers.cancel(Timer::Probe(subject));
            self.timers.cancel(Timer::Timeout(subject));
            self.timers.cancel(Timer::Asked(subject));
            self.timers.cancel(Timer::Accuse(subject));
        }
        idle
    }

    /// Answers everybody who waits for a subject.
    pub(super) fn reply_all(&mut self, subject: MemberKey, outcome: ProbeOutcome) {
        let replies = self
            .watches
            .get_mut(&subject)
            .map(|watch| std::mem::take(&mut watch.replies));
        for reply in replies.into_iter().flatten() {
            self.reply(subject, reply, outcome);
        }
    }

    /// The watch of a subject, made if there is none.
    pub(super) fn watch(&mut self, now: Moment, subject: MemberKey) -> &mut Watch {
        let proven = !self.watches.contains_key(&subject) && self.is_path_proven(subject);
        self.watches
            .entry(subject)
            .or_insert_with(|| Watch::new(now, proven))
    }

    /// Whether the subject's own link, or an answer over it, showed that the path between us works.
    pub(super) fn is_path_proven(&self, subject: MemberKey) -> bool {
        let Some(member) = self.table.member(subject) else {
            return false;
        };
        let link = self.links.link(subject).map(|link| link.number);
        member.last_contact.is_some() || link.is_some_and(|number| number == member.confirmed_by)
    }

    /// Probes a subject for somebody; `false` if too many are under probe already.
    pub(super) fn errand(&mut self, now: Moment, subject: MemberKey, reply: Reply) -> bool {
        let room = self.watches.contains_key(&subject) || self.watches.len() < ERRANDS_MAX;
        if !room || !self.watch(now, subject).wait(reply) {
            self.stats.dropped_busy += 1;
            return false;
        }
        let idle = self
            .watches
            .get(&subject)
            .is_some_and(|watch| watch.open.is_none());
        if idle {
            self.probe(now, subject, true);
        }
        true
    }

    pub(super) fn reply(&mut self, subject: MemberKey, reply: Reply, outcome: ProbeOutcome) {
        match reply {
            Reply::Peer { to, seq } => self.send(
                to,
                Frame::ProbeReport(ProbeReport {
                    seq,
                    subject,
                    outcome,
                }),
            ),
            Reply::Edge { token } => self.output(Output::Probed {
                token,
                subject,
                outcome,
            }),
        }
    }

    /// Our path to the subject never worked: its silence is said to our own edge, which
    /// knows its baseline, and to no peer.
    fn reply_unproven(&mut self, subject: MemberKey, replies: Vec<Reply>) {
        for reply in replies {
            let outcome = match reply {
                Reply::Edge { .. } => ProbeOutcome::NotReached,
                Reply::Peer { .. } => ProbeOutcome::NoStatement,
            };
            self.reply(subject, reply, outcome);
        }
    }

    fn open_probe(&mut self, subject: MemberKey, open: Open) {
        self.timers.cancel(Timer::Probe(subject));
        if let Some(watch) = self.watches.get_mut(&subject) {
            watch.open = Some(open);
        }
    }

    /// How often each observer of that subject probes it.
    fn period_of(&self, subject: MemberKey) -> Duration {
        let observers = self.table.observer_count();
        let observers = observers.unwrap_or_else(|| self.observers_of(subject).len());
        let observers = u32::try_from(observers).unwrap_or(u32::MAX);
        PROBE_INTERVAL * observers.max(1)
    }

    /// When this observer should probe us next: our observers' turns come one
    /// [`PROBE_INTERVAL`] after another, in the order of their keys.
    fn next_slot_ms(&self, now: Moment, observer: MemberKey) -> u16 {
        let turns = self.observers.len().max(1);
        let turn = self.observers.iter().position(|&key| key == observer);
        // One that we do not count among them fits in somewhere.
        let turn = turn.unwrap_or_else(|| usize::try_from(observer.0 % turns as u64).unwrap_or(0));
        let interval = PROBE_INTERVAL.as_micros() as u64;
        let period = interval * turns as u64;
        let at = now.since(self.started).as_micros() as u64;
        // The first of its turns that is more than half a period away.
        let earliest = at + period / 2;
        let offset = interval * turn as u64;
        let rounds = earliest.saturating_sub(offset).div_ceil(period);
        let slot = offset + rounds * period;
        u16::try_from(slot.saturating_sub(at) / 1_000).unwrap_or(u16::MAX)
    }
}
