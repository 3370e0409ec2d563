//! Claims and self-reports on their way to the aggregators.
//!
//! What waits ages: the age that travels is that of the finding plus the time it
//! was held here, and what is older than [`CLAIM_AGE_MAX`] is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::frame::{CLAIMS_MAX, Claim, Frame, REPORTS_MAX, SelfReport};
use swimlet_protocol::{Bounded, MemberKey, Moment};

use crate::constants::{CLAIM_AGE_MAX, NEWS_BYTES, RELAY_MAX};

/// What waits to be sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Our own claims, the newest per subject; we watch few.
    mine: BTreeMap<MemberKey, Aged<Claim>>,
    /// Our own last self-report.
    report: Option<Aged<SelfReport>>,
    /// As an aggregator: what came from agents, for the other aggregators.
    relayed: VecDeque<Aged<Claim>>,
    reports: VecDeque<Aged<SelfReport>>,
    claims_dropped: u64,
    reports_dropped: u64,
}

#[derive(Debug)]
struct Aged<T> {
    item: T,
    /// When it was found, on our clock.
    found: Moment,
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

    /// A claim of our own, in place of the last one about the same subject.
    pub(crate) fn claim(&mut self, now: Moment, claim: Claim) {
        let aged = Aged {
            found: now.before(Duration::from_millis(claim.age_ms.into())),
            item: claim,
        };
        self.mine.insert(aged.item.subject, aged);
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
        let found = now.before(Duration::from_millis(claim.age_ms.into()));
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
    use swimlet_protocol::Generation;
    use swimlet_protocol::codec::encode_frame;
    use swimlet_protocol::frame::{Check, Finding};

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
