use std::collections::{BTreeMap, BTreeSet};

use swimlet_protocol::MemberKey;

use crate::constants::OBSERVERS;
use crate::names::{Commons, Directory, mix};

/// Rings over names, of which those about whom nobody asks have no place.
struct Rings {
    rings: super::Rings,
    directory: Directory,
}

impl Rings {
    fn observers_of(&self, key: MemberKey) -> Vec<MemberKey> {
        self.rings.observers_of(self.directory.names(), key)
    }

    fn subjects_of(&self, key: MemberKey) -> Vec<MemberKey> {
        self.rings.subjects_of(self.directory.names(), key)
    }

    fn insert(&mut self, key: MemberKey) -> bool {
        self.rings.insert(self.directory.enter(key))
    }

    fn remove(&mut self, key: MemberKey) -> bool {
        self.rings.remove(self.directory.enter(key))
    }
}

fn rings(n: u64) -> (Rings, Vec<MemberKey>) {
    rings_among(n, None)
}

fn rings_among(n: u64, commons: Option<Commons>) -> (Rings, Vec<MemberKey>) {
    let keys: Vec<_> = (0..n).map(|i| MemberKey(mix(i + 1))).collect();
    let mut rings = Rings {
        rings: super::Rings::default(),
        directory: Directory::new(commons, 7),
    };
    for &key in &keys {
        assert!(rings.insert(key));
        assert!(!rings.insert(key));
    }
    (rings, keys)
}

fn set(keys: Vec<MemberKey>) -> BTreeSet<MemberKey> {
    let len = keys.len();
    let set: BTreeSet<_> = keys.into_iter().collect();
    assert_eq!(set.len(), len, "each only once");
    set
}

#[test]
fn a_small_mesh_is_a_full_mesh() {
    for n in 1..=11 {
        let (rings, keys) = rings(n);
        for &key in &keys {
            assert_eq!(rings.observers_of(key).len(), keys.len() - 1);
            assert_eq!(set(rings.subjects_of(key)), set(rings.observers_of(key)));
        }
    }
}

#[test]
fn everyone_has_ten_observers_and_both_views_agree() {
    for n in [12, 13, 20, 60, 300] {
        let (rings, keys) = rings(n);
        let mut watched: BTreeMap<MemberKey, BTreeSet<MemberKey>> = BTreeMap::new();
        for &key in &keys {
            let observers = set(rings.observers_of(key));
            assert_eq!(observers.len(), OBSERVERS, "n = {n}");
            assert!(!observers.contains(&key));
            for observer in observers {
                watched.entry(observer).or_default().insert(key);
            }
        }
        for &key in &keys {
            let subjects = set(rings.subjects_of(key));
            assert_eq!(Some(&subjects), watched.get(&key), "n = {n}");
            assert!(
                subjects.len() <= 2 * OBSERVERS,
                "n = {n}: {}",
                subjects.len()
            );
        }
    }
}

#[test]
fn one_death_moves_few_observers() {
    let (mut rings, keys) = rings(300);
    let before: Vec<_> = keys
        .iter()
        .map(|&key| set(rings.observers_of(key)))
        .collect();
    let watched = rings.subjects_of(keys[0]).len();
    assert!(rings.remove(keys[0]));
    assert!(!rings.remove(keys[0]));
    let moved: usize = keys[1..]
        .iter()
        .zip(&before[1..])
        .map(|(&key, old)| set(rings.observers_of(key)).difference(old).count())
        .sum();
    // Each whom the dead one watched needs one new observer, and little else moves.
    assert!(
        (watched..=2 * watched).contains(&moved),
        "{moved} moved, {watched} watched"
    );
}

/// Whom others know, and in which order all were told apart, changes nothing.
#[test]
fn rings_over_shared_names_are_those_over_names_of_ones_own() {
    for n in [5, 11, 12, 40, 300] {
        let (own, keys) = rings(n);
        let strangers = (0..700).map(|i| MemberKey(mix(1_000_000 + i)));
        let commons = Commons::of(strangers.chain(keys.iter().rev().copied().take(20)));
        let (shared, _) = rings_among(n, Some(commons));
        for &key in keys.iter().chain(&[MemberKey(5)]) {
            assert_eq!(own.observers_of(key), shared.observers_of(key), "n = {n}");
            assert_eq!(own.subjects_of(key), shared.subjects_of(key), "n = {n}");
        }
    }
}
