use std::collections::{BTreeMap, BTreeSet};

use swimlet_protocol::MemberKey;

use super::{Rings, mix};
use crate::constants::OBSERVERS;

fn rings(n: u64) -> (Rings, Vec<MemberKey>) {
    let keys: Vec<_> = (0..n).map(|i| MemberKey(mix(i + 1))).collect();
    let mut rings = Rings::new();
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
