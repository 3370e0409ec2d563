use std::cell::Cell;
use std::rc::Rc;

use super::*;

/// A connection that can be closed from outside.
#[derive(Clone, Debug)]
struct Fake(u32, Rc<Cell<bool>>);

impl Wire for Fake {
    fn is_open(&self) -> bool {
        self.1.get()
    }
}

fn wire(number: u32) -> Fake {
    Fake(number, Rc::new(Cell::new(true)))
}

fn agent(name: &str) -> Identity {
    format!("spiffe://test/node/{name}").parse().unwrap()
}

/// Two members, the one with the smaller key first.
fn ordered() -> (Identity, Identity) {
    let (a, b) = (agent("a"), agent("b"));
    if a.key() < b.key() { (a, b) } else { (b, a) }
}

fn up(inserted: Inserted<Fake>) -> LinkId {
    match inserted {
        Inserted::Up(id) => id,
        other => panic!("{other:?}"),
    }
}

fn doubled(inserted: Inserted<Fake>) -> (LinkId, LinkId) {
    match inserted {
        Inserted::Doubled { id, older, .. } => (older.id, id),
        other => panic!("{other:?}"),
    }
}

/// Both sides of crossed dials keep the same one, whatever the order they arrived in.
#[test]
fn both_sides_settle_on_the_same_connection() {
    let (small, large) = ordered();
    const BY_SMALL: u32 = 1;
    const BY_LARGE: u32 = 2;
    for by_small_first in [true, false] {
        for (own, peer) in [(&small, &large), (&large, &small)] {
            let mut pool = Pool::new(own.key(), 8);
            let mut arrivals = [(BY_SMALL, own == &small), (BY_LARGE, own == &large)];
            if !by_small_first {
                arrivals.reverse();
            }
            let [(first, first_dialled), (second, second_dialled)] = arrivals;
            up(pool.insert(peer, wire(first), first_dialled));
            let (older, newer) = doubled(pool.insert(peer, wire(second), second_dialled));
            let loser = pool.settle(peer.key(), older, newer, true).unwrap();
            assert_eq!(loser.0, BY_LARGE, "at {own}");
            assert_eq!(pool.current(peer.key()).unwrap().0, BY_SMALL);
            assert_eq!(pool.len(), 1);
        }
    }
}

/// The preferred one does not stay if it is dead: a restarted peer is not cut off.
#[test]
fn a_dead_older_connection_gives_way_whoever_dialled_it() {
    let (small, large) = ordered();
    let mut pool = Pool::new(small.key(), 8);
    up(pool.insert(&large, wire(1), true));
    let (older, newer) = doubled(pool.insert(&large, wire(2), false));
    let loser = pool.settle(large.key(), older, newer, false).unwrap();
    assert_eq!(loser.0, 1);
}

/// If one side dialled both, it did so because the first was dead to it.
#[test]
fn the_newer_of_two_by_the_same_side_stays() {
    let (small, large) = ordered();
    for dialled in [true, false] {
        let mut pool = Pool::new(small.key(), 8);
        up(pool.insert(&large, wire(1), dialled));
        let (older, newer) = doubled(pool.insert(&large, wire(2), dialled));
        let loser = pool.settle(large.key(), older, newer, true).unwrap();
        assert_eq!(loser.0, 1);
    }
}

/// Only the last connection's end is told; the other carries on at once.
#[test]
fn the_end_of_one_of_two_is_silent() {
    let (small, large) = ordered();
    let mut pool = Pool::new(small.key(), 8);
    let first = wire(1);
    up(pool.insert(&large, first.clone(), true));
    let second = wire(2);
    let (older, newer) = doubled(pool.insert(&large, second.clone(), false));
    assert_eq!(pool.current(large.key()).unwrap().0, 2);
    second.1.set(false);
    assert_eq!(pool.current(large.key()).unwrap().0, 1);
    assert_eq!(pool.remove(large.key(), newer), Removed::Silent);
    assert_eq!(pool.remove(large.key(), newer), Removed::Silent);
    assert_eq!(pool.remove(large.key(), older), Removed::Last);
    assert_eq!(pool.len(), 0);
}

/// A connection that was closed, but not yet told down, is told down before the
/// new one is told up, and its own end later tells nothing.
#[test]
fn a_new_connection_after_a_closed_one_is_told_again() {
    let (small, large) = ordered();
    let mut pool = Pool::new(small.key(), 8);
    let first = wire(1);
    let first_id = up(pool.insert(&large, first.clone(), true));
    first.1.set(false);
    assert!(pool.current(large.key()).is_none());
    match pool.insert(&large, wire(2), true) {
        Inserted::Again { dead, .. } => assert_eq!(dead.0, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.remove(large.key(), first_id), Removed::Silent);
    assert_eq!(pool.current(large.key()).unwrap().0, 2);
}

/// A peer that dials again and again holds two connections at most, and the bound
/// on peers leaves no place for one more but lets the present ones reconnect.
#[test]
fn connections_are_bounded() {
    let (small, large) = ordered();
    let mut pool = Pool::new(small.key(), 1);
    up(pool.insert(&large, wire(1), false));
    for number in 2..10 {
        match pool.insert(&large, wire(number), false) {
            Inserted::Doubled { evicted, .. } => {
                assert_eq!(evicted.is_some(), number > 2);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(pool.all(large.key()).len(), 2);
        assert_eq!(pool.current(large.key()).unwrap().0, number);
    }
    assert!(matches!(
        pool.insert(&agent("c"), wire(10), false),
        Inserted::Full
    ));
}
