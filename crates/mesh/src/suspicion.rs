//! Who accuses whom, and when that is enough.
//!
//! A word counts for the member at the other end of the link it came over (or, at an
//! aggregator, for the accuser an aggregator names), so one link is one accuser
//! however much it says. A word names generation and incarnation: a restart or a
//! refutation of the subject makes it void.

use std::collections::BTreeMap;
use std::time::Duration;

use swimlet_protocol::{Incarnation, MemberKey, MemberState, Moment};

use crate::constants::{
    ACCUSERS_KEPT, ACCUSERS_MIN, CLAIM_AGE_MAX, CONFIRMATIONS, GOSSIP_INTERVAL, STATE_WORD_KEPT,
    SUSPICION_PROBES, SUSPICION_RATIO,
};

/// The accusations against one member in one generation.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion {
    /// Since when the accusers were enough without a break.
    enough_since: Option<Moment>,
    words: BTreeMap<MemberKey, Word>,
}

/// What one accuser says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    /// What it holds the member to be.
    pub(crate) state: MemberState,
    /// At which incarnation.
    pub(crate) at: Incarnation,
    /// When it said so, on our clock.
    pub(crate) said: Moment,
}

impl Suspicion {
    pub(crate) fn new() -> Self {
        Self {
            enough_since: None,
            words: BTreeMap::new(),
        }
    }

    /// Takes a word; `false` if there is no room for one more accuser.
    pub(crate) fn say(&mut self, accuser: MemberKey, word: Word) -> bool {
        if self.words.len() >= ACCUSERS_KEPT && !self.words.contains_key(&accuser) {
            return false;
        }
        let kept = self.words.entry(accuser).or_insert(word);
        // Words may overtake each other.
        if word.said >= kept.said {
            *kept = word;
        }
        true
    }

    /// Takes the accuser's word back.
    pub(crate) fn withdraw(&mut self, accuser: MemberKey) {
        self.words.remove(&accuser);
    }

    /// Takes back every word but those of members that hold it Down or Left.
    pub(crate) fn withdraw_suspicions(&mut self) {
        self.words
            .retain(|_, word| matches!(word.state, MemberState::Down | MemberState::Left));
    }

    /// Drops words that were refuted by `incarnation` or are too old; `false` if none is left.
    pub(crate) fn expire(&mut self, now: Moment, incarnation: Incarnation) -> bool {
        self.words.retain(|_, word| {
            let kept = match word.state {
                MemberState::Down | MemberState::Left => STATE_WORD_KEPT,
                MemberState::Alive | MemberState::Suspect => CLAIM_AGE_MAX,
            };
            word.at >= incarnation && now.since(word.said) <= kept
        });
        !self.words.is_empty()
    }

    /// Since when there are at least `needed` accusers, if there are.
    pub(crate) fn enough(&mut self, now: Moment, needed: usize) -> Option<Moment> {
        self.enough_since = if self.words.len() >= needed {
            self.enough_since.or(Some(now))
        } else {
            None
        };
        self.enough_since
    }

    /// Whether this member accuses it.
    pub(crate) fn accuses(&self, accuser: MemberKey) -> bool {
        self.words.contains_key(&accuser)
    }

    /// Distinct accusers.
    pub(crate) fn accusers(&self) -> usize {
        self.words.len()
    }

    /// Whether somebody other than `me` accuses it, by a word not older than `fresh`.
    pub(crate) fn by_another(&self, me: MemberKey, now: Moment, fresh: Duration) -> bool {
        self.words
            .iter()
            .any(|(&accuser, word)| accuser != me && now.since(word.said) <= fresh)
    }

    /// Members that say it left.
    pub(crate) fn farewells(&self) -> usize {
        let left = |word: &&Word| word.state == MemberState::Left;
        self.words.values().filter(left).count()
    }

    /// Moves everything by the time in which we were not run.
    pub(crate) fn shift(&mut self, late: Duration) {
        if let Some(since) = &mut self.enough_since {
            *since += late;
        }
        for word in self.words.values_mut() {
            word.said += late;
        }
    }
}

/// How many distinct accusers bring a member down that has this many observers alive:
/// [`ACCUSERS_MIN`], or all of them where there are fewer, and always one.
pub(crate) fn accusers_needed(observers: usize) -> usize {
    observers.clamp(1, ACCUSERS_MIN)
}

