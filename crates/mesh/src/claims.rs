//! Claims and self-reports on their way to the aggregators.
//!
//! What waits ages: the age that travels is that of the finding plus the time it
//! was held here, and what is older than [`CLAIM_AGE_MAX`] is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::frame::{CLAIMS_MAX, Claim, Finding, Frame, REPORTS_MAX, SelfReport};
use swimlet_protocol::{Bounded, Generation, MemberKey, Moment};

use crate::constants::{CLAIM_AGE_MAX, CLAIM_ORDER_SLACK, CLAIM_REPEAT_MIN, NEWS_BYTES, RELAY_MAX};

/// What waits to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Our own claims, the newest per subject; we watch few.
    mine: BTreeMap<MemberKey, Aged<Claim>>,
    /// Accusations we took back, said again until no older word can be under way; an
    /// entry per subject whose last claim was [`Finding::Answered`].
    repeats: BTreeMap<MemberKey, Repeat>,
    /// Our own last self-report.
    report: Option<Aged<SelfReport>>,
    /// As an aggregator: what came from agents, for the other aggregators.
    relayed: VecDeque<Aged<Claim>>,
    reports: VecDeque<Aged<SelfReport>>,
    claims_dropped: u64,
    reports_dropped: u64,
}

#[derive(Clone, Debug)]
struct Aged<T> {
    item: T,
    /// When it was found, on our clock.
    found: Moment,
}

/// A word that is said again.
#[derive(Debug)]
struct Repeat {
    claim: Aged<Claim>,
    due: Moment,
    pause: Duration,
}

/// The last claim of one accuser about one subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    finding: Finding,
    generation: Generation,
    /// When it was found, on our clock: later than in truth by the time on the wire.
    found: Moment,
}

/// What a claim adds to what its accuser said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is the accuser's latest word.
    New,
    /// The accuser said just this before.
    Repeated,
    /// The accuser found something else since.
    Older,
}

impl Heard {
    pub(crate) fn new(now: Moment, claim: &Claim) -> Self {
        Self {
            finding: claim.finding,
            generation: claim.generation,
            found: found(now, claim.age_ms),
        }
    }

    /// When it was found.
    pub(crate) const fn found(&self) -> Moment {
        self.found
    }

    /// How `next` stands to this one of the same accuser about the same subject.
    ///
    /// Where the wire may have changed their order, the answer is taken for the later
    /// one: a miss is said again a second later, a false one would stand for ten.
    pub(crate) fn order(&self, next: &Self) -> Order {
        if (next.generation, next.finding) == (self.generation, self.finding) {
            return Order::Repeated;
        }
        let newer = match (self.finding, next.finding) {
            (Finding::Answered, Finding::Missed { .. }) => {
                next.found > self.found + CLAIM_ORDER_SLACK
            }
            _ => next.found + CLAIM_ORDER_SLACK >= self.found,
        };
        if newer || next.generation != self.generation {
            Order::New
        } else {
            Order::Older
        }
    }
}

impl Outbox {
    /// Claims that wait.
    pub(crate) fn claims(&self) -> usize {
        self.mine.len() + self.relayed.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims() == 0 && self.report.is_none() && self.reports.is_empty()
    }

    pub(crate) const fn claims_dropped(&self) -> u64 {
        self.claims_dropped
    }

    pub(crate) const fn reports_dropped(&self) -> u64 {
        self.reports_dropped
    }

    /// A claim of our own, in place of the last one about the same subject. "It
    /// answered" is repeated: datagrams get lost, and what it takes back lives on.
    pub(crate) fn claim(&mut self, now: Moment, claim: Claim) {
        if claim.finding == Finding::Answered {
            let repeat = Repeat {
                claim: Aged {
                    found: found(now, claim.age_ms),
                    item: claim.clone(),
                },
                due: now + CLAIM_REPEAT_MIN,
                pause: CLAIM_REPEAT_MIN,
            };
            self.repeats.insert(claim.subject, repeat);
        } else {
            self.repeats.remove(&claim.subject);
        }
        let aged = Aged {
            found: found(now, claim.age_ms),
            item: claim,
        };
        self.mine.insert(aged.item.subject, aged);
    }

