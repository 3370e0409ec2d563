//! Membership news on its way to the neighbours.
//!
//! The newest news about a member replaces what was waiting about it; each piece is
//! sent λ·log₂(n + 1) times (SWIM §4.1), the least often sent first. An aggregator's
//! word about a state is urgent: it goes to all of its links, because nobody believes
//! it second-hand.

use std::collections::{BTreeMap, HashMap, VecDeque};

use swimlet_protocol::MemberKey;
use swimlet_protocol::codec::encoded_len;
use swimlet_protocol::frame::{NEWS_MAX, News, Update};

use crate::constants::{GOSSIP_FANOUT, GOSSIP_LAMBDA, NEWS_QUEUE_MAX};
use crate::names::KeyHash;

/// The queue. Holds at most [`NEWS_QUEUE_MAX`] pieces.
#[derive(Debug, Default)]
pub(crate) struct NewsQueue {
    items: HashMap<MemberKey, Item, KeyHash>,
    /// By how often pieces were sent: those that wait, in the order in which they got there.
    waiting: Vec<VecDeque<Ticket>>,
    /// Tickets in `waiting`, those that are void included.
    tickets: usize,
    numbers: u64,
    dropped: u64,
    urgent: BTreeMap<MemberKey, (Update, u8)>,
}

#[derive(Debug)]
struct Item {
    update: Update,
    bytes: usize,
    sent: u32,
    ticket: u64,
}

/// A piece's place among those that were sent as often; void if the piece has another by now.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    about: MemberKey,
    number: u64,
}

/// How often an aggregator's word goes out: datagrams get lost, and anti-entropy
/// brings what was lost twice.
const URGENT_TIMES: u8 = 2;

/// Tickets, most of them void, from which on the void ones are thrown away.
const TICKETS_MAX: usize = 8 * NEWS_QUEUE_MAX;

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
        self.items.remove(&about);
        if self.items.len() >= NEWS_QUEUE_MAX {
            self.drop_most_sent();
        }
        self.numbers += 1;
        let item = Item {
            bytes: encoded_len(&update),
            update,
            sent: 0,
            ticket: self.numbers,
        };
        self.items.insert(about, item);
        self.get_in_line(about, 0);
    }

    /// Somebody sent us what waits here: that transmission is one less for us. Without
    /// this a start of n members costs n² · λ·log₂(n) deliveries of news that everybody
    /// has (the feedback of Demers et al., PODC 1987, §1.4). Some neighbours hear it from
    /// us all the same, however often one repeats it.
    pub(crate) fn heard(&mut self, about: MemberKey, update: &Update, members: usize) {
        if self.items.is_empty() {
            return;
        }
        let echoes = |item: &Item| item.sent >= FEEDBACK_AFTER && item.update == *update;
        self.count(about, transmissions(members), echoes);
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
        if self.items.is_empty() {
            return news;
        }
        let room = NEWS_MAX - news.len();
        let limit = transmissions(members);
        for about in self.choose(left, room) {
            self.count(about, limit, |item| news.push(item.update.clone()).is_ok());
        }
        news
    }

    /// Takes out what waits about a member.
    pub(crate) fn remove(&mut self, about: MemberKey) {
        self.items.remove(&about);
        self.tidy();
    }

    /// Takes the tickets of the pieces that are to go into `left` bytes: the least often sent
    /// that fit, `room` of them at most.
    fn choose(&mut self, mut left: usize, room: usize) -> Vec<MemberKey> {
        let mut chosen = Vec::new();
        let mut passed_over = Vec::new();
        for queue in &mut self.waiting {
            let before = passed_over.len();
            while chosen.len() < room
                && left >= UPDATE_BYTES_MIN
                && passed_over.len() < PASSED_OVER_MAX
                && let Some(ticket) = queue.pop_front()
            {
                self.tickets -= 1;
                let item = self.items.get(&ticket.about);
                let Some(item) = item.filter(|item| item.ticket == ticket.number) else {
                    continue;
                };
                if item.bytes <= left {
                    left -= item.bytes;
                    chosen.push(ticket.about);
                } else {
                    passed_over.push(ticket);
                }
            }
            for &ticket in passed_over[before..].iter().rev() {
                queue.push_front(ticket);
                self.tickets += 1;
            }
        }
        chosen
    }

    /// Counts one transmission of a piece, if it is one: the last takes it out, and before
    /// it gets in line behind those that were sent as often.
    fn count(&mut self, about: MemberKey, limit: u32, is_one: impl FnOnce(&Item) -> bool) {
        let Some(item) = self.items.get_mut(&about).filter(|item| is_one(item)) else {
            return;
        };
        item.sent += 1;
        if item.sent >= limit {
            self.remove(about);
            return;
        }
        self.numbers += 1;
        item.ticket = self.numbers;
        let level = item.sent as usize;
        self.get_in_line(about, level);
    }

    /// Gives a piece the newest ticket for a level.
    fn get_in_line(&mut self, about: MemberKey, level: usize) {
        if level >= self.waiting.len() {
            self.waiting.resize_with(level + 1, VecDeque::new);
        }
        let number = self.numbers;
        self.waiting[level].push_back(Ticket { about, number });
        self.tickets += 1;
        if self.tickets >= TICKETS_MAX {
            self.tidy();
        }
    }

    /// Makes room by the piece that was sent most often, and last came that far.
    fn drop_most_sent(&mut self) {
        for queue in self.waiting.iter_mut().rev() {
            while let Some(ticket) = queue.pop_back() {
                self.tickets -= 1;
                let item = self.items.get(&ticket.about);
                if item.is_some_and(|item| item.ticket == ticket.number) {
                    self.items.remove(&ticket.about);
                    self.dropped += 1;
                    return;
                }
            }
        }
    }

    /// Throws void tickets away before they pile up, and all memory with the last piece.
    fn tidy(&mut self) {
        if self.items.is_empty() {
            self.items = HashMap::default();
            self.waiting = Vec::new();
            self.tickets = 0;
        } else if self.tickets >= TICKETS_MAX {
            for queue in &mut self.waiting {
                queue.retain(|ticket| {
                    let item = self.items.get(&ticket.about);
                    item.is_some_and(|item| item.ticket == ticket.number)
                });
            }
            self.tickets = self.items.len();
        }
    }
}

