//! Who watches whom: ten hash rings over the members.
//!
//! On each ring every member is watched by its predecessor (Rapid, ATC'18, §4.1).
//! A predecessor that already watches it from an earlier ring is passed over for the
//! one before it, so a member has [`OBSERVERS`] distinct observers as soon as there are
//! as many others; up to [`FULL_MESH_MAX`] members that is everyone watching everyone.
//! All members that know the same names compute the same observers.
//!
//! The order on the rings is that of [`Names`]; here stands who of them has a place.

use swimlet_protocol::MemberKey;

use crate::constants::{FULL_MESH_MAX, OBSERVERS};
use crate::names::{Id, Names};

/// Who has a place on the rings, as one member sees it.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// A bit per id.
    placed: Vec<u64>,
    len: usize,
}

impl Rings {
    /// How many members have a place.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has(&self, id: Id) -> bool {
        let (word, bit) = bit_of(id);
        self.placed.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Gives the member its places. `false` if it had them.
    pub(crate) fn insert(&mut self, id: Id) -> bool {
        let added = !self.has(id);
        let (word, bit) = bit_of(id);
        if word >= self.placed.len() {
            self.placed.resize(word + 1, 0);
        }
        self.placed[word] |= bit;
        self.len += usize::from(added);
        added
    }

    /// Takes the member's places away. `false` if it had none.
    pub(crate) fn remove(&mut self, id: Id) -> bool {
        let removed = self.has(id);
        let (word, bit) = bit_of(id);
        if removed {
            self.placed[word] &= !bit;
            self.len -= 1;
        }
        removed
    }

    /// The observers of `subject`, which need not have a place itself; at most [`OBSERVERS`],
    /// or all others in a full mesh. In no particular order.
    pub(crate) fn observers_of(&self, names: &Names, subject: MemberKey) -> Vec<MemberKey> {
        let mut observers = Vec::with_capacity(OBSERVERS);
        if self.len() <= FULL_MESH_MAX {
            let others = self.placed_on(names, names.ring(0));
            observers.extend(others.filter(|&key| key != subject).take(self.len()));
            return observers;
        }
        for ring in 0..OBSERVERS {
            let (Ok(at) | Err(at)) = names.position(ring, subject);
            let (before, after) = names.ring(ring).split_at(at);
            // At most OBSERVERS steps over members with a place: each passes over an
            // observer chosen before, or the subject.
            let found = self
                .placed_on(names, before.iter().rev().chain(after.iter().rev()))
                .find(|key| *key != subject && !observers.contains(key));
            observers.extend(found);
        }
        observers
    }

    /// Whom `observer` watches.
    pub(crate) fn subjects_of(&self, names: &Names, observer: MemberKey) -> Vec<MemberKey> {
        if self.len() <= FULL_MESH_MAX {
            return self.observers_of(names, observer);
        }
        let mut subjects = Vec::with_capacity(2 * OBSERVERS);
        for ring in 0..OBSERVERS {
            let (at, next) = match names.position(ring, observer) {
                Ok(at) => (at, at + 1),
                Err(at) => (at, at),
            };
            let order = names.ring(ring);
            // Whoever stands between was passed over, and each earlier ring chose one
            // of them at most: nobody farther ahead can be watched from here.
            let after = self.placed_on(names, order[next..].iter().chain(&order[..at]));
            for (between, subject) in after.take(ring + 1).enumerate() {
                let watched =
                    || between == 0 || self.observers_of(names, subject).contains(&observer);
                if !subjects.contains(&subject) && watched() {
                    subjects.push(subject);
                }
            }
        }
        subjects
    }

    /// Those of `ids` that have a place.
    fn placed_on<'a>(
        &'a self,
        names: &'a Names,
        ids: impl IntoIterator<Item = &'a Id>,
    ) -> impl Iterator<Item = MemberKey> {
        let placed = ids.into_iter().filter(|&&id| self.has(id));
        placed.map(|&id| names.key(id))
    }
}

fn bit_of(id: Id) -> (usize, u64) {
    (id.index() / 64, 1 << (id.index() % 64))
}

#[cfg(test)]
mod tests;