    /// Queues again what is due to be said again.
    pub(crate) fn repeat(&mut self, now: Moment) {
        let mine = &mut self.mine;
        self.repeats.retain(|&subject, repeat| {
            if repeat.due <= now {
                mine.entry(subject).or_insert_with(|| repeat.claim.clone());
                repeat.pause *= 2;
                repeat.due = now + repeat.pause;
            }
            repeat.due.since(repeat.claim.found) <= CLAIM_AGE_MAX
        });
    }

    /// When something is due to be said again.
    pub(crate) fn next_repeat(&self) -> Option<Moment> {
        self.repeats.values().map(|repeat| repeat.due).min()
    }

    /// Our own self-report.
    pub(crate) fn report(&mut self, now: Moment, report: SelfReport) {
        let found = now.before(Duration::from_millis(report.age_ms.into()));
        self.report = Some(Aged {
            item: report,
            found,
        });
    }

    /// An agent's claim for the other aggregators.
    pub(crate) fn relay(&mut self, now: Moment, claim: Claim) {
        if self.relayed.len() >= RELAY_MAX {
            self.relayed.pop_front();
            self.claims_dropped += 1;
        }
        let found = found(now, claim.age_ms);
        self.relayed.push_back(Aged { item: claim, found });
    }

    /// An agent's self-report for the other aggregators.
    pub(crate) fn relay_report(&mut self, now: Moment, report: SelfReport) {
        if self.reports.len() >= RELAY_MAX {
            self.reports.pop_front();
            self.reports_dropped += 1;
        }
        let found = now.before(Duration::from_millis(report.age_ms.into()));
        self.reports.push_back(Aged {
            item: report,
            found,
        });
    }

    /// Drops what is too old.
    pub(crate) fn expire(&mut self, now: Moment) {
        let fresh = |found: Moment| now.since(found) <= CLAIM_AGE_MAX;
        let before = self.claims();
        self.mine.retain(|_, aged| fresh(aged.found));
        self.relayed.retain(|aged| fresh(aged.found));
        self.claims_dropped += (before - self.claims()) as u64;
        let before = self.reports.len() + usize::from(self.report.is_some());
        self.report.take_if(|aged| !fresh(aged.found));
        self.reports.retain(|aged| fresh(aged.found));
        let after = self.reports.len() + usize::from(self.report.is_some());
        self.reports_dropped += (before - after) as u64;
    }

    /// Takes all claims, as frames, and their number.
    pub(crate) fn take_claims(&mut self, now: Moment) -> (Vec<Frame>, usize) {
        let mine = std::mem::take(&mut self.mine).into_values();
        let claims: Vec<_> = mine
            .chain(self.relayed.drain(..))
            .map(|aged| Claim {
                age_ms: millis(now.since(aged.found)),
                ..aged.item
            })
            .collect();
        let count = claims.len();
        let frames = batches::<_, CLAIMS_MAX>(claims, encoded_len)
            .map(Frame::Claims)
            .collect();
        (frames, count)
    }

    /// Takes all self-reports, as frames.
    pub(crate) fn take_reports(&mut self, now: Moment) -> Vec<Frame> {
        let reports = self.report.take().into_iter().chain(self.reports.drain(..));
        let reports: Vec<_> = reports
            .map(|aged| SelfReport {
                age_ms: millis(now.since(aged.found)),
                ..aged.item
            })
            .collect();
        batches::<_, REPORTS_MAX>(reports, encoded_len)
            .map(Frame::Reports)
            .collect()
    }
}

/// When something of this age was found, on our clock.
pub(crate) fn found(now: Moment, age_ms: u32) -> Moment {
    now.before(Duration::from_millis(age_ms.into()))
}

/// A duration in whole milliseconds; 49 days at most.
pub(crate) fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// Cuts items into lists that fit a frame by number and by bytes.
fn batches<T, const MAX: usize>(
    items: Vec<T>,
    bytes: impl Fn(&T) -> usize,
) -> impl Iterator<Item = Bounded<T, MAX>> {
    let mut batches: Vec<Bounded<T, MAX>> = Vec::new();
    let mut left = 0;
    for item in items {
        let len = bytes(&item);
        if len > left || batches.last().is_none_or(|batch| batch.len() >= MAX) {
            batches.push(Bounded::new());
            left = NEWS_BYTES;
        }
        left = left.saturating_sub(len);
        if let Some(batch) = batches.last_mut() {
            // The batch was seen to have room.
            let _ = batch.push(item);
        }
    }
    batches.into_iter()
}

