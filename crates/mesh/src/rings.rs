//! Who watches whom: ten hash rings over the members.
//!
//! On each ring every member is watched by its predecessor (Rapid, ATC'18, §4.1).
//! A predecessor that already watches it from an earlier ring is passed over for the
//! one before it, so a member has [`OBSERVERS`] distinct observers as soon as there are
//! as many others; up to [`FULL_MESH_MAX`] members that is everyone watching everyone.
//! All members that know the same names compute the same observers.

use swimlet_protocol::MemberKey;

use crate::constants::{FULL_MESH_MAX, OBSERVERS};

/// The rings. Each holds all members, ordered by their place on it.
#[derive(Debug)]
pub(crate) struct Rings {
    rings: [Vec<Placed>; OBSERVERS],
}

/// A member's place on a ring, and the member.
type Placed = (u64, MemberKey);

impl Rings {
    pub(crate) fn new() -> Self {
        Self {
            rings: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// How many members have a place.
    pub(crate) fn len(&self) -> usize {
        self.rings[0].len()
    }

    /// Gives the member its places. `false` if it had them.
    pub(crate) fn insert(&mut self, key: MemberKey) -> bool {
        let mut added = false;
        for (ring, members) in self.rings.iter_mut().enumerate() {
            if let Err(at) = find(members, ring, key) {
                members.insert(at, (place(ring, key), key));
                added = true;
            }
        }
        added
    }

    /// Takes the member's places away. `false` if it had none.
    pub(crate) fn remove(&mut self, key: MemberKey) -> bool {
        let mut removed = false;
        for (ring, members) in self.rings.iter_mut().enumerate() {
            if let Ok(at) = find(members, ring, key) {
                members.remove(at);
                removed = true;
            }
        }
        removed
    }

    /// The observers of `subject`, which need not have a place itself; at most [`OBSERVERS`],
    /// or all others in a full mesh. In no particular order.
    pub(crate) fn observers_of(&self, subject: MemberKey) -> Vec<MemberKey> {
        let mut observers = Vec::with_capacity(OBSERVERS);
        if self.len() <= FULL_MESH_MAX {
            let others = self.rings[0].iter().map(|&(_, key)| key);
            observers.extend(others.filter(|&key| key != subject));
            return observers;
        }
        for (ring, members) in self.rings.iter().enumerate() {
            let (Ok(at) | Err(at)) = find(members, ring, subject);
            // At most OBSERVERS steps: each passes over an observer chosen before, or the subject.
            let before = members[..at].iter().rev().chain(members[at..].iter().rev());
            let found = before
                .map(|&(_, key)| key)
                .find(|key| *key != subject && !observers.contains(key));
            observers.extend(found);
        }
        observers
    }

    /// Whom `observer` watches.
    pub(crate) fn subjects_of(&self, observer: MemberKey) -> Vec<MemberKey> {
        if self.len() <= FULL_MESH_MAX {
            return self.observers_of(observer);
        }
        let mut subjects = Vec::with_capacity(2 * OBSERVERS);
        for (ring, members) in self.rings.iter().enumerate() {
            let (at, next) = match find(members, ring, observer) {
                Ok(at) => (at, at + 1),
                Err(at) => (at, at),
            };
            // Whoever stands between was passed over, and each earlier ring chose one
            // of them at most: nobody farther ahead can be watched from here.
            let after = members[next..].iter().chain(members[..at].iter());
            for (between, &(_, subject)) in after.take(ring + 1).enumerate() {
                let watched = || between == 0 || self.observers_of(subject).contains(&observer);
                if !subjects.contains(&subject) && watched() {
                    subjects.push(subject);
                }
            }
        }
        subjects
    }
}

/// A member's place on a ring. Keys are keyed hashes already; this is `SplitMix64`'s
/// finalizer (Steele et al., OOPSLA 2014), a bijection, so no two members share a place.
fn place(ring: usize, key: MemberKey) -> u64 {
    let salt = (ring as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(key.0 ^ salt)
}

/// Spreads the bits of `x`; see [`place`].
pub(crate) fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn find(members: &[Placed], ring: usize, key: MemberKey) -> Result<usize, usize> {
    let wanted = place(ring, key);
    members.binary_search_by_key(&wanted, |&(place, _)| place)
}

#[cfg(test)]
mod tests;
