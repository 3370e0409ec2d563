//! The names that the members of one process know, numbered and in the order of the rings.
//!
//! A table and its rings hold numbers where they would hold names: who stands where on a
//! ring depends on the names alone, so thousands of members in one process, as a simulation
//! has them, share one [`Names`], and each keeps only what it holds true of whom. A member
//! on its own has a copy of its own and takes forgotten names out of it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use swimlet_protocol::MemberKey;

use crate::constants::OBSERVERS;

/// Names shared by the members of one process.
///
/// What is in it changes no member's behaviour, only its memory and the time it takes. It
/// grows with every name any of them ever knew, so it is for processes that end.
#[derive(Clone, Debug, Default)]
pub struct Commons(Arc<Mutex<Arc<Names>>>);

/// A name's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(u32);

/// Numbered names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    keys: Vec<MemberKey>,
    ids: HashMap<MemberKey, Id, KeyHash>,
    sorted: Vec<Id>,
    rings: [Ring; OBSERVERS],
    free: Vec<Id>,
}

/// All names in the order of their places on one ring.
#[derive(Clone, Debug, Default)]
struct Ring {
    order: Vec<Id>,
    /// By id: where it stands in `order`.
    ranks: Vec<u32>,
}

/// Keys are hashes already, but a taken-over member may introduce names chosen for their
/// keys' last bits: spread by a secret, they do not share a bucket.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyHash {
    secret: u64,
}

pub(crate) struct KeyHasher(u64);

impl Commons {
    /// For members that will know each other by these keys.
    ///
    /// Not needed, but cheaper than learning one after the other where most of the keys are
    /// known at once; where members join one by one it makes each look past the others.
    pub fn of(keys: impl IntoIterator<Item = MemberKey>) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(Names::of(keys)))))
    }

    /// The newest names.
    fn names(&self) -> Arc<Names> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The newest names, with this one among them.
    fn names_with(&self, key: MemberKey) -> (Arc<Names>, Id) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Members that read the old names keep them until they need newer ones.
        let known = names.id(key);
        let id = known.unwrap_or_else(|| Arc::make_mut(&mut names).insert(key));
        (Arc::clone(&names), id)
    }
}

impl Id {
    /// Where what is kept by id is found.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Names {
    fn of(keys: impl IntoIterator<Item = MemberKey>) -> Self {
        let mut names = Self::default();
        for key in keys {
            if names.ids.contains_key(&key) {
                continue;
            }
            let id = names.next_id();
            names.keys.push(key);
            names.ids.insert(key, id);
            names.sorted.push(id);
        }
        let keys = &names.keys;
        names.sorted.sort_unstable_by_key(|id| keys[id.index()]);
        for (ring, Ring { order, ranks }) in names.rings.iter_mut().enumerate() {
            order.clone_from(&names.sorted);
            order.sort_unstable_by_key(|id| place(ring, keys[id.index()]));
            ranks.resize(keys.len(), 0);
            for (rank, id) in (0..).zip(order.iter()) {
                ranks[id.index()] = rank;
            }
        }
        names
    }

    /// Ids are below this.
    pub(crate) fn end(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn id(&self, key: MemberKey) -> Option<Id> {
        self.ids.get(&key).copied()
    }

    pub(crate) fn key(&self, id: Id) -> MemberKey {
        self.keys[id.index()]
    }

    /// All of them, in the order of their keys.
    pub(crate) fn sorted(&self) -> &[Id] {
        &self.sorted
    }

    /// All of them, in the order of their places on a ring.
    pub(crate) fn ring(&self, ring: usize) -> &[Id] {
        &self.rings[ring].order
    }

    /// Where a name stands on a ring, or would stand.
    pub(crate) fn position(&self, ring: usize, key: MemberKey) -> Result<usize, usize> {
        let Ring { order, ranks } = &self.rings[ring];
        match self.id(key) {
            Some(id) => Ok(ranks[id.index()] as usize),
            None => {
                let wanted = place(ring, key);
                Err(order.partition_point(|&id| place(ring, self.key(id)) < wanted))
            }
        }
    }

    fn insert(&mut self, key: MemberKey) -> Id {
        let id = match self.free.pop() {
            Some(id) => {
                self.keys[id.index()] = key;
                id
            }
            None => {
                let id = self.next_id();
                self.keys.push(key);
                id
            }
        };
        let keys = &self.keys;
        let at = self.sorted.partition_point(|id| keys[id.index()] < key);
        self.sorted.insert(at, id);
        for (ring, Ring { order, ranks }) in self.rings.iter_mut().enumerate() {
            let wanted = place(ring, key);
            let at = order.partition_point(|id| place(ring, keys[id.index()]) < wanted);
            order.insert(at, id);
            ranks.resize(keys.len(), 0);
            renumber(order, ranks, at);
        }
        self.ids.insert(key, id);
        id
    }

    fn remove(&mut self, key: MemberKey) {
        let Some(id) = self.ids.remove(&key) else {
            return;
        };
        self.sorted.retain(|&other| other != id);
        for Ring { order, ranks } in &mut self.rings {
            let at = ranks[id.index()] as usize;
            order.remove(at);
            renumber(order, ranks, at);
        }
        self.free.push(id);
    }

    fn next_id(&self) -> Id {
        // Tables hold MEMBERS_MAX names and a simulation has memory for fewer than 2³².
        Id(u32::try_from(self.keys.len()).unwrap_or(u32::MAX))
    }
}

/// One member's hold on names: shared ones or its own.
#[derive(Debug)]
pub(crate) struct Directory {
    names: Arc<Names>,
    commons: Option<Commons>,
}

impl Directory {
    /// A hold on shared names, or on names of its own with a secret to hash them by.
    pub(crate) fn new(commons: Option<Commons>, secret: u64) -> Self {
        let names = commons.as_ref().map(Commons::names).unwrap_or_else(|| {
            Arc::new(Names {
                ids: HashMap::with_hasher(KeyHash { secret }),
                ..Names::default()
            })
        });
        Self { names, commons }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// The name's id, with which the name is kept from now on.
    pub(crate) fn enter(&mut self, key: MemberKey) -> Id {
        if let Some(id) = self.names.id(key) {
            return id;
        }
        if let Some(commons) = &self.commons {
            let (names, id) = commons.names_with(key);
            self.names = names;
            return id;
        }
        Arc::make_mut(&mut self.names).insert(key)
    }

    /// The name is not needed here any more. Shared names stay: others may hold them.
    pub(crate) fn leave(&mut self, key: MemberKey) {
        if self.commons.is_none() {
            Arc::make_mut(&mut self.names).remove(key);
        }
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.secret)
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }

    fn write_u32(&mut self, tag: u32) {
        self.0 = mix(self.0 ^ u64::from(tag));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(self.0 ^ key);
    }
}

/// A member's place on a ring. Keys are keyed hashes already; this is `SplitMix64`'s
/// finalizer (Steele et al., OOPSLA 2014), a bijection, so no two members share a place.
fn place(ring: usize, key: MemberKey) -> u64 {
    let salt = (ring as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix(key.0 ^ salt)
}

/// Spreads the bits of `x`; see [`place`].
pub(crate) const fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Corrects the ranks of everybody from `at` on.
fn renumber(order: &[Id], ranks: &mut [u32], at: usize) {
    for (rank, id) in (at as u32..).zip(&order[at..]) {
        ranks[id.index()] = rank;
    }
}