#[cfg(test)]
mod tests {
    use swimlet_protocol::codec::encode_frame;
    use swimlet_protocol::frame::Check;

    use super::*;

    fn claim(subject: u64, age_ms: u32) -> Claim {
        Claim {
            accuser: MemberKey(1),
            subject: MemberKey(subject),
            generation: Generation(u64::MAX),
            finding: Finding::Missed {
                silent_ms: u32::MAX,
                indirect: false,
            },
            age_ms,
            health: 0,
        }
    }

    #[test]
    fn ages_add_up_and_the_old_is_dropped() {
        let at = |ms: u64| Moment::from_micros(100_000_000 + ms * 1_000);
        let mut outbox = Outbox::default();
        outbox.claim(at(0), claim(1, 0));
        outbox.claim(at(100), claim(1, 0));
        outbox.relay(at(0), claim(2, 9_000));
        outbox.relay(at(0), claim(3, 9_800));
        outbox.expire(at(300));
        assert_eq!(outbox.claims_dropped(), 1);
        let (frames, count) = outbox.take_claims(at(300));
        assert_eq!(count, 2);
        let Frame::Claims(claims) = &frames[0] else {
            panic!("{frames:?}");
        };
        assert_eq!(**claims, [claim(1, 200), claim(2, 9_300)]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn an_answer_is_said_again_until_no_older_word_lives() {
        let at = |ms: u64| Moment::from_micros(100_000_000 + ms * 1_000);
        let answered = Claim {
            finding: Finding::Answered,
            ..claim(1, 0)
        };
        let mut outbox = Outbox::default();
        outbox.claim(at(0), answered.clone());
        let mut ages = Vec::new();
        let mut now = Some(at(0));
        while let Some(due) = now {
            outbox.repeat(due);
            let (frames, _) = outbox.take_claims(due);
            for frame in frames {
                let Frame::Claims(claims) = frame else {
                    panic!("{frame:?}");
                };
                ages.extend(claims.iter().map(|claim| claim.age_ms));
            }
            now = outbox.next_repeat();
        }
        assert_eq!(ages, [0, 500, 1_500, 3_500, 7_500]);
        outbox.claim(at(0), answered);
        outbox.claim(at(1), claim(1, 0));
        assert_eq!(outbox.next_repeat(), None, "it is missed again");
    }

    #[test]
    fn an_answer_wins_over_an_older_miss_in_whatever_order_they_come() {
        let at = |ms: u64| Moment::from_micros(100_000_000 + ms * 1_000);
        let missed = |now, age| Heard::new(at(now), &claim(1, age));
        let answered = |now, age| {
            let claim = Claim {
                finding: Finding::Answered,
                ..claim(1, age)
            };
            Heard::new(at(now), &claim)
        };
        assert_eq!(answered(100, 0).order(&missed(3_000, 2_950)), Order::Older);
        assert_eq!(answered(100, 0).order(&missed(300, 0)), Order::Older);
        assert_eq!(answered(100, 0).order(&missed(900, 0)), Order::New);
        assert_eq!(missed(300, 0).order(&answered(300, 200)), Order::New);
        assert_eq!(
            missed(5_000, 0).order(&answered(5_100, 2_000)),
            Order::Older
        );
        assert_eq!(answered(100, 0).order(&answered(700, 500)), Order::Repeated);
    }

    #[test]
    fn queues_are_bounded_and_frames_fit() {
        let mut outbox = Outbox::default();
        let now = Moment::from_micros(1);
        for i in 0..RELAY_MAX as u64 + 5 {
            outbox.relay(now, claim(i, 0));
            outbox.relay_report(
                now,
                SelfReport {
                    node: MemberKey(i),
                    generation: Generation(u64::MAX),
                    age_ms: 0,
                    kubelet_healthz: Check::Passing,
                    kubelet_port: Check::Passing,
                    api: Check::Passing,
                },
            );
        }
        assert_eq!((outbox.claims_dropped(), outbox.reports_dropped()), (5, 5));
        let later = Moment::from_micros(1_000_000);
        let (frames, count) = outbox.take_claims(later);
        assert_eq!(count, RELAY_MAX);
        for frame in frames.iter().chain(&outbox.take_reports(later)) {
            encode_frame(frame).unwrap();
        }
    }
}
