//! What happens next: a queue of events, and an index of wake-ups.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use swimlet_protocol::Moment;

/// Events by time, those of one time in the order in which they were put in.
///
/// The heap moves 24 bytes a level, whatever an event's size: the events themselves lie
/// still in a slab. Bounded by what is in flight, and its peak is counted.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Entry>,
    slab: Vec<Option<T>>,
    free: Vec<u32>,
    serial: u64,
    peak: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Moment,
    serial: u64,
    slot: u32,
}

/// The next wake-up of each of many sleepers: a tournament tree, so that the first is
/// known at once and a change costs the height of the tree at most.
#[derive(Debug)]
pub(crate) struct Wakes {
    /// Node `i` has the children `2i` and `2i + 1`; the leaves are the second half.
    tree: Vec<Moment>,
}

/// Sleeps for good.
const NEVER: Moment = Moment::from_micros(u64::MAX);

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            serial: 0,
            peak: 0,
        }
    }

    pub(crate) fn push(&mut self, at: Moment, event: T) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slab[slot as usize] = Some(event);
                slot
            }
            None => {
                self.slab.push(Some(event));
                // Four billion events would not fit the memory of any machine.
                u32::try_from(self.slab.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.serial += 1;
        self.heap.push(Entry {
            at,
            serial: self.serial,
            slot,
        });
        self.peak = self.peak.max(self.heap.len());
    }

    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let entry = self.heap.pop()?;
        self.free.push(entry.slot);
        self.slab[entry.slot as usize].take()
    }

    /// The most events that ever waited.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }
}

impl Ord for Entry {
    /// The earliest is the greatest, because the heap gives that.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.serial).cmp(&(self.at, self.serial))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Wakes {
    pub(crate) fn new() -> Self {
        Self {
            tree: vec![NEVER; 2],
        }
    }

    /// Sets the wake-up of `sleeper`; `None` lets it sleep.
    pub(crate) fn set(&mut self, sleeper: usize, at: Option<Moment>) {
        while sleeper >= self.tree.len() / 2 {
            self.double();
        }
        let mut node = self.tree.len() / 2 + sleeper;
        let mut first = at.unwrap_or(NEVER);
        while self.tree[node] != first {
            self.tree[node] = first;
            if node == 1 {
                break;
            }
            first = first.min(self.tree[node ^ 1]);
            node /= 2;
        }
    }

    /// When the first wake-up is due.
    pub(crate) fn next_at(&self) -> Option<Moment> {
        Some(self.tree[1]).filter(|at| *at != NEVER)
    }

    /// Whose it is; of several the one with the lowest index.
    pub(crate) fn first(&self) -> Option<usize> {
        let at = self.next_at()?;
        let mut node = 1;
        while node < self.tree.len() / 2 {
            node *= 2;
            if self.tree[node] != at {
                node += 1;
            }
        }
        Some(node - self.tree.len() / 2)
    }

    fn double(&mut self) {
        let leaves = self.tree.split_off(self.tree.len() / 2);
        let size = leaves.len() * 2;
        self.tree = vec![NEVER; size];
        self.tree.extend(leaves);
        self.tree.resize(size * 2, NEVER);
        for node in (1..size).rev() {
            self.tree[node] = self.tree[2 * node].min(self.tree[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Moment {
        Moment::from_micros(micros)
    }

    /// Guards the order that everything else rests on.
    #[test]
    fn events_come_by_time_and_then_as_they_were_put_in() {
        let mut queue = Queue::new();
        for (time, name) in [(5, "c"), (1, "a"), (5, "d"), (1, "b"), (9, "e")] {
            queue.push(at(time), name);
        }
        assert_eq!(queue.pop(), Some("a"));
        queue.push(at(2), "between");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, ["b", "between", "c", "d", "e"]);
        assert_eq!(queue.peak(), 5);
    }

    /// Guards the index against a plain search, over many changes.
    #[test]
    fn the_first_wake_up_is_always_known() {
        let mut wakes = Wakes::new();
        let mut plain = vec![None; 100];
        let mut random = 1_u64;
        for _ in 0..5_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let sleeper = (random >> 33) as usize % plain.len();
            let due = (!(random >> 20).is_multiple_of(5)).then(|| at(random >> 58));
            plain[sleeper] = due;
            wakes.set(sleeper, due);
            let first = plain
                .iter()
                .enumerate()
                .filter_map(|(index, due)| Some((due.as_ref()?, index)))
                .min();
            assert_eq!(wakes.next_at(), first.map(|(due, _)| *due));
            assert_eq!(wakes.first(), first.map(|(_, index)| index));
        }
    }
}