/// The shortest suspicion in a mesh of n members, with [`CONFIRMATIONS`] or more:
/// [`SUSPICION_PROBES`] + 2 · ⌈log₂(n + 1)⌉ · [`GOSSIP_INTERVAL`].
///
/// Time for more probes of each observer, for the suspicion to reach the member and for its
/// refutation to reach everybody: epidemic news takes log₂ n rounds to all of n (SWIM, DSN
/// 2002, §4.2 derives its own timeout from the same).
pub(crate) fn suspicion_min(members: usize) -> Duration {
    let rounds = usize::BITS - members.leading_zeros();
    SUSPICION_PROBES + GOSSIP_INTERVAL * (2 * rounds)
}

/// The longest, without any confirmation beyond the first accuser:
/// [`SUSPICION_RATIO`] times the shortest.
pub(crate) fn suspicion_max(members: usize) -> Duration {
    suspicion_min(members) * SUSPICION_RATIO
}

/// How long a suspicion lasts with this many accusers in a mesh of that many members:
/// Lifeguard's formula (arXiv 1707.00788 §IV-B),
/// `max(MIN, MAX − (MAX − MIN) · log(c + 1) / log(K + 1))`, where c counts the
/// confirmations beyond the first accuser.
pub(crate) fn suspicion_timeout(accusers: usize, members: usize) -> Duration {
    let (shortest, longest) = (suspicion_min(members), suspicion_max(members));
    let confirmations = u32::try_from(accusers.saturating_sub(1)).unwrap_or(u32::MAX);
    let share = f64::from(confirmations.saturating_add(1)).ln() / f64::from(CONFIRMATIONS + 1).ln();
    let range = longest.saturating_sub(shortest);
    longest.saturating_sub(range.mul_f64(share.clamp(0.0, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_micros(seconds * 1_000_000)
    }

    fn word(state: MemberState, incarnation: u16, second: u64) -> Word {
        Word {
            state,
            at: Incarnation(incarnation),
            said: at(second),
        }
    }

    #[test]
    fn the_timeout_follows_lifeguard() {
        for members in [2, 11, 60, 5_000] {
            let (shortest, longest) = (suspicion_min(members), suspicion_max(members));
            assert_eq!(suspicion_timeout(0, members), longest);
            assert_eq!(suspicion_timeout(1, members), longest);
            assert_eq!(suspicion_timeout(2, members), (longest + shortest) / 2);
            assert_eq!(suspicion_timeout(4, members), shortest);
            assert_eq!(suspicion_timeout(400, members), shortest);
        }
    }

    #[test]
    fn the_bounds_of_the_timeout_grow_with_the_time_news_takes() {
        let bounds = |members| {
            let of = |bound: Duration| bound.as_millis();
            (of(suspicion_min(members)), of(suspicion_max(members)))
        };
        assert_eq!(bounds(2), (2_800, 8_400));
        assert_eq!(bounds(11), (3_600, 10_800));
        assert_eq!(bounds(5_000), (7_200, 21_600));
    }

    #[test]
    fn three_accusers_or_all_observers() {
        let needed: Vec<_> = [0, 1, 2, 3, 10].map(accusers_needed).into();
        assert_eq!(needed, [1, 1, 2, 3, 3]);
    }

    #[test]
    fn one_voice_counts_once_and_refuted_or_old_words_not_at_all() {
        let mut suspicion = Suspicion::new();
        for second in 0..5 {
            assert!(suspicion.say(MemberKey(1), word(MemberState::Suspect, 0, second)));
        }
        assert!(suspicion.say(MemberKey(2), word(MemberState::Suspect, 1, 0)));
        assert!(suspicion.say(MemberKey(3), word(MemberState::Down, 0, 0)));
        assert_eq!(suspicion.accusers(), 3);
        assert!(suspicion.expire(at(11), Incarnation(0)));
        assert_eq!(
            suspicion.accusers(),
            2,
            "the old suspicion is gone, the old state is not"
        );
        assert!(
            !suspicion.expire(at(11), Incarnation(2)),
            "a refutation voids the rest"
        );
    }

    #[test]
    fn accusers_are_bounded() {
        let mut suspicion = Suspicion::new();
        let taken = (0..100)
            .filter(|&i| suspicion.say(MemberKey(i), word(MemberState::Suspect, 0, 0)))
            .count();
        assert_eq!(taken, ACCUSERS_KEPT);
        assert!(suspicion.say(MemberKey(0), word(MemberState::Down, 0, 1)));
    }
}
