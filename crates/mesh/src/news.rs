//! Membership news on its way to the neighbours.
//!
//! The newest news about a member replaces what was waiting about it; each piece is
//! sent λ·log₂(n + 1) times (SWIM §4.1), the least often sent first. An aggregator's
//! word about a state is urgent: it goes to all of its links, because nobody believes
//! it second-hand.

use std::collections::{BTreeMap, BTreeSet};

use swimlet_protocol::MemberKey;
use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::frame::{NEWS_MAX, News, Update};

use crate::constants::{GOSSIP_FANOUT, GOSSIP_LAMBDA, NEWS_QUEUE_MAX};

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct NewsQueue {
    items: BTreeMap<MemberKey, Item>,
    /// How often each was sent, in which order they came.
    order: BTreeSet<(u32, u64, MemberKey)>,
    arrivals: u64,
    dropped: u64,
    urgent: BTreeMap<MemberKey, (Update, u8)>,
}

#[derive(Debug)]
struct Item {
    update: Update,
    bytes: usize,
    sent: u32,
    arrival: u64,
}

/// How often an aggregator's word goes out: datagrams get lost, and anti-entropy
/// brings what was lost twice.
const URGENT_TIMES: u8 = 2;

impl NewsQueue {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Pieces of news dropped because the queue was full.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Queues news about a member, in place of what was waiting about it.
    pub(crate) fn push(&mut self, about: MemberKey, update: Update) {
        self.remove(about);
        if self.items.len() >= NEWS_QUEUE_MAX
            && let Some(&(_, _, most_sent)) = self.order.last()
        {
            self.remove(most_sent);
            self.dropped += 1;
        }
        self.arrivals += 1;
        let item = Item {
            bytes: encoded_len(&update),
            update,
            sent: 0,
            arrival: self.arrivals,
        };
        self.order.insert((0, item.arrival, about));
        self.items.insert(about, item);
    }

    /// Somebody sent us what waits here: that transmission is one less for us. Without
    /// this a start of n members costs n² · λ·log₂(n) deliveries of news that everybody
    /// has (the feedback of Demers et al., PODC 1987, §1.4). Some neighbours hear it from
    /// us all the same, however often one repeats it.
    pub(crate) fn heard(&mut self, about: MemberKey, update: &Update, members: usize) {
        let same = self
            .items
            .get(&about)
            .is_some_and(|item| item.sent >= FEEDBACK_AFTER && item.update == *update);
        if same {
            self.count(about, transmissions(members));
        }
    }

    /// Queues an aggregator's word for all links.
    pub(crate) fn push_urgent(&mut self, about: MemberKey, update: Update) {
        if self.urgent.len() >= NEWS_QUEUE_MAX && !self.urgent.contains_key(&about) {
            self.dropped += 1;
            return;
        }
        self.urgent.insert(about, (update, URGENT_TIMES));
    }

    /// Takes the urgent words of this round; the second value says whether there is another round.
    pub(crate) fn take_urgent(&mut self) -> (Vec<Update>, bool) {
        let mut updates = Vec::with_capacity(self.urgent.len());
        self.urgent.retain(|_, (update, left)| {
            updates.push(update.clone());
            *left -= 1;
            *left > 0
        });
        (updates, !self.urgent.is_empty())
    }

    /// Takes what fits `bytes`, in a mesh of `members`.
    pub(crate) fn take(&mut self, bytes: usize, members: usize, first: Option<Update>) -> News {
        let mut news = News::new();
        let mut left = bytes;
        if let Some(update) = first {
            left = left.saturating_sub(encoded_len(&update));
            // A list with room for one takes it.
            let _ = news.push(update);
        }
        let limit = transmissions(members);
        let mut chosen = Vec::new();
        for &(_, _, about) in &self.order {
            let Some(item) = self.items.get(&about) else {
                continue;
            };
            if chosen.len() + news.len() >= NEWS_MAX {
                break;
            }
            if item.bytes <= left {
                left -= item.bytes;
                chosen.push(about);
            } else if left < UPDATE_BYTES_MIN {
                break;
            }
        }
        for about in chosen {
            if let Some(update) = self.sent(about, limit) {
                let _ = news.push(update);
            }
        }
        news
    }

    /// Counts one transmission of a queued piece and gives a copy of it.
    fn sent(&mut self, about: MemberKey, limit: u32) -> Option<Update> {
        let update = self.items.get(&about)?.update.clone();
        self.count(about, limit);
        Some(update)
    }

    /// Counts one transmission of a queued piece, the last of which takes it out.
    fn count(&mut self, about: MemberKey, limit: u32) {
        let Some(item) = self.items.get_mut(&about) else {
            return;
        };
        self.order.remove(&(item.sent, item.arrival, about));
        item.sent += 1;
        if item.sent < limit {
            self.order.insert((item.sent, item.arrival, about));
        } else {
            self.items.remove(&about);
        }
    }