/// Own transmissions before those of others count: one round of gossip.
const FEEDBACK_AFTER: u32 = GOSSIP_FANOUT as u32;

/// Pieces that do not fit any more and are passed over for a shorter one behind them. While
/// thousands join nearly all pieces are as long, and each frame would look at all of them.
const PASSED_OVER_MAX: usize = 4;

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
    fn the_least_often_sent_goes_first_and_what_does_not_fit_waits_its_turn() {
        let mut queue = NewsQueue::default();
        let len = encoded_len(&update(1, 0));
        for i in 1..=3 {
            queue.push(MemberKey(i), update(i, 0));
        }
        let about = |news: News| -> Vec<u64> {
            let subject = |update: &Update| match update {
                Update::Changed { subject, .. } => subject.0,
                Update::Joined { .. } => 0,
            };
            news.iter().map(subject).collect()
        };
        assert_eq!(about(queue.take(2 * len, 100, None)), [1, 2]);
        assert_eq!(about(queue.take(2 * len, 100, None)), [3, 1]);
        queue.push(MemberKey(2), update(2, 1));
        assert_eq!(about(queue.take(len, 100, None)), [2], "it is news again");
        assert_eq!(about(queue.take(len - 1, 100, None)), [0; 0]);
        assert_eq!(about(queue.take(3 * len, 100, None)), [3, 2, 1]);
    }

    /// Nobody to send to, and the same news again and again: tickets do not pile up.
    #[test]
    fn void_tickets_are_thrown_away() {
        let mut queue = NewsQueue::default();
        for round in 0..100_000_u64 {
            queue.push(MemberKey(round % 7), update(round % 7, 0));
            assert!(queue.tickets < TICKETS_MAX);
        }
        assert_eq!(queue.len(), 7);
        assert_eq!(queue.take(NEWS_BYTES, 100, None).len(), 7);
        for i in 0..7 {
            queue.remove(MemberKey(i));
        }
        assert_eq!((queue.len(), queue.tickets, queue.waiting.len()), (0, 0, 0));
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