    /// Takes out what waits about a member.
    pub(crate) fn remove(&mut self, about: MemberKey) {
        if let Some(item) = self.items.remove(&about) {
            self.order.remove(&(item.sent, item.arrival, about));
        }
    }
}

/// Own transmissions before those of others count: one round of gossip.
const FEEDBACK_AFTER: u32 = GOSSIP_FANOUT as u32;

/// The shortest update is a change of state: two keys and four small numbers.
const UPDATE_BYTES_MIN: usize = 20;

/// How often a piece of news is sent.
fn transmissions(members: usize) -> u32 {
    GOSSIP_LAMBDA * (usize::BITS - members.leading_zeros()).max(1)
}

/// Cuts a list of updates into frames' worth.
pub(crate) fn pack(updates: Vec<Update>, bytes: usize) -> Vec<News> {
    let mut packed = vec![News::new()];
    let mut left = bytes;
    for update in updates {
        let len = encoded_len(&update);
        let full = len > left || packed.last().is_none_or(|news| news.len() >= NEWS_MAX);
        if full {
            packed.push(News::new());
            left = bytes;
        }
        left = left.saturating_sub(len);
        if let Some(news) = packed.last_mut() {
            let _ = news.push(update);
        }
    }
    packed.retain(|news| !news.is_empty());
    packed
}

#[cfg(test)]
mod tests {
    use swimlet_protocol::codec::encode_frame;
    use swimlet_protocol::{Frame, Generation, Incarnation, MemberState};

    use super::*;
    use crate::constants::NEWS_BYTES;

    fn update(subject: u64, incarnation: u16) -> Update {
        Update::Changed {
            subject: MemberKey(subject),
            generation: Generation(u64::MAX),
            incarnation: Incarnation(incarnation),
            state: MemberState::Alive,
            by: MemberKey(subject),
        }
    }

    #[test]
    fn news_is_sent_a_bounded_number_of_times_and_the_newest_wins() {
        let mut queue = NewsQueue::default();
        queue.push(MemberKey(1), update(1, 0));
        queue.push(MemberKey(1), update(1, 7));
        let mut sent = 0;
        while queue.len() > 0 {
            let news = queue.take(NEWS_BYTES, 100, None);
            assert_eq!(*news, [update(1, 7)]);
            sent += 1;
        }
        assert_eq!(sent, 21, "3 · log2(100), rounded up");
    }

    #[test]
    fn news_that_others_spread_is_sent_less_often_but_to_some() {
        let mut queue = NewsQueue::default();
        queue.push(MemberKey(1), update(1, 7));
        for _ in 0..100 {
            queue.heard(MemberKey(1), &update(1, 7), 100);
        }
        let mut sent = 0;
        while queue.len() > 0 {
            assert_eq!(*queue.take(NEWS_BYTES, 100, None), [update(1, 7)]);
            sent += 1;
            queue.heard(MemberKey(1), &update(1, 7), 100);
            queue.heard(MemberKey(1), &update(1, 6), 100);
        }
        assert_eq!(sent, 12, "two, and half of the other nineteen");
    }

    #[test]
    fn the_queue_is_bounded_and_frames_fit() {
        let mut queue = NewsQueue::default();
        for i in 0..NEWS_QUEUE_MAX as u64 + 10 {
            queue.push(MemberKey(i), update(i, u16::MAX));
        }
        assert_eq!((queue.len(), queue.dropped()), (NEWS_QUEUE_MAX, 10));
        let news = queue.take(NEWS_BYTES, 100, Some(update(1, 0)));
        assert!(news.len() > 20, "{}", news.len());
        encode_frame(&Frame::Gossip(news)).unwrap();
        let all: Vec<_> = (0..500).map(|i| update(i, u16::MAX)).collect();
        let packed = pack(all.clone(), NEWS_BYTES);
        let back: Vec<_> = packed
            .iter()
            .flat_map(|news| news.iter().cloned())
            .collect();
        assert_eq!(back, all);
        for news in packed {
            encode_frame(&Frame::Gossip(news)).unwrap();
        }
    }

    #[test]
    fn an_urgent_word_goes_out_twice() {
        let mut queue = NewsQueue::default();
        queue.push_urgent(MemberKey(1), update(1, 0));
        assert_eq!(queue.take_urgent(), (vec![update(1, 0)], true));
        assert_eq!(queue.take_urgent(), (vec![update(1, 0)], false));
        assert_eq!(queue.take_urgent(), (vec![], false));
    }
}
